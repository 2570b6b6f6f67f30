"""How much text one token can stand for at most, so that what is far too long is not tokenised."""

import json
from typing import Any

import tokenizers

LOSSLESS = {"ByteLevel", "Digits", "Metaspace", "Punctuation", "UnicodeScripts"}
"""Pre-tokenizers that keep every character."""

COMPOSED = 4
"""Characters that NFC, or NFKC, may make into one, at most."""


def longest_token(backend: tokenizers.Tokenizer, pieces: list[bytes]) -> int | None:
    """Characters; None where a tokenizer may leave text out, so that there is no bound."""
    if any(one.lstrip or one.rstrip for one in backend.get_added_tokens_decoder().values()):
        return None
    splits = _steps(backend.pre_tokenizer, "pretokenizers")
    covers_all = getattr(backend.model, "byte_fallback", False) or any(
        step["type"] == "ByteLevel" for step in splits
    )
    norms = _steps(backend.normalizer, "normalizers")
    if not (covers_all and all(map(_keeps, splits)) and all(map(_shrinks_little, norms))):
        return None
    composed = any(step["type"] in ("NFC", "NFKC") for step in norms)
    return max(map(len, pieces), default=1) * (COMPOSED if composed else 1)


def _steps(part: Any, key: str) -> list[dict[str, Any]]:
    if part is None:
        return []
    state = json.loads(part.__getstate__())
    return state[key] if state["type"] == "Sequence" else [state]


def _keeps(step: dict[str, Any]) -> bool:
    if step["type"] == "Split":
        return bool(step["behavior"] != "Removed")
    return step["type"] in LOSSLESS


def _shrinks_little(step: dict[str, Any]) -> bool:
    if step["type"] == "Replace":
        return "String" in step["pattern"] and len(step["pattern"]["String"]) <= len(
            step["content"]
        )
    return step["type"] in ("NFC", "NFKC", "NFD", "NFKD", "Prepend")
