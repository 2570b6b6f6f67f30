"""The paged cache of keys and values."""

import torch

from servekit.config.schema import Shape

DTYPES: dict[str, torch.dtype] = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
}


class KvCache:
    """One tensor, `data`: [layers, 2 (keys, values), num_blocks, block_size, kv_heads, head_dim].

    A gather of whole blocks gives [rows, tokens, kv_heads, head_dim] without a further copy. Block
    0 is the null block: nobody owns it, tables are padded with it, and it stays zero, so that a
    masked position adds 0 * 0. For the same reason `begin` zeroes a block that is not filled at
    once: memory of an earlier owner may hold NaN, and 0 * NaN is NaN.
    """

    def __init__(
        self, shape: Shape, num_blocks: int, block_size: int, dtype: str, device: str
    ) -> None:
        size = (shape.layers, 2, num_blocks, block_size, shape.kv_heads, shape.head_dim)
        self.data = torch.zeros(size, dtype=DTYPES[dtype], device=device)
        self.num_blocks = num_blocks
        self.block_size = block_size

    @property
    def bytes(self) -> int:
        return self.data.numel() * self.data.element_size()

    def layer(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of a layer, each [num_blocks, block_size, kv_heads, head_dim]."""
        keys, values = self.data[index]
        return keys, values

    def begin(self, blocks: torch.Tensor) -> None:
        """Zero the blocks, int64 [n], in every layer, before their first token is written."""
        self.data.index_fill_(2, blocks, 0)
