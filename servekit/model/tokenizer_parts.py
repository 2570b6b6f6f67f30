"""What a checkpoint says about its tokenizer, whichever format it says it in."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import tokenizers
from tokenizers.processors import TemplateProcessing

END_OF_TURN = frozenset(
    {
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end|>",
        "<|end_of_text|>",
        "<|endoftext|>",
        "<end_of_turn>",
        "<｜end▁of▁sentence｜>",
        "<EOT>",
    }
)
"""Tokens that end a turn or a document in the families served here, whatever metadata says."""


@dataclass(frozen=True, slots=True)
class TokenizerParts:
    """`backend` has its special tokens and adds begin and end of sequence where it should.

    `special_tokens` are the names a chat template knows them by (`bos_token`, ...), `templates`
    the chat templates by name (`default`, `tool_use`, ...).
    """

    backend: tokenizers.Tokenizer
    bos_id: int | None
    eos_ids: frozenset[int]
    special_tokens: Mapping[str, str]
    templates: Mapping[str, str]


def end_of_turn_ids(backend: tokenizers.Tokenizer) -> Iterable[int]:
    ids = map(backend.token_to_id, END_OF_TURN)
    return [token_id for token_id in ids if token_id is not None]


def wrap_sequence(backend: tokenizers.Tokenizer, bos: str | None, eos: str | None) -> None:
    """Make encoding with special tokens put `bos` before the text and `eos` after it."""
    names = [name for name in (bos, eos) if name is not None]
    backend.post_processor = TemplateProcessing(
        single=[*([bos] if bos else []), "$A", *([eos] if eos else [])],
        pair=None,
        special_tokens=[(name, backend.token_to_id(name)) for name in names],
    )
