"""Whatever bytes come, a request or a refusal comes out; never a fault."""

import json
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servekit.errors import RequestError, UnsupportedMedia
from servekit.server.completions import prompts
from servekit.server.limits import check_fields
from servekit.server.parse import parse
from servekit.server.wire import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)
names = st.sampled_from([*ChatRequest.__struct_fields__, *CompletionRequest.__struct_fields__])


KINDS = [ChatRequest, CompletionRequest, TokenizeRequest, DetokenizeRequest]
GOOD = (
    b'{"model": "tiny", "messages": [{"role": "user", "content": "h\\u00e9"}], "prompt": [[1, 2]],'
    b' "tokens": [3], "stop": ["a"], "logit_bias": {"5": -1e2}, "stream": true, "seed": 7}'
)


@pytest.mark.parametrize("kind", KINDS)
@given(body=st.binary(max_size=60))
@settings(max_examples=300, deadline=None)
def test_random_bytes_are_refused_and_nothing_else(kind: type[msgspec.Struct], body: bytes) -> None:
    with suppress(RequestError):
        parse(body, "application/json", kind)


@pytest.mark.parametrize("kind", KINDS)
@given(
    cuts=st.lists(
        st.tuples(st.integers(0, len(GOOD)), st.integers(0, 6), st.binary(max_size=6)), max_size=4
    )
)
@settings(max_examples=300, deadline=None)
def test_a_good_body_with_some_bytes_changed_is_read_or_refused(
    kind: type[msgspec.Struct], cuts: list[tuple[int, int, bytes]]
) -> None:
    body = GOOD
    for start, removed, added in cuts:
        body = body[:start] + added + body[start + removed :]
    with suppress(RequestError):
        parse(body, "application/json", kind)


@pytest.mark.parametrize("kind", [ChatRequest, CompletionRequest])
@given(fields=st.dictionaries(names | st.text(max_size=5), values, max_size=6))
@settings(max_examples=300, deadline=None)
def test_random_fields_make_a_request_or_a_refusal(
    kind: type[ChatRequest | CompletionRequest], fields: dict[str, object]
) -> None:
    base = {"model": "tiny", "messages": [], "prompt": "hi"}
    required = {name: base[name] for name in base if name in kind.__struct_fields__}
    with suppress(RequestError):
        asked = parse(json.dumps(required | fields).encode(), "application/json", kind)
        check_fields(asked.body)
        if isinstance(asked.body, CompletionRequest):
            prompts(asked.body)


def test_every_field_that_was_sent_is_a_field_named_or_refused() -> None:
    asked = parse(
        b'{"model": "tiny", "messages": [], "user": 1, "seed": 2, "top_k": null, "x y": null}',
        "application/json",
        ChatRequest,
    )
    assert asked.ignored == ("user",)
    assert asked.body.seed == 2


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded"])
def test_what_is_not_json_by_its_own_word_is_refused(content_type: str) -> None:
    with pytest.raises(UnsupportedMedia, match="set the Content-Type header"):
        parse(b"{}", content_type, ChatRequest)


@pytest.mark.parametrize(
    "field", [b'"tools": "\xff"', b'"best_of": 1e400', b'"tools": ' + b"9" * 5000]
)
def test_a_refused_field_of_undecodable_value_is_the_clients_fault(field: bytes) -> None:
    body = b'{"model": "tiny", "prompt": "x", ' + field + b"}"
    with pytest.raises(RequestError):
        parse(body, "application/json", CompletionRequest)


def test_a_key_that_is_no_token_id_is_named() -> None:
    body = b'{"model": "tiny", "prompt": "x", "logit_bias": {"a": 1}}'
    with pytest.raises(RequestError, match="in a key") as refused:
        parse(body, "application/json", CompletionRequest)
    assert refused.value.param == "/logit_bias"
