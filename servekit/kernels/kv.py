"""How one layer's keys and values lie in the paged cache, and in how many bits."""

from dataclasses import dataclass

import torch

from servekit.kernels.target import Target

INT8_MAX = 127.0
FP8_MAX = 448.0
LEAST_SCALE = 1e-10
"""Of a head that is all zeros, so that nothing is divided by zero."""


@dataclass(frozen=True, slots=True)
class LayerCache:
    """`keys` and `values` [num_blocks, block_size, kv_heads, head_dim] of float32, float16,
    bfloat16, float8_e4m3fn or int8; int8 has a float32 scale for each head of each token in
    `key_scales` and `value_scales` [num_blocks, block_size, kv_heads], the others none."""

    keys: torch.Tensor
    values: torch.Tensor
    key_scales: torch.Tensor | None = None
    value_scales: torch.Tensor | None = None

    @property
    def block_size(self) -> int:
        return self.keys.shape[1]


def quantise(new: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor | None]:
    """What is stored of `new` [..., head_dim], and its scales [...] where `dtype` is int8.

    int8: x / (max |x| / 127), rounded to nearest even. fp8 saturates at 448, as e4m3 has no
    infinity; others are rounded.
    """
    if dtype == torch.int8:
        wide = new.float()
        scales = wide.abs().amax(-1).clamp_min(LEAST_SCALE) / INT8_MAX
        return (wide / scales[..., None]).round().to(dtype), scales
    if dtype == torch.float8_e4m3fn:
        return new.float().clamp(-FP8_MAX, FP8_MAX).to(dtype), None
    return new.to(dtype), None


def dequantise(
    stored: torch.Tensor, scales: torch.Tensor | None, dtype: torch.dtype
) -> torch.Tensor:
    """[..., head_dim] in `dtype`."""
    return stored.to(dtype) if scales is None else (stored * scales[..., None]).to(dtype)


def cache_pointers(cache: LayerCache, on: Target) -> tuple[torch.Tensor, torch.Tensor, bool]:
    """Keys and values as a kernel reads them, and whether those are the bytes of fp8."""
    as_bytes = cache.keys.dtype == torch.float8_e4m3fn and not on.has_fp8
    if as_bytes:
        return cache.keys.view(torch.uint8), cache.values.view(torch.uint8), True
    return cache.keys, cache.values, False
