"""The tensor table of a GGUF file, and nothing else of it: no arrays, no numpy, a few milliseconds.

The metadata before it, a vocabulary of 262,144 words among it, is stepped over unread.
"""

import mmap
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path

from servekit.errors import WeightsError

MAGIC = b"GGUF"
STRING, ARRAY = 8, 9
NUMBER_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Sizes of the metadata types that are plain numbers, by their codes in the format."""

COUNT = struct.Struct("<Q")
TYPE = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class GgufSizes:
    """`values` by name of tensor; `bytes` of all of them as they lie in the file."""

    values: dict[str, int]
    bytes: int


def read_sizes(path: Path) -> GgufSizes:
    """Raises WeightsError for what is not a whole header, OSError for what cannot be read."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return sizes_in(data)
    except (struct.error, ValueError, KeyError) as error:
        raise WeightsError(f"{path} is not a whole GGUF file ({error}); fetch it again") from error


def sizes_in(data: mmap.mmap) -> GgufSizes:
    if data[:4] != MAGIC:
        raise ValueError("it does not begin with GGUF")
    (tensors, entries), offset = struct.unpack_from("<QQ", data, 8), 24
    for _ in range(entries):
        offset = after_string(data, offset)
        (kind,) = TYPE.unpack_from(data, offset)
        offset = after_value(data, offset + TYPE.size, kind)
    values = {}
    for _ in range(tensors):
        start, offset = offset + COUNT.size, after_string(data, offset)
        (dimensions,) = TYPE.unpack_from(data, offset)
        extent = struct.Struct(f"<{dimensions}Q")
        values[data[start:offset].decode()] = prod(extent.unpack_from(data, offset + TYPE.size))
        offset += TYPE.size + extent.size + TYPE.size + COUNT.size  # and kind, and place
    return GgufSizes(values, bytes=max(0, len(data) - offset))


def after_string(data: mmap.mmap, offset: int) -> int:
    return offset + COUNT.size + int(COUNT.unpack_from(data, offset)[0])


def after_value(data: mmap.mmap, offset: int, kind: int) -> int:
    if kind == STRING:
        return after_string(data, offset)
    if kind != ARRAY:
        return offset + NUMBER_BYTES[kind]
    (kind,) = TYPE.unpack_from(data, offset)
    (count,) = COUNT.unpack_from(data, offset + TYPE.size)
    offset += TYPE.size + COUNT.size
    if kind in NUMBER_BYTES:
        return offset + int(count) * NUMBER_BYTES[kind]
    if kind == STRING:
        return after_strings(data, offset, count)
    for _ in range(count):
        offset = after_value(data, offset, kind)
    return offset


def after_strings(data: mmap.mmap, offset: int, count: int) -> int:
    """The loop that a vocabulary goes through, word by word."""
    length_at = COUNT.unpack_from
    for _ in range(count):
        offset += 8 + length_at(data, offset)[0]
    return offset
