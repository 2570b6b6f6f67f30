"""Messages between server and engine: what is sent is what arrives, and no bytes do harm."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import inspect

from servekit.engine.messages import FromEngine, ToEngine

WIDE = st.integers(-(2**63), 2**64 - 1)
PLAIN: dict[type, st.SearchStrategy[Any]] = {
    inspect.IntType: WIDE,
    inspect.FloatType: st.floats(allow_nan=False),
    inspect.BoolType: st.booleans(),
    inspect.StrType: st.text(max_size=8),
    inspect.BytesType: st.binary(max_size=8),
    inspect.NoneType: st.none(),
}


def some(kind: inspect.Type) -> st.SearchStrategy[Any]:
    """Any value of a type, as msgspec sees it."""
    if type(kind) in PLAIN:
        return PLAIN[type(kind)]
    match kind:
        case inspect.LiteralType(values=values):
            return st.sampled_from(values)
        case inspect.UnionType(types=types):
            return st.one_of(*map(some, types))
        case inspect.ListType(item_type=item):
            return st.lists(some(item), max_size=3)
        case inspect.TupleType(item_types=items):
            return st.tuples(*map(some, items))
        case inspect.DictType(key_type=key, value_type=value):
            return st.dictionaries(some(key), some(value), max_size=3)
        case inspect.StructType(cls=cls, fields=fields):
            return st.builds(cls, **{one.name: some(one.type) for one in fields})
    raise AssertionError(f"no values for {kind}")


WAYS = {"to the engine": ToEngine, "from the engine": FromEngine}


@pytest.mark.parametrize("way", WAYS)
@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_every_message_arrives_as_it_was_sent(way: str, data: st.DataObject) -> None:
    kind: Any = WAYS[way]
    message = data.draw(some(inspect.type_info(kind)))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=kind) == message


@pytest.mark.parametrize("way", WAYS)
@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_changed_bytes_are_a_message_or_a_decode_error(way: str, data: st.DataObject) -> None:
    kind: Any = WAYS[way]
    sent = bytearray(msgspec.msgpack.encode(data.draw(some(inspect.type_info(kind)))))
    for at, byte in data.draw(
        st.lists(st.tuples(st.integers(0, len(sent) - 1), st.integers(0, 255)))
    ):
        sent[at] = byte
    cut = data.draw(st.integers(0, len(sent)))
    for body in (bytes(sent), bytes(sent[:cut]), data.draw(st.binary(max_size=40))):
        try:
            got = msgspec.msgpack.decode(body, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
        assert isinstance(got, kind)
