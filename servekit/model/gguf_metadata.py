"""The key-value header of a GGUF file.

`gguf.GGUFReader` wraps every string of a vocabulary in several numpy views: ten seconds for 262,144
tokens. Reading the header front to back takes a tenth of one.
"""

import mmap
import struct
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gguf.constants import GGUF_MAGIC, GGUFValueType

from servekit.errors import WeightsError

_FORMATS = {
    GGUFValueType.UINT8: "B",
    GGUFValueType.INT8: "b",
    GGUFValueType.UINT16: "H",
    GGUFValueType.INT16: "h",
    GGUFValueType.UINT32: "I",
    GGUFValueType.INT32: "i",
    GGUFValueType.FLOAT32: "f",
    GGUFValueType.BOOL: "?",
    GGUFValueType.UINT64: "Q",
    GGUFValueType.INT64: "q",
    GGUFValueType.FLOAT64: "d",
}
_LENGTH = struct.Struct("<Q")
_TYPE = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """`size` is outermost dimension first; `kind` a number of `GGMLQuantizationType`; `offset` is
    from the beginning of the file."""

    name: str
    size: tuple[int, ...]
    kind: int
    offset: int


@dataclass(frozen=True, slots=True)
class GgufDirectory:
    metadata: dict[str, Any]
    tensors: list[GgufTensor]


def read_metadata(path: Path) -> dict[str, Any]:
    """All metadata of a little-endian GGUF file of version 2 or 3, arrays as lists.

    Raises WeightsError for a file that is not one, or ends inside its header.
    """
    return read_directory(path).metadata


def read_directory(path: Path) -> GgufDirectory:
    """All that comes before the tensors; raises as `read_metadata` does."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            metadata, end = _header(data)
            return _directory(data, metadata, end)
    except (struct.error, ValueError, IndexError, TypeError, ZeroDivisionError) as error:
        raise WeightsError(
            f"{path} is not a whole GGUF file ({error}); fetch it again or name another"
        ) from error


def _directory(data: mmap.mmap, metadata: dict[str, Any], offset: int) -> GgufDirectory:
    found = []
    for _ in range(_LENGTH.unpack_from(data, 8)[0]):
        name, offset = _string(data, offset)
        dimensions = _TYPE.unpack_from(data, offset)[0]
        if dimensions == 0:
            raise ValueError(f"tensor {name} has no dimensions")
        layout = struct.Struct(f"<{dimensions}QIQ")
        *extent, kind, start = layout.unpack_from(data, offset + 4)
        offset += 4 + layout.size
        found.append(GgufTensor(name, tuple(reversed(extent)), kind, start))
    alignment = metadata.get("general.alignment", 32)
    begin = -(-offset // alignment) * alignment
    return GgufDirectory(
        metadata, [replace(tensor, offset=begin + tensor.offset) for tensor in found]
    )


def _header(data: mmap.mmap) -> tuple[dict[str, Any], int]:
    """The metadata, and where it ends."""
    magic, version = struct.unpack_from("<II", data, 0)
    if magic != GGUF_MAGIC:
        raise ValueError("it does not begin with GGUF")
    if version not in (2, 3):
        raise ValueError(f"version {version}, where 2 and 3 are known")
    count = _LENGTH.unpack_from(data, 16)[0]
    offset = 24
    metadata: dict[str, Any] = {}
    for _ in range(count):
        key, offset = _string(data, offset)
        kind = _TYPE.unpack_from(data, offset)[0]
        metadata[key], offset = _value(data, offset + 4, kind)
    return metadata, offset


def _value(data: mmap.mmap, offset: int, kind: int) -> tuple[Any, int]:
    """The value at `offset`, and where the next one begins."""
    if kind == GGUFValueType.STRING:
        return _string(data, offset)
    if kind != GGUFValueType.ARRAY:
        number = struct.Struct("<" + _FORMATS[GGUFValueType(kind)])
        return number.unpack_from(data, offset)[0], offset + number.size
    kind = _TYPE.unpack_from(data, offset)[0]
    count = _LENGTH.unpack_from(data, offset + 4)[0]
    offset += 12
    if count > len(data):
        raise ValueError(f"an array of {count} values in {len(data)} bytes")
    if kind not in (GGUFValueType.STRING, GGUFValueType.ARRAY):
        numbers = struct.Struct(f"<{count}{_FORMATS[GGUFValueType(kind)]}")
        return list(numbers.unpack_from(data, offset)), offset + numbers.size
    values = []
    for _ in range(count):
        value, offset = _value(data, offset, kind)
        values.append(value)
    return values, offset


def _string(data: mmap.mmap, offset: int) -> tuple[str, int]:
    length = _LENGTH.unpack_from(data, offset)[0]
    start = offset + _LENGTH.size
    end = start + length
    if end > len(data):
        raise ValueError(f"a string of {length} bytes runs past the end")
    return data[start:end].decode("utf-8", errors="replace"), end
