"""Token ids back to text, byte for byte, as they arrive.

A token is a fixed string of bytes whatever stands beside it, so text is their concatenation read as
UTF-8; a character cut in two by a token boundary waits for its rest, and nothing else does.
"""

import codecs
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import tokenizers

from servekit.errors import WeightsError

WORD_START = "\u2581"
"""How SentencePiece writes a space."""


def _byte_alphabet() -> dict[int, int]:
    """GPT-2's printable stand-in for each byte, as stand-in -> byte.

    Bytes that print are themselves; the others are 256 and on, in order (Radford et al. 2019).
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {byte: byte for byte in printable} | {256 + i: byte for i, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()
_ALPHABET = frozenset(map(chr, _BYTE_OF))
_BYTE_TOKENS = {f"<0x{byte:02X}>": bytes([byte]) for byte in range(256)}


@dataclass(frozen=True, slots=True)
class TokenBytes:
    """What each id stands for.

    `pieces` is indexed by id, b"" where the vocabulary has a hole. `special` ids are control
    tokens. `strips_space`: encoding puts a space before the text, decoding takes it off again.
    """

    pieces: list[bytes]
    special: frozenset[int]
    strips_space: bool

    def piece(self, token_id: int, skip_special_tokens: bool) -> bytes:
        """b"" also for an id past the end: embeddings are padded beyond the vocabulary."""
        if not 0 <= token_id < len(self.pieces):
            return b""
        if skip_special_tokens and token_id in self.special:
            return b""
        return self.pieces[token_id]


class TextStream:
    """Text of one growing sequence of ids.

    What `push` and `finish` return, concatenated, is what decoding all ids at once gives: invalid
    bytes become U+FFFD exactly as `bytes.decode(errors="replace")` makes them.
    """

    __slots__ = ("_decoder", "_skip_special_tokens", "_strips_space", "_table")

    def __init__(
        self, table: TokenBytes, *, skip_special_tokens: bool = True, continues_text: bool = False
    ) -> None:
        """`continues_text`: the ids go on from other text, so a leading space is part of them."""
        self._table = table
        self._skip_special_tokens = skip_special_tokens
        self._strips_space = table.strips_space and not continues_text
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, ids: Iterable[int]) -> str:
        """The characters that these ids complete."""
        piece, skip = self._table.piece, self._skip_special_tokens
        data = b"".join([piece(token_id, skip) for token_id in ids])
        if self._strips_space and data:
            self._strips_space = False
            data = data.removeprefix(b" ")
        return self._decoder.decode(data)

    def finish(self) -> str:
        """What is left: U+FFFD for a character that never came to its end, or nothing."""
        return self._decoder.decode(b"", final=True)


def token_table(backend: tokenizers.Tokenizer) -> TokenBytes:
    """The bytes of every token, by the rule that the tokenizer's own decoder follows.

    Raises WeightsError for a decoder that is neither byte-level nor SentencePiece.
    """
    steps = _decoder_steps(backend)
    kinds = {step["type"] for step in steps}
    vocabulary = backend.get_vocab(with_added_tokens=True)
    pieces = [b""] * (max(vocabulary.values(), default=-1) + 1)
    if "ByteLevel" in kinds:
        for token, token_id in vocabulary.items():
            pieces[token_id] = _byte_level(token)
    elif _writes_spaces(steps):
        bytes_of = _BYTE_TOKENS if "ByteFallback" in kinds else {}
        for token, token_id in vocabulary.items():
            pieces[token_id] = bytes_of.get(token) or token.replace(WORD_START, " ").encode()
    else:
        raise WeightsError(
            f"the tokenizer decodes with {', '.join(sorted(kinds)) or 'nothing'}; supported are "
            "ByteLevel and SentencePiece (Metaspace, or Replace of ▁ with ByteFallback)"
        )
    added = backend.get_added_tokens_decoder()
    for token_id, entry in added.items():
        content = entry.content
        spaced = content if "ByteLevel" in kinds else content.replace(WORD_START, " ")
        pieces[token_id] = spaced.encode()
    return TokenBytes(
        pieces=pieces,
        special=frozenset(token_id for token_id, token in added.items() if token.special),
        strips_space=any(map(_strips_space, steps)),
    )


def _decoder_steps(backend: tokenizers.Tokenizer) -> list[dict[str, Any]]:
    if backend.decoder is None:
        return []
    decoder = json.loads(backend.decoder.__getstate__())
    return decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]


def _writes_spaces(steps: list[dict[str, Any]]) -> bool:
    return any(
        step["type"] == "Metaspace"
        or (step["type"] == "Replace" and step["pattern"] == {"String": WORD_START})
        for step in steps
    )


def _strips_space(step: dict[str, Any]) -> bool:
    if step["type"] == "Metaspace":
        return bool(step.get("prepend_scheme", "always") != "never")
    return bool(step["type"] == "Strip" and step["content"] == " " and step["start"] > 0)


def _byte_level(token: str) -> bytes:
    if not _ALPHABET.issuperset(token):
        return token.encode()
    return token.translate(_BYTE_OF).encode("latin-1")
