"""What a request says of the form of its answer, as a grammar.

    response_format {"type": "text"}                              anything
                    {"type": "json_object"}                       a JSON object
                    {"type": "json_schema", "json_schema": {"name", "schema"}}
    regex           a pattern that the whole answer matches
    choice          a list of which the answer is one

At most one of them. What the library cannot keep to the letter is refused, never loosened.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from servekit.errors import RequestError
from servekit.model.grammar import choice_grammar, json_grammar, regex_grammar
from servekit.server.forms import (
    JsonObjectFormat,
    JsonSchemaFormat,
    NamedSchema,
    ResponseFormat,
    TextFormat,
)
from servekit.server.service import Service
from servekit.server.wire import SamplingFields

MAX_SCHEMA_BYTES = 128 << 10
MAX_SCHEMA_DEPTH = 64
"""Levels of lists and objects; the library reads JSON of at most 128."""
MAX_REGEX_CHARACTERS = 8192
MAX_CHOICES = 1024
MAX_CHOICE_CHARACTERS = 32 << 10
"""Of all choices together."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """`param` is the field that asked for it, `kind` its kind in metrics."""

    param: str
    kind: str
    grammar: str


async def grammar_of(body: SamplingFields, service: Service) -> str | None:
    """What the engine is to keep to, tried; None for no constraint.

    Raises RequestError for one that cannot be had, or that the other fields contradict.
    """
    constraint = constraint_of(body.response_format, body.regex, body.choice)
    if constraint is not None:
        check_contradictions(constraint, body)
        await service.check_grammar(constraint.grammar, constraint.param, constraint.kind)
    return None if constraint is None else constraint.grammar


def constraint_of(
    response_format: ResponseFormat | None,
    regex: str | None = None,
    choice: Sequence[str] | None = None,
) -> Constraint | None:
    """Checked for size only; None for no constraint."""
    asked = []
    if response_format is not None and not isinstance(response_format, TextFormat):
        asked.append("response_format")
    asked += [name for name, given in (("regex", regex), ("choice", choice)) if given is not None]
    if len(asked) > 1:
        raise RequestError(
            f"{' and '.join(asked)} each say what the answer looks like; send one of them",
            param=asked[1],
        )
    if regex is not None:
        return Constraint("regex", "regex", _regex(regex))
    if choice is not None:
        return Constraint("choice", "choice", _choice(choice))
    match response_format:
        case JsonObjectFormat():
            grammar = json_grammar({"type": "object"})
            return Constraint("response_format", "json_object", grammar)
        case JsonSchemaFormat(json_schema=named):
            return Constraint("response_format", "json_schema", schema_grammar(named))
    return None


def check_contradictions(constraint: Constraint, body: SamplingFields) -> None:
    """A constrained answer ends where its grammar does, by an end-of-sequence token."""
    if body.min_tokens:
        raise RequestError(
            f"min_tokens cannot be kept with {constraint.param}, which may be complete before; "
            "leave it out",
            param="min_tokens",
        )
    if body.ignore_eos:
        raise RequestError(
            f"ignore_eos would keep an answer with {constraint.param} from ending; leave it out",
            param="ignore_eos",
        )


def schema_grammar(named: NamedSchema) -> str:
    """Raises RequestError for a schema that is none, or larger than it may be."""
    raw = bytes(named.schema)
    if len(raw) > MAX_SCHEMA_BYTES:
        raise _refusal(f"the schema has {len(raw)} bytes, at most {MAX_SCHEMA_BYTES} are taken")
    try:
        schema = msgspec.json.decode(raw)
    except RecursionError:
        schema = None
        depth = MAX_SCHEMA_DEPTH + 1
    else:
        depth = _depth(schema, MAX_SCHEMA_DEPTH)
    if depth > MAX_SCHEMA_DEPTH:
        raise _refusal(f"the schema is nested more than {MAX_SCHEMA_DEPTH} levels deep")
    if not isinstance(schema, dict | bool):
        raise _refusal("the schema is neither an object nor true or false")
    return json_grammar(schema)


def _refusal(why: str) -> RequestError:
    return RequestError(why, param="response_format")


def _depth(value: Any, most: int) -> int:
    """Levels of lists and objects; counting ends past `most`."""
    level: list[Any] = [value]
    depth = 0
    while depth <= most:
        inside: list[Any] = []
        for one in level:
            if isinstance(one, dict):
                inside += one.values()
            elif isinstance(one, list):
                inside += one
        if not any(isinstance(one, dict | list) for one in level):
            return depth
        level, depth = inside, depth + 1
    return depth


def _regex(pattern: str) -> str:
    if not pattern:
        raise RequestError("regex is empty; an answer would be too", param="regex")
    if len(pattern) > MAX_REGEX_CHARACTERS:
        raise RequestError(
            f"regex has {len(pattern)} characters, at most {MAX_REGEX_CHARACTERS} are taken",
            param="regex",
        )
    return regex_grammar(pattern)


def _choice(choices: Sequence[str]) -> str:
    if not choices:
        raise RequestError("choice is an empty list; send at least one", param="choice")
    if len(choices) > MAX_CHOICES:
        raise RequestError(
            f"{len(choices)} choices, at most {MAX_CHOICES} are taken", param="choice"
        )
    if "" in choices:
        raise RequestError("a choice is empty; an answer would be too", param="choice")
    if sum(map(len, choices)) > MAX_CHOICE_CHARACTERS:
        raise RequestError(
            f"the choices have more than {MAX_CHOICE_CHARACTERS} characters together",
            param="choice",
        )
    return choice_grammar(choices)
