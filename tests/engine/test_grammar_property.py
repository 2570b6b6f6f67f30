"""Whatever the schema, an answer that ends is valid under it."""

import json
from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from servekit.engine.local import LocalEngine
from servekit.model.grammar import Compiler, json_grammar
from tests.engine.grammars import BYTES, asking, constrained_engine, text

EXAMPLES = 100
WORDS = st.text('ab"\\ é😀\n', max_size=3)
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-99, 99), WORDS)


def strings() -> st.SearchStrategy[Any]:
    bounds = st.tuples(st.integers(0, 3), st.integers(3, 5)).map(
        lambda ends: {"type": "string", "minLength": ends[0], "maxLength": ends[1]}
    )
    patterns = st.sampled_from(["^[ab]{2,4}$", "^a+b?$", "b", "^(x|yy)$"]).map(
        lambda pattern: {"type": "string", "pattern": pattern, "maxLength": 9}
    )
    formats = st.sampled_from(["date", "time", "uuid", "ipv4"]).map(
        lambda name: {"type": "string", "format": name}
    )
    return st.one_of(bounds, patterns, formats)


def numbers() -> st.SearchStrategy[Any]:
    return st.tuples(
        st.sampled_from(["integer", "number"]), st.integers(-50, 50), st.integers(0, 500)
    ).map(lambda one: {"type": one[0], "minimum": one[1], "maximum": one[1] + one[2]})


LEAVES = st.one_of(
    strings(),
    numbers(),
    st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"type": ["null", "boolean"]}]),
    st.lists(SCALARS, min_size=1, max_size=4).map(lambda values: {"enum": values}),
    SCALARS.map(lambda value: {"const": value}),
)


@st.composite
def objects(draw: Any, inner: st.SearchStrategy[Any]) -> dict[str, Any]:
    properties = draw(st.dictionaries(WORDS, inner, max_size=3))
    names = sorted(properties)
    required = draw(st.lists(st.sampled_from(names), unique=True)) if names else []
    schema = {"type": "object", "properties": properties, "required": required}
    return schema | draw(
        st.sampled_from([{"additionalProperties": False}, {"additionalProperties": {"const": 1}}])
    )


def arrays(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.tuples(inner, st.integers(0, 2), st.integers(2, 3), st.lists(inner, max_size=2)).map(
        lambda one: {
            "type": "array",
            "items": one[0],
            "minItems": one[1],
            "maxItems": one[2],
            **({"prefixItems": one[3]} if one[3] else {}),
        }
    )


def unions(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(inner, min_size=1, max_size=3).map(lambda some: {"anyOf": some})


SCHEMAS = st.recursive(
    LEAVES, lambda inner: st.one_of(objects(inner), arrays(inner), unions(inner)), max_leaves=6
)


@dataclass
class Ends:
    """Of all answers, so that the test cannot come to prove nothing."""

    stopped: int = 0
    cut: int = 0


def ask(engine: LocalEngine, schema: dict[str, Any], ends: Ends) -> None:
    grammar = json_grammar(schema)
    # the tiny model rambles; a little love for quotes and brackets lets most answers end
    bias = dict.fromkeys(b'"}],:', 3.0)
    asked = [asking(grammar, seed, max_tokens=150, logit_bias=bias) for seed in range(3)]
    asked.append(asking(grammar, max_tokens=150, temperature=0.0, logit_bias=bias))
    for result in engine.generate([[1, 2, 3]] * 4, asked):
        assert result.error is None
        if result.finish == "stop":
            Draft202012Validator(schema).validate(json.loads(text(result.tokens)))
            ends.stopped += 1
        else:
            assert (result.finish, len(result.tokens)) == ("length", 150)
            ends.cut += 1


def test_an_answer_that_ends_is_valid_and_one_that_does_not_says_so() -> None:
    engine = constrained_engine(scheduler={"max_num_seqs": 4})
    compiler, ends = Compiler(BYTES), Ends()

    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(schema=SCHEMAS)
    def holds(schema: dict[str, Any]) -> None:
        if not compiler.objection(json_grammar(schema)):
            ask(engine, schema, ends)

    holds()
    assert ends.stopped > EXAMPLES
    assert ends.stopped > 2 * ends.cut
