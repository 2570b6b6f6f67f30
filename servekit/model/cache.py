"""The paged cache of keys and values."""

import torch

from servekit.config.shape import Shape

DTYPES: dict[str, torch.dtype] = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
}


class KvCache:
    """One tensor, `data`: [layers, 2 (keys, values), num_blocks, block_size, kv_heads, head_dim].

    A gather of slots gives [rows, tokens, kv_heads, head_dim] without a further copy. Block 0 is
    the null block: nobody owns it and nothing is written to it, so it stays zero. Padding is
    gathered from there, since a masked position still adds 0 * value and 0 * NaN is NaN. All other
    memory may hold anything. It is written once here, so that it is resident before serving starts.
    """

    def __init__(
        self, shape: Shape, num_blocks: int, block_size: int, dtype: str, device: str
    ) -> None:
        size = (shape.layers, 2, num_blocks, block_size, shape.kv_heads, shape.head_dim)
        self.data = torch.empty(size, dtype=DTYPES[dtype], device=device).zero_()
        self.num_blocks = num_blocks
        self.block_size = block_size

    @property
    def bytes(self) -> int:
        return self.data.numel() * self.data.element_size()

    @property
    def bytes_to_own(self) -> int:
        """Without the null block."""
        return self.bytes - self.bytes // self.num_blocks

    def layer(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of a layer, each [num_blocks, block_size, kv_heads, head_dim]."""
        return self.data[index, 0], self.data[index, 1]
