"""Grammars for the tiny model: a token is a byte, 257 and 258 end an answer."""

from typing import Any

from servekit.engine.local import LocalEngine
from servekit.engine.messages import Sampling
from servekit.model.grammar import json_grammar, regex_grammar
from servekit.model.vocabulary import Vocabulary
from tests.engine.tiny import tiny_engine

ENDS = [257, 258]
BYTES = Vocabulary([bytes([byte]) for byte in range(256)] + [b""] * 3, ENDS)
"""Shorter than the tiny model's 300 ids: an embedding may be padded."""


def constrained_engine(**groups: dict[str, Any]) -> LocalEngine:
    engine = tiny_engine(**groups)
    engine.send(BYTES)
    return engine


def asking(grammar: str | None, seed: int = 0, **words: Any) -> Sampling:
    words = {"max_tokens": 100, "temperature": 1.0, **words}
    return Sampling(seed=seed, stop_token_ids=ENDS, grammar=grammar, **words)


def text(tokens: list[int]) -> str:
    """Raises for bytes that are no text."""
    return bytes(token for token in tokens if token not in ENDS).decode()


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"anyOf": [schema, {"type": "array", "items": schema}]}
    return schema


HOSTILE = {
    "a tree that refers to itself": json_grammar(
        {
            "$defs": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}}},
            "$ref": "#/$defs/n",
        }
    ),
    "alternatives of alternatives": json_grammar(deep(13)),
    "ten thousand values": json_grammar({"enum": [f"v{n}" for n in range(10_000)]}),
    "three thousand properties": json_grammar(
        {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(3000)}}
    ),
    "a thousand million items": json_grammar({"type": "array", "minItems": 10**9}),
    "a multiple": json_grammar({"type": "integer", "multipleOf": 99991, "minimum": 0}),
    "stars of stars": regex_grammar("((a*)*)*" * 200 + "b"),
    "a million": regex_grammar("(a{1000}){1000}"),
    "what an automaton doubles for": regex_grammar("(a|b)*a(a|b){300}"),
    "a window": regex_grammar(".{0,60000}x.{0,60000}y"),
    "letters": regex_grammar("\\p{L}{1,5000}[\\p{L}\\p{N}]{1,5000}"),
    "nested groups": regex_grammar("(" * 4000 + "a" + ")" * 4000),
    "brackets": json_grammar({"const": "[" * 60_000}),
}
