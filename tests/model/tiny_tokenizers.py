"""Tokenizers of a few hundred tokens, as Hugging Face folders and as GGUF files."""

import json
from pathlib import Path
from typing import Any

import gguf
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

TEXT = [
    "the quick brown fox jumps over the lazy dog, and then the other one",
    "def f(x):\n    return x + 1234567890\n\n\nprint('hello')",
    "naïve café, 你好世界 and привет мир; I'm you're WE'VE",
] * 3
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def byte_level(pre_tokenizer: pre_tokenizers.PreTokenizer | None = None, **model: Any) -> Tokenizer:
    """A byte-level BPE of the GPT-2 kind, trained on TEXT."""
    backend = Tokenizer(models.BPE(**model))
    words = pre_tokenizer or pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.pre_tokenizer = words
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(TEXT, trainer)
    return backend


def sentencepiece(space_prefix: bool = True) -> Tokenizer:
    """A BPE of the Llama 2 kind: spaces are ▁, unknown characters become bytes."""
    backend = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    spaces: list[Any] = [normalizers.Replace(" ", "▁")]
    ending: list[Any] = []
    if space_prefix:
        spaces.insert(0, normalizers.Prepend("▁"))
        ending.append(decoders.Strip(" ", 1, 0))
    backend.normalizer = normalizers.Sequence(spaces)
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *ending]
    )
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=["<unk>", "<s>", "</s>", *bytes_],
        show_progress=False,
        max_token_length=6,
    )
    backend.train_from_iterator([text[:60] for text in TEXT], trainer)
    state = json.loads(backend.to_str())
    control = ("<unk>", "<s>", "</s>")
    state["added_tokens"] = [t for t in state["added_tokens"] if t["content"] in control]
    return Tokenizer.from_str(json.dumps(state))


def save_folder(folder: Path, backend: Tokenizer, **files: dict[str, Any]) -> Path:
    """`files` by name without .json; tokenizer_config is what transformers needs at least."""
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast"} | files.pop("tokenizer_config", {})
    for name, content in {"tokenizer_config": config, **files}.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


def save_gguf(path: Path, backend: Tokenizer, pre: str | None = None, **metadata: Any) -> Path:
    """The same tokenizer as metadata; keys of `metadata` follow `tokenizer.`, dots as `__`."""
    state = json.loads(backend.to_str())
    vocabulary: dict[str, int] = state["model"]["vocab"]
    tokens = sorted(vocabulary, key=lambda token: vocabulary[token])
    control = {token["content"] for token in state["added_tokens"] if token["special"]}
    user = {token["content"] for token in state["added_tokens"]} - control
    kinds = [3 if token in control else 4 if token in user else 1 for token in tokens]
    merges = [tuple(merge) for merge in state["model"]["merges"]]
    writer = gguf.GGUFWriter(path, "llama")
    if state["model"]["byte_fallback"]:
        writer.add_tokenizer_model("llama")
        ranks = {left + right: rank for rank, (left, right) in reversed([*enumerate(merges)])}
        writer.add_token_scores([-float(ranks.get(token, len(merges))) for token in tokens])
        kinds = [6 if tokens[i].startswith("<0x") else kind for i, kind in enumerate(kinds)]
    else:
        writer.add_tokenizer_model("gpt2")
        writer.add_token_merges([" ".join(merge) for merge in merges])
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    for key, value in metadata.items():
        name = "tokenizer." + key.replace("__", ".")
        if isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        else:
            writer.add_string(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def user_defined(text: str) -> AddedToken:
    return AddedToken(text, special=False, normalized=False)
