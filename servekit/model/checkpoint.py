"""What is the same for every checkpoint file: tensors in it, and the shape that it claims."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from servekit.config.shape import Rope, Shape, YarnRope
from servekit.errors import WeightsError
from servekit.model.rope import yarn_attention_factor

FLOATS: dict[str, torch.dtype] = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}
QUANTIZED = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")
BLOCKS: dict[str, tuple[int, int]] = {
    kind: GGML_QUANT_SIZES[GGMLQuantizationType[kind]] for kind in (*FLOATS, *QUANTIZED)
}
"""Values and bytes of a block of each kind."""

CHUNK_VALUES = 1 << 20
"""Values decoded at a time: a few times 4 MiB of float32 on the way."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor in a file: `offset` and kind say where and how.

    `name` is what the file calls it, `canonical` what `Decoder.places` does. `size` is outermost
    dimension first. With `interleaved`, each head's `interleaved` rows are stored as (0, n / 2, 1,
    n / 2 + 1, ...): the pairs that rotary embedding turns, side by side.
    """

    name: str
    canonical: str
    size: tuple[int, ...]
    kind: str
    file: Path
    offset: int
    interleaved: int | None = None

    @property
    def num_bytes(self) -> int:
        values, size = BLOCKS[self.kind]
        return math.prod(self.size[:-1]) * (self.size[-1] // values * size) if self.size else size


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """`facts` is what the file says of its shape, see `facts_of`; it may leave things out.

    `names` gives what the file would call a tensor of a canonical name. `unit_offset_added`: norm
    weights already have the 1 of Gemma's 1 + weight.
    """

    path: Path
    tensors: list[Stored]
    facts: Mapping[str, Any]
    names: Mapping[str, str]
    unit_offset_added: bool


def chunks(stored: Stored) -> Iterator[tuple[int, torch.Tensor]]:
    """First row and decoded rows [rows, width], in order; a vector is one row, or one column if its
    rows are interleaved.

    Raises WeightsError where the file ends too soon.
    """
    height = stored.size[0] if len(stored.size) > 1 or stored.interleaved else 1
    width = math.prod(stored.size) // height
    values, size = BLOCKS[stored.kind]
    row_bytes = width // values * size
    unit = stored.interleaved or 1
    step = max(CHUNK_VALUES // width // unit, 1) * unit
    with stored.file.open("rb") as file:
        file.seek(stored.offset)
        for first in range(0, height, step):
            rows = min(step, height - first)
            raw = np.empty((rows, row_bytes), np.uint8)
            if file.readinto(raw.data) < raw.nbytes:
                raise WeightsError(
                    f"{stored.file} ends inside tensor {stored.name}; fetch the file again"
                )
            if stored.interleaved:
                pairs = raw.reshape(-1, stored.interleaved // 2, 2, row_bytes)
                raw = np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows, row_bytes)
            yield first, _decode(raw, stored.kind)


def _decode(raw: np.ndarray, kind: str) -> torch.Tensor:
    if kind in FLOATS:
        return torch.from_numpy(raw).view(FLOATS[kind])
    return torch.from_numpy(dequantize(raw, GGMLQuantizationType[kind]))


def facts_of(shape: Shape) -> dict[str, Any]:
    """The shape as a flat table, with what a null stands for filled in.

    What lies beside the decoder is left out: it is not loaded.
    """
    beside = {"other_parameters", "mtp_layers"}
    facts = shape.model_dump(exclude={"rope", "local_rope", *beside})
    facts["attention_scale"] = shape.attention_scale or shape.head_dim**-0.5
    if shape.sliding_window is None:
        del facts["full_attention_layers"]
    moe = facts.pop("moe") or {"experts": 0}
    facts |= {f"moe.{key}": value for key, value in moe.items()}
    facts |= _rope_facts("rope", shape.rope)
    if shape.sliding_window is not None:
        facts |= _rope_facts("local_rope", shape.local_rope or shape.rope)
    return facts


def _rope_facts(prefix: str, rope: Rope) -> dict[str, Any]:
    facts = {f"{prefix}.{key}": value for key, value in rope.model_dump().items()}
    if isinstance(rope, YarnRope):
        facts[f"{prefix}.attention_factor"] = yarn_attention_factor(rope)
    return facts


def differences(configured: Shape, facts: Mapping[str, Any]) -> list[str]:
    """Where the configured shape contradicts what a file says of itself, one line each."""
    ours = facts_of(configured)
    return [
        f"{key} is {_plain(ours[key])} in the configuration and {_plain(theirs)} in the file"
        for key, theirs in facts.items()
        if key in ours and not _agree(key, ours[key], theirs)
    ]


def _agree(key: str, ours: Any, theirs: Any) -> bool:
    if key == "max_position_embeddings":
        return bool(ours <= theirs)  # less than the file's is a choice
    if isinstance(ours, float) and isinstance(theirs, (int, float)):
        return math.isclose(ours, theirs, rel_tol=1e-5)
    return bool(ours == theirs)


def _plain(value: Any) -> str:
    return f"{value:.7g}" if isinstance(value, float) else str(value)
