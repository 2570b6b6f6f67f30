"""Whatever is sent as a grammar is judged, and nothing but the judge may die of it."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from servekit.errors import RequestError
from servekit.model.grammar import choice_grammar, json_grammar
from servekit.server.constraint import constraint_of
from servekit.server.grammars import Child
from tests.engine.grammars import HOSTILE
from tests.server.test_grammars import VOCABULARY

FUZZ = settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)
KEYWORDS = st.sampled_from(
    [
        *("type", "properties", "required", "items", "prefixItems", "additionalProperties"),
        *("anyOf", "allOf", "oneOf", "enum", "const", "$ref", "$defs", "$id", "$anchor", "format"),
        *("pattern", "minLength", "maxLength", "minimum", "exclusiveMaximum", "multipleOf"),
        *("minItems", "maxItems", "patternProperties", "minProperties", "x-guidance", "not"),
    ]
)
VALUES = st.one_of(
    JSON,
    st.sampled_from(["object", "array", "string", "integer", "#", "#/$defs/a", "(a*)*", "date"]),
    st.sampled_from([-1, 0, 10**9, 10**30, 1e-9, 1e308]),
)
SCHEMAS = st.recursive(
    st.dictionaries(KEYWORDS, VALUES, max_size=4),
    lambda inner: st.dictionaries(
        KEYWORDS,
        inner | st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner),
        max_size=3,
    ),
    max_leaves=5,
)
PATTERNS = st.lists(
    st.sampled_from(
        [
            *("a", "b", ".", "\\d", "\\w", "\\s", "\\p{L}", "[", "]", "(", ")", "(?:", "(?=", "|"),
            *("*", "+", "?", "{3}", "{0,1000}", "{9999999}", "^", "$", "\\", "/", "\n", "é", "&"),
            *("~", "-", "(?i)", "\\1", "\\b", "\\x{110000}", "\x00", "[^a]", "%", "{", "}", '"'),
        ]
    ),
    min_size=1,
    max_size=12,
).map("".join)


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    one = Child()
    yield one
    one._end()


def judged(child: Child, grammar: str) -> str:
    objection = child.objection(grammar, VOCABULARY)
    assert "\n" not in objection
    assert child.process is None or child.process.poll() is None
    return objection


@FUZZ
@given(schema=SCHEMAS)
def test_any_object_as_a_schema_is_judged(child: Child, schema: dict[str, Any]) -> None:
    judged(child, json_grammar(schema))


@FUZZ
@given(pattern=PATTERNS)
def test_any_text_as_a_regex_is_judged(child: Child, pattern: str) -> None:
    try:
        constraint = constraint_of(None, pattern)
    except RequestError:
        return
    assert constraint is not None
    judged(child, constraint.grammar)


@FUZZ
@given(choices=st.lists(st.text(min_size=1), min_size=1, max_size=5))
def test_any_texts_can_be_choices(child: Child, choices: list[str]) -> None:
    assert judged(child, choice_grammar(choices)) == ""


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_grammar_is_judged_and_so_is_the_next(child: Child, name: str) -> None:
    judged(child, HOSTILE[name])
    assert judged(child, choice_grammar(["a"])) == ""
