"""The paged cache of keys and values."""

from collections.abc import Sequence

import torch

from servekit.config.shape import Shape

DTYPES: dict[str, torch.dtype] = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
}

COPIED_AT_ONCE = 64
"""Blocks that are copied to or from another memory in one go, and held once more meanwhile."""


class KvCache:
    """One tensor, `data`: [layers, 2 (keys, values), num_blocks, block_size, kv_heads, head_dim].

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
        empty = torch.empty(size, dtype=DTYPES[dtype], device=device, pin_memory=pinned)
        self.data = empty.zero_()
        self.num_blocks = num_blocks
        self.block_size = block_size

    @property
    def bytes(self) -> int:
        return self.data.numel() * self.data.element_size()

    @property
    def bytes_to_own(self) -> int:
        """Without the null block."""
        return self.bytes - self.bytes // self.num_blocks

    @property
    def num_groups(self) -> int:
        return 1 + max(group for group, _ in self.places.values())

    def group_of(self, layer: int) -> int:
        return self.places[layer][0]

    def layer(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of a layer, each [num_blocks, block_size, kv_heads, head_dim]."""
        index = self.places[layer][1]
        return self.data[index, 0], self.data[index, 1]

    def copy_within(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Blocks (from, to); all are read before any is written."""
        if pairs:
            self._write(self, pairs)

    def copy_from(self, other: "KvCache", pairs: Sequence[tuple[int, int]]) -> None:
        """Blocks (from, to) of a cache alike in all but its number of blocks and its memory."""
        for start in range(0, len(pairs), COPIED_AT_ONCE):
            self._write(other, pairs[start : start + COPIED_AT_ONCE])

    def _write(self, source: "KvCache", pairs: Sequence[tuple[int, int]]) -> None:
        read, write = zip(*pairs, strict=True)
        blocks = source.data.index_select(2, torch.tensor(read, device=source.data.device))
        here = torch.tensor(write, device=self.data.device)
        self.data.index_copy_(2, here, blocks.to(self.data.device))
