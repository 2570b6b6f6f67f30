"""A paged cache, rows over it, and attention by the definition, in float64."""

import torch

from servekit.kernels.attention import Lengths
from servekit.kernels.kv import LayerCache, dequantise, quantise
from tests.kernels.devices import DEVICE, generator

Rows = list[tuple[int, int]]
"""Tokens in this step, and tokens with the context, of each row."""


class Paged:
    """Rows of random content in blocks dealt at random; all memory that is nobody's is NaN, or for
    integers as large as it goes."""

    def __init__(
        self,
        rows: Rows,
        *,
        heads: int,
        kv_heads: int,
        head_dim: int,
        block_size: int = 16,
        dtype: torch.dtype = torch.float32,
        stored: torch.dtype | None = None,
        window: int | None = None,
        seed: int = 0,
    ) -> None:
        chance = generator(seed)
        self.rows, self.window = rows, window
        held = [-(-length // block_size) for _, length in rows]
        num_blocks = sum(held) + 4
        own = (torch.randperm(num_blocks - 1, generator=chance, device=DEVICE) + 1).tolist()
        size = (num_blocks, block_size, kv_heads, head_dim)
        stored = dtype if stored is None else stored
        self.cache = nobodys(size, stored)
        self.table = torch.zeros(len(rows), max(held) + 1, dtype=torch.int64, device=DEVICE)
        self.contents: list[tuple[torch.Tensor, torch.Tensor]] = []
        for row, (count, length) in enumerate(rows):
            blocks = [own.pop() for _ in range(held[row])]
            self.table[row, : held[row]] = torch.tensor(blocks, device=DEVICE)
            seen_from = 0 if window is None else max(0, length - count - window + 1)
            parts = []
            for stored_part, scales in (
                (self.cache.keys, self.cache.key_scales),
                (self.cache.values, self.cache.value_scales),
            ):
                new = torch.randn(length, kv_heads, head_dim, generator=chance, device=DEVICE)
                kept, own_scales = quantise(new.to(dtype), stored)
                for place in range(seen_from, length):
                    at = (blocks[place // block_size], place % block_size)
                    stored_part[at] = kept[place]
                    if scales is not None and own_scales is not None:
                        scales[at] = own_scales[place]
                parts.append(dequantise(kept.float(), own_scales, torch.float32).double())
            # a block before the window may be somebody else's: it is nobody's here
            self.table[row, : seen_from // block_size] = num_blocks - 1 if seen_from else 0
            self.contents.append((parts[0], parts[1]))
        tokens = sum(count for count, _ in rows)
        query = torch.randn(tokens, heads, head_dim, generator=chance, device=DEVICE)
        self.query = query.to(dtype)

    def lengths(self, decodes: int) -> Lengths:
        counts = [count for count, _ in self.rows]
        starts = torch.tensor([0, *counts], device=DEVICE).cumsum(0)
        contexts = torch.tensor([length for _, length in self.rows], device=DEVICE)
        return Lengths(
            query_lens=counts,
            seq_lens=contexts.tolist(),
            decodes=decodes,
            query_starts=starts.int(),
            contexts=contexts.int(),
        )

    def attended(self, scale: float, softcap: float | None = None) -> torch.Tensor:
        """[T, heads * head_dim], float64, by the definition."""
        out, start = [], 0
        for (count, length), (keys, values) in zip(self.rows, self.contents, strict=True):
            query = self.query[start : start + count].double()
            start += count
            group = query.shape[1] // keys.shape[1]
            keys, values = (part.repeat_interleave(group, 1) for part in (keys, values))
            scores = torch.einsum("qhd,khd->hqk", query, keys) * scale
            if softcap is not None:
                scores = softcap * torch.tanh(scores / softcap)
            place = torch.arange(length, device=DEVICE)
            at = place[length - count :, None]
            unseen = place > at
            if self.window is not None:
                unseen |= place <= at - self.window
            weights = scores.masked_fill(unseen, -torch.inf).softmax(-1)
            out.append(torch.einsum("hqk,khd->qhd", weights, values).flatten(1))
        return torch.cat(out)


def nobodys(size: tuple[int, ...], stored: torch.dtype) -> LayerCache:
    def part() -> torch.Tensor:
        if stored == torch.int8:
            return torch.full(size, 127, dtype=stored, device=DEVICE)
        return torch.full(size, torch.nan, device=DEVICE).to(stored)

    if stored != torch.int8:
        return LayerCache(part(), part())
    scales = torch.full((2, *size[:-1]), torch.nan, device=DEVICE)
    return LayerCache(part(), part(), scales[0], scales[1])
