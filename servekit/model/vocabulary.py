"""What a grammar must know of a tokenizer: the bytes that each token adds to a text."""

from collections.abc import Iterable
from typing import Protocol

import msgspec


class Tokenizer(Protocol):
    eos_ids: frozenset[int]

    def token_bytes(self, token_id: int, skip_special_tokens: bool = True) -> bytes: ...


class Vocabulary(msgspec.Struct, tag="vocabulary", frozen=True):
    """`pieces` is indexed by token id; b"" stands for what never may be part of a constrained text:
    control tokens, and ids that mean nothing. `eos_ids` may end one."""

    pieces: list[bytes]
    eos_ids: list[int]


def vocabulary_of(tokenizer: Tokenizer, size: int) -> Vocabulary:
    """Of the ids below `size`, which both tokenizer and embedding have."""
    ends: Iterable[int] = sorted(tokenizer.eos_ids)
    return Vocabulary(
        pieces=[tokenizer.token_bytes(token) for token in range(size)],
        eos_ids=[token for token in ends if token < size],
    )
