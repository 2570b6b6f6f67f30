"""Random inputs of the kernels, made on the device."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

from benchmarks.gpu.bench import Bench
from servekit.kernels.attention import Lengths, TritonAttention
from servekit.kernels.kv import LayerCache, dequantise, quantise
from servekit.kernels.quantised_matmul import SCALE_BLOCK, QuantisedWeight

BLOCK_SIZE = 16
GROUP = 128
ROWS_AT_ONCE = 1 << 16
"""Tokens of the cache that are filled at once."""


class Contexts:
    """Rows over a paged cache of random content, its blocks dealt at random: (tokens now, tokens
    with the context) each, those with one token first."""

    def __init__(
        self,
        bench: Bench,
        rows: Sequence[tuple[int, int]],
        *,
        heads: int,
        kv_heads: int,
        head_dim: int,
        stored: torch.dtype = torch.bfloat16,
    ) -> None:
        self.rows, self.heads, self.head_dim = rows, heads, head_dim
        held = [-(-length // BLOCK_SIZE) for _, length in rows]
        device, total = bench.device, sum(held)
        size = (total + 1, BLOCK_SIZE, kv_heads, head_dim)
        self.cache = _filled(size, stored, device)
        dealt = (torch.randperm(total, device=device) + 1).int().split(held)
        self.table = torch.zeros(len(rows), max(held), dtype=torch.int32, device=device)
        for row, blocks in enumerate(dealt):
            self.table[row, : len(blocks)] = blocks
        counts = torch.tensor([count for count, _ in rows], device=device)
        self.lengths = Lengths(
            query_lens=[count for count, _ in rows],
            seq_lens=[length for _, length in rows],
            decodes=sum(count == 1 for count, _ in rows),
            query_starts=F.pad(counts.cumsum(0), (1, 0)).int(),
            contexts=torch.tensor([length for _, length in rows], device=device).int(),
        )
        self.query = bench.randn(int(counts.sum()), heads, head_dim)

    def ours(self) -> Callable[[], torch.Tensor]:
        attention = TritonAttention()
        (plan,) = attention.plans(
            self.lengths, [self.table], self.cache, window=None, dtype=self.query.dtype
        )
        scale = self.head_dim**-0.5
        return lambda: attention.attend(
            self.query, None, None, self.cache, plan, scale=scale, softcap=None
        )

    def gathered(self, row: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of a row as they are stored, [kv_heads, length, head_dim]."""
        length = self.rows[row][1]
        blocks = self.table[row, : -(-length // BLOCK_SIZE)].long()
        parts = []
        for stored, scales in (
            (self.cache.keys, self.cache.key_scales),
            (self.cache.values, self.cache.value_scales),
        ):
            own = None if scales is None else scales[blocks].flatten(0, 1)[:length]
            # fp8 has no indexing of its own
            raw = stored.view(torch.uint8)[blocks].view(stored.dtype).flatten(0, 1)[:length]
            parts.append(dequantise(raw, own, dtype).transpose(0, 1))
        return parts[0], parts[1]

    def attended(self) -> torch.Tensor:
        """By the library, in float32, row by row: [tokens, heads * head_dim]."""
        found, start = [], 0
        for row, (count, length) in enumerate(self.rows):
            query = self.query[start : start + count].float().transpose(0, 1)[None]
            start += count
            keys, values = (part[None] for part in self.gathered(row, torch.float32))
            place = torch.arange(length, device=query.device)
            seen = place <= place[length - count :, None]
            out = F.scaled_dot_product_attention(
                query, keys, values, attn_mask=seen, enable_gqa=True
            )
            found.append(out[0].transpose(0, 1).flatten(1))
        return torch.cat(found)

    @property
    def read_bytes(self) -> int:
        """Of keys, values and scales in the rows' contexts."""
        parts = (self.cache.keys, self.cache.values, self.cache.key_scales, self.cache.value_scales)
        a_token = sum(
            part[0, 0].numel() * part.element_size() for part in parts if part is not None
        )
        return a_token * sum(length for _, length in self.rows)


def _filled(size: tuple[int, ...], stored: torch.dtype, device: str) -> LayerCache:
    """Made piece by piece, for what is narrow is made of what is wide."""
    blocks, block_size = size[:2]
    scales = None
    if stored == torch.int8:
        scales = torch.empty((2, *size[:-1]), dtype=torch.float32, device=device)
    parts = []
    for which in range(2):
        part = torch.empty(size, dtype=stored, device=device)
        for start in range(0, blocks, ROWS_AT_ONCE // block_size):
            end = min(blocks, start + ROWS_AT_ONCE // block_size)
            new = torch.randn((end - start, *size[1:]), device=device)
            kept, own = quantise(new.flatten(0, 1).to(torch.bfloat16), stored)
            part[start:end] = kept.view(end - start, *size[1:])
            if scales is not None and own is not None:
                scales[which, start:end] = own.view(end - start, *size[1:-1])
        parts.append(part)
    if scales is None:
        return LayerCache(parts[0], parts[1])
    return LayerCache(parts[0], parts[1], scales[0], scales[1])


def narrow_weight(bench: Bench, kind: str, n: int, k: int) -> QuantisedWeight:
    """int4, int8, fp8 (a scale a row), or "fp8 blocks"."""
    device = bench.device
    if kind == "int4":
        data = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, device=device)
        scales = torch.rand(k // GROUP, n, device=device).add_(0.5).mul_(0.02)
        return QuantisedWeight("int4", data, scales.to(torch.bfloat16))
    wide = torch.randn(n, k, device=device)
    if kind == "int8":
        data = (wide * 40).clamp(-127, 127).round().to(torch.int8)
        return QuantisedWeight("int8", data, torch.rand(n, device=device) * 0.001)
    data = wide.to(torch.float8_e4m3fn)
    if kind == "fp8":
        return QuantisedWeight("fp8", data, torch.rand(n, device=device) * 0.05)
    blocks = (-(-n // SCALE_BLOCK), -(-k // SCALE_BLOCK))
    return QuantisedWeight("fp8", data, torch.rand(blocks, device=device) * 0.05)


def bytes_of(weight: QuantisedWeight) -> int:
    return sum(
        part.numel() * part.element_size()
        for part in (weight.data, weight.scales, weight.zeros)
        if part is not None
    )
