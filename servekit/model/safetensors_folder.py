"""A Hugging Face folder: config.json and safetensors files, one or sharded.

The files are read, not mapped: pages of a map count as memory of the process until the kernel drops
them, and loading would seem to take the weights twice.
"""

import json
import re
from pathlib import Path
from typing import Any

from servekit.config.hf import read_config, read_quantized, read_shape
from servekit.config.shape import Shape
from servekit.errors import ConfigError, WeightsError
from servekit.model.checkpoint import BLOCKS, Checkpoint, Stored, facts_of

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
"""Alone where there is no index: beside it lie consolidated.safetensors and adapters."""

PREFIXES = ("model.language_model.", "language_model.model.", "language_model.", "model.")
"""Before a tensor's name in its decoder; the first ones are of multimodal Gemma 3."""

SPELLINGS = {
    r"\.block_sparse_moe\.": ".mlp.",
    r"(\.experts\.\d+)\.w1\.": r"\1.gate_proj.",
    r"(\.experts\.\d+)\.w3\.": r"\1.up_proj.",
    r"(\.experts\.\d+)\.w2\.": r"\1.down_proj.",
    r"\.mlp\.(shared_experts|shared_mlp)\.": ".mlp.shared_expert.",
    r"\.mlp\.router\.gate\.": ".mlp.gate.",
    r"\.mlp\.(expert_bias|e_score_correction_bias)$": ".mlp.gate.e_score_correction_bias",
}
"""What families call parts of a mixture of experts, and Qwen does: Mixtral, DeepSeek, Hunyuan."""

MAX_HEADER_BYTES = 100 << 20


def read_folder(folder: Path) -> Checkpoint:
    """Tensors of all its safetensors files, named without their prefix.

    Raises WeightsError for a folder, file or header that is not whole.
    """
    tensors = [stored for file in _files(folder) for stored in _header(file)]
    names = {stored.canonical: stored.name for stored in tensors}
    return Checkpoint(folder, tensors, _facts(folder), names, unit_offset_added=False)


def _files(folder: Path) -> list[Path]:
    index = folder / INDEX
    if not index.is_file():
        whole = folder / SINGLE
        files = [whole] if whole.is_file() else sorted(folder.glob("*.safetensors"))
        if not files:
            there = ", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "nothing"
            raise WeightsError(f"{folder} holds no *.safetensors file; there is {there}")
        return files
    try:
        names = sorted({*map(str, json.loads(index.read_text())["weight_map"].values())})
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise WeightsError(f"{index} is not a weight map ({error}); fetch it again") from error
    absent = [name for name in names if not (folder / name).is_file()]
    if absent:
        raise WeightsError(
            f"{index} names {len(names)} files, of which {', '.join(absent)} are not there; "
            "fetch the folder again"
        )
    return [folder / name for name in names]


def _header(file: Path) -> list[Stored]:
    size = file.stat().st_size
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        if size < 8 or length > min(size - 8, MAX_HEADER_BYTES):
            raise WeightsError(
                f"{file} ({size} bytes) is not a whole safetensors file; fetch it again"
            )
        try:
            header: dict[str, Any] = json.loads(opened.read(length))
        except ValueError as error:
            raise WeightsError(f"the header of {file} is not JSON; fetch it again") from error
    try:
        header.pop("__metadata__", None)
        tensors = [_stored(file, name, entry, 8 + length) for name, entry in header.items()]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise WeightsError(
            f"the header of {file} is not that of a safetensors file ({error!r}); fetch it again"
        ) from error
    cut = [tensor.name for tensor, _, end in tensors if 8 + length + end > size]
    if cut:
        raise WeightsError(
            f"{file} is truncated: {size} bytes do not reach the end of {_some(cut)}; "
            "fetch it again"
        )
    for tensor, begin, end in tensors:
        if begin < 0 or (tensor.kind in BLOCKS and tensor.num_bytes != end - begin):
            raise WeightsError(
                f"{file} has {end - begin} bytes for {tensor.name}, {list(tensor.size)} in "
                f"{tensor.kind}; fetch it again"
            )
    return [tensor for tensor, _, _ in tensors]


def _stored(file: Path, name: str, entry: dict[str, Any], start: int) -> tuple[Stored, int, int]:
    begin, end = map(int, entry["data_offsets"])
    stored = Stored(
        name=name,
        canonical=_canonical(name),
        size=tuple(map(int, entry["shape"])),
        kind=str(entry["dtype"]),
        file=file,
        offset=start + begin,
    )
    return stored, begin, end


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _canonical(name: str) -> str:
    prefix = next((prefix for prefix in PREFIXES if name.startswith(prefix)), "")
    name = name.removeprefix(prefix)
    if ".mlp." in name or ".block_sparse_moe." in name:
        for pattern, ours in SPELLINGS.items():
            name = re.sub(pattern, ours, name)
    return name


def _facts(folder: Path) -> dict[str, Any]:
    if not (folder / "config.json").is_file():
        return {}
    try:
        config = read_config(str(folder))
        quantized = read_quantized(config)
        facts = facts_of(Shape.model_validate(read_shape(config)))
    except (ConfigError, ValueError) as error:
        raise WeightsError(f"{folder / 'config.json'}: {error}") from error
    if quantized is not None:
        raise WeightsError(
            f"{folder} holds weights quantized to {quantized['weights']}; this release loads "
            "safetensors in bfloat16, float16 or float32, or a .gguf file"
        )
    return facts
