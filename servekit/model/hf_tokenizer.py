"""The tokenizer of a Hugging Face folder."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from servekit.errors import WeightsError
from servekit.model.tokenizer_parts import TokenizerParts, end_of_turn_ids

_NAMES = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)


def read_hf_tokenizer(folder: Path) -> TokenizerParts:
    """From tokenizer.json and, where they exist, the files that go with it.

    What goes around a text is what tokenizer.json says; `add_bos_token` in tokenizer_config.json is
    for slow tokenizers, and transformers ignores it here too.

    Raises WeightsError for a folder without tokenizer.json, or with a file that is not JSON.
    """
    file = folder / "tokenizer.json"
    if not file.is_file():
        there = ", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "nothing"
        raise WeightsError(
            f"{folder} has no tokenizer.json (there is {there}); save the tokenizer with "
            "`save_pretrained` of a fast tokenizer, or use a GGUF file, which carries its own"
        )
    try:
        backend = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises a bare Exception for all that may be wrong
        raise WeightsError(f"{file} is not a tokenizer ({error}); fetch it again") from error
    # Limits that were set when the file was saved would cut prompts without a word.
    backend.no_truncation()
    backend.no_padding()
    config = _json(folder / "special_tokens_map.json") | _json(folder / "tokenizer_config.json")
    _add_missing(backend, config.get("added_tokens_decoder") or {})
    names = {name: text for name in _NAMES if (text := _content(config.get(name)))}
    bos, eos = names.get("bos_token"), names.get("eos_token")
    return TokenizerParts(
        backend=backend,
        bos_id=backend.token_to_id(bos) if bos else None,
        eos_ids=_eos_ids(folder, backend, eos),
        special_tokens=names,
        templates=_templates(folder, config.get("chat_template")),
    )


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise WeightsError(f"{path} is not JSON ({error}); fetch it again") from error
    if not isinstance(content, dict):
        raise WeightsError(f"{path} holds a {type(content).__name__}, not an object")
    return content


def _content(token: Any) -> str | None:
    """A special token is written as its text, or as an object with it."""
    return token.get("content") if isinstance(token, Mapping) else token


def _add_missing(backend: Tokenizer, declared: Mapping[str, Mapping[str, Any]]) -> None:
    """Tokens of tokenizer_config.json that tokenizer.json lacks, in the order of their ids."""
    known = backend.get_added_tokens_decoder()
    for token_id in sorted(map(int, declared)):
        if token_id not in known:
            token = declared[str(token_id)]
            flags = {key: token[key] for key in ("lstrip", "rstrip", "normalized") if key in token}
            special = bool(token.get("special"))
            backend.add_tokens([AddedToken(token["content"], special=special, **flags)])


def _eos_ids(folder: Path, backend: Tokenizer, eos: str | None) -> frozenset[int]:
    declared = [backend.token_to_id(eos)] if eos else []
    for name in ("generation_config.json", "config.json"):
        config = _json(folder / name)
        nested = (config.get("text_config") or {}).get("eos_token_id")
        ids = config.get("eos_token_id", nested)
        declared += ids if isinstance(ids, list) else [ids]
    special = {i for i, token in backend.get_added_tokens_decoder().items() if token.special}
    known = {token_id for token_id in declared if token_id is not None}
    return frozenset(known | (special & {*end_of_turn_ids(backend)}))


def _templates(folder: Path, declared: Any) -> dict[str, str]:
    """A file of its own wins over tokenizer_config.json, as it does in transformers."""
    templates: dict[str, str] = {}
    if isinstance(declared, str):
        templates["default"] = declared
    elif isinstance(declared, list):
        templates |= {entry["name"]: entry["template"] for entry in declared}
    if legacy := _json(folder / "chat_template.json").get("chat_template"):
        templates["default"] = legacy
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        templates[path.stem] = path.read_text(encoding="utf-8")
    if (path := folder / "chat_template.jinja").is_file():
        templates["default"] = path.read_text(encoding="utf-8")
    return templates
