"""The paged cache of keys and values."""

from collections.abc import Sequence

import torch

from servekit.config.shape import Shape
from servekit.kernels.kv import LayerCache

DTYPES: dict[str, torch.dtype] = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
}
CACHED: dict[str, torch.dtype] = {**DTYPES, "fp8": torch.float8_e4m3fn, "int8": torch.int8}
"""What keys and values may be stored in."""

COPIED_AT_ONCE = 64
"""Blocks that are copied to or from another memory in one go, and held once more meanwhile."""


class KvCache:
    """One tensor, `data`: [layers, 2 (keys, values), num_blocks, block_size, kv_heads, head_dim];
    int8 has `scales`, float32 [layers, 2, num_blocks, block_size, kv_heads], beside it.

    `groups` are the layers that share a block table. All groups draw their blocks from one pool, so
    a block is of one group at a time, and `data` has as many layers as the largest of them. Without
    groups there is one table for all layers.

    A gather of slots gives [rows, tokens, kv_heads, head_dim] without a further copy. Block 0 is
    the null block: nobody owns it and nothing is written to it, so it stays zero. Padding is
    gathered from there, since a masked position still adds 0 * value and 0 * NaN is NaN. (In memory
    of the host, which no step reads, it is a block like any other.) All other memory may hold
    anything. It is written once here, so that it is resident before serving starts.
    """

    def __init__(
        self,
        shape: Shape,
        num_blocks: int,
        block_size: int,
        dtype: str,
        device: str,
        *,
        groups: Sequence[Sequence[int]] = (),
        pinned: bool = False,
    ) -> None:
        """`pinned` is for memory of the host that a device copies from and to by itself."""
        groups = groups or [range(shape.layers)]
        self.places = {
            layer: (group, index)
            for group, layers in enumerate(groups)
            for index, layer in enumerate(layers)
        }
        """Of each layer: which block table is its own, and where it is in `data`."""
        layers = max(map(len, groups))
        size = (layers, 2, num_blocks, block_size, shape.kv_heads, shape.head_dim)
        stored = CACHED[dtype]
        self.data = _zeros(size, stored, device, pinned)
        self.scales: torch.Tensor | None = None
        if stored == torch.int8:
            self.scales = _zeros(size[:-1], torch.float32, device, pinned)
        self.num_blocks = num_blocks
        self.block_size = block_size

    @property
    def bytes(self) -> int:
        return sum(part.nbytes for part in self._parts)

    @property
    def bytes_to_own(self) -> int:
        """Without the null block."""
        return self.bytes - self.bytes // self.num_blocks

    @property
    def num_groups(self) -> int:
        return 1 + max(group for group, _ in self.places.values())

    def group_of(self, layer: int) -> int:
        return self.places[layer][0]

    def layer(self, layer: int) -> LayerCache:
        """Keys and values of a layer, each [num_blocks, block_size, kv_heads, head_dim]."""
        index = self.places[layer][1]
        keys, values = self.data[index]
        if self.scales is None:
            return LayerCache(keys, values)
        return LayerCache(keys, values, *self.scales[index])

    @property
    def _parts(self) -> list[torch.Tensor]:
        """What a block consists of; fp8 as its bits, for torch copies none of it by index."""
        data = self.data.view(torch.uint8) if self.data.element_size() == 1 else self.data
        return [data] if self.scales is None else [data, self.scales]

    def copy_within(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Blocks (from, to); all are read before any is written."""
        if pairs:
            self._write(self, pairs)

    def copy_from(self, other: "KvCache", pairs: Sequence[tuple[int, int]]) -> None:
        """Blocks (from, to) of a cache alike in all but its number of blocks and its memory."""
        for start in range(0, len(pairs), COPIED_AT_ONCE):
            self._write(other, pairs[start : start + COPIED_AT_ONCE])

    def _write(self, source: "KvCache", pairs: Sequence[tuple[int, int]]) -> None:
        read, write = (torch.tensor(blocks) for blocks in zip(*pairs, strict=True))
        for part, own in zip(source._parts, self._parts, strict=True):
            blocks = part.index_select(2, read.to(part.device))
            own.index_copy_(2, write.to(own.device), blocks.to(own.device))


def _zeros(size: tuple[int, ...], dtype: torch.dtype, device: str, pinned: bool) -> torch.Tensor:
    return torch.empty(size, dtype=dtype, device=device, pin_memory=pinned).zero_()
