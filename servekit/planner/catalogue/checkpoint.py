"""What is in a file of weights: tensors, dtypes, bytes, and the numbers of its architecture."""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from servekit.errors import WeightsError
from servekit.spec.model import GIB

Scalar = int | float | str | bool


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """`bytes` is what it takes in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    path: Path
    format: str
    tensors: tuple[TensorInfo, ...]
    numbers: Mapping[str, Scalar]

    @property
    def parameters(self) -> int:
        return sum(prod(tensor.shape) for tensor in self.tensors)

    @property
    def bytes(self) -> int:
        return sum(tensor.bytes for tensor in self.tensors)

    def to_json(self) -> dict[str, Any]:
        return {
            "path": str(self.path),
            "format": self.format,
            "parameters": self.parameters,
            "bytes": self.bytes,
            "numbers": dict(self.numbers),
            "tensors": [
                {
                    "name": tensor.name,
                    "dtype": tensor.dtype,
                    "shape": list(tensor.shape),
                    "bytes": tensor.bytes,
                }
                for tensor in self.tensors
            ],
        }


def read_safetensors(folder: Path) -> Checkpoint:
    """A Hugging Face folder; only headers are read. Raises WeightsError for what is not one."""
    files = sorted(folder.glob("*.safetensors"))
    config = folder / "config.json"
    if not files or not config.is_file():
        raise WeightsError(
            f"{folder} is neither a .gguf file nor a folder with config.json and *.safetensors"
        )
    try:
        numbers = scalars(json.loads(config.read_text(encoding="utf-8")))
    except ValueError as error:
        raise WeightsError(f"{config} is not JSON: {error}") from error
    tensors = [tensor for file in files for tensor in safetensors_header(file)]
    return Checkpoint(folder, f"safetensors, {len(files)} file(s)", tuple(tensors), numbers)


def safetensors_header(file: Path) -> list[TensorInfo]:
    """Eight bytes of length, little-endian, and that much JSON."""
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if length > file.stat().st_size:
            raise WeightsError(f"{file} is not a whole safetensors file; fetch it again")
        try:
            header = json.loads(stream.read(length))
            return [
                TensorInfo(
                    name=name,
                    dtype=fields["dtype"],
                    shape=tuple(fields["shape"]),
                    bytes=fields["data_offsets"][1] - fields["data_offsets"][0],
                )
                for name, fields in header.items()
                if name != "__metadata__"
            ]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise WeightsError(f"{file} has no safetensors header: {error}") from error


def scalars(tree: Mapping[str, Any]) -> dict[str, Scalar]:
    """The plain values of a mapping, and those of a nested `text_config` too."""
    inner = tree.get("text_config")
    whole = {**tree, **inner} if isinstance(inner, Mapping) else tree
    return {name: value for name, value in whole.items() if isinstance(value, Scalar)}


def checkpoint_page(checkpoint: Checkpoint) -> RenderableType:
    title = Text(str(checkpoint.path), style="bold")
    facts = (
        f"{checkpoint.format}: {len(checkpoint.tensors)} tensors, "
        f"{checkpoint.parameters:,} parameters, {checkpoint.bytes / GIB:.3f} GiB"
    )
    return Group(
        title,
        Text(facts),
        Text("\nDtypes", style="bold"),
        dtypes_table(checkpoint.tensors),
        Text("\nTensors, layers together", style="bold"),
        tensors_table(checkpoint.tensors),
        Text("\nNumbers", style="bold"),
        numbers_table(checkpoint.numbers),
    )


def grid(*headings: str, right: tuple[int, ...] = ()) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="right" if place in right else "left", overflow="fold")
    return table


def dtypes_table(tensors: Iterable[TensorInfo]) -> Table:
    table = grid("dtype", "tensors", "parameters", "MiB", right=(1, 2, 3))
    groups: dict[str, list[TensorInfo]] = defaultdict(list)
    for tensor in tensors:
        groups[tensor.dtype].append(tensor)
    for dtype, members in sorted(groups.items()):
        size = sum(member.bytes for member in members)
        total = sum(prod(member.shape) for member in members)
        table.add_row(dtype, str(len(members)), f"{total:,}", f"{size / 2**20:,.1f}")
    return table


def tensors_table(tensors: Iterable[TensorInfo]) -> Table:
    """Tensors of all layers that are alike in name, dtype and shape share a line."""
    table = grid("name", "count", "dtype", "shape", "MiB", right=(1, 4))
    groups: dict[tuple[str, str, tuple[int, ...]], list[TensorInfo]] = defaultdict(list)
    for tensor in tensors:
        groups[re.sub(r"\.\d+\.", ".*.", tensor.name), tensor.dtype, tensor.shape].append(tensor)
    for (name, dtype, shape), members in groups.items():
        size = sum(member.bytes for member in members)
        text = " x ".join(map(str, shape))
        table.add_row(name, str(len(members)), dtype, text, f"{size / 2**20:,.1f}")
    return table


def numbers_table(numbers: Mapping[str, Scalar]) -> Table:
    table = grid("key", "value")
    for name, value in numbers.items():
        text = " ".join(str(value).split())
        table.add_row(name, text if len(text) <= 60 else f"{text[:60]}...")
    return table
