"""Grammars for the tiny model: a token is a byte, 257 and 258 end an answer."""

from typing import Any

from servekit.engine.local import LocalEngine
from servekit.engine.messages import Sampling
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
