"""The write to the cache, and attention over it."""

from collections.abc import Iterator

import torch

from benchmarks.kernels.cases import TILE_PRODUCTS, WARP_PRODUCTS, Case, meta
from servekit.kernels.kv import LayerCache
from servekit.kernels.paged_decode import paged_decode_triton
from servekit.kernels.paged_prefill import paged_prefill_triton
from servekit.kernels.paged_step import PagedStep
from servekit.kernels.rope_and_cache import rope_and_cache_triton

BLOCKS, BLOCK_SIZE, MAX_BLOCKS = 4096, 16, 512
STORED = {"bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn, "int8": torch.int8}


def cache_of(stored: torch.dtype, kv_heads: int, head_dim: int) -> LayerCache:
    part = meta(BLOCKS, BLOCK_SIZE, kv_heads, head_dim, dtype=stored)
    if stored != torch.int8:
        return LayerCache(part, part)
    scales = meta(BLOCKS, BLOCK_SIZE, kv_heads, dtype=torch.float32)
    return LayerCache(part, part, scales, scales)


def step_of(rows: int, tokens: int, decodes: int, splits: int, window: int | None) -> PagedStep:
    def ints(*size: int) -> torch.Tensor:
        return meta(*size, dtype=torch.int32)

    return PagedStep(
        ints(rows + 1), ints(rows), ints(rows, MAX_BLOCKS), tokens, decodes, splits, window
    )


def attention_cases() -> Iterator[Case]:
    yield from _writes()
    for name, stored in STORED.items():
        yield _decode(name, stored, heads=32, kv_heads=8, head_dim=128)
        yield _prefill(name, stored, heads=32, kv_heads=8, head_dim=128)
    yield _decode("bf16, one split", torch.bfloat16, 32, 8, 128, splits=1)
    yield _decode("bf16, window and cap, 256 wide", torch.bfloat16, 8, 4, 256, 4, 1024, 50.0)
    yield _prefill("bf16, window and cap, 256 wide", torch.bfloat16, 8, 4, 256, 1024, 50.0)
    yield _decode("bf16, 80 wide", torch.bfloat16, 32, 32, 80)
    yield _prefill("bf16, 64 wide", torch.bfloat16, 9, 3, 64)
    yield _decode("bf16, 7 heads a KV head", torch.bfloat16, 28, 4, 128)
    yield _prefill("bf16, 7 heads a KV head", torch.bfloat16, 28, 4, 128)


def _writes() -> Iterator[Case]:
    qkv, table = meta(64, 48, 128), meta(64, 128)
    slots, weight = meta(64, dtype=torch.int64), meta(40, 128)
    sizes = {"heads": 32, "kv_heads": 8, "eps": 1e-6}
    for name, stored in STORED.items():
        cache = cache_of(stored, 8, 128)
        for norm in (None, weight):
            yield Case(
                "rope_and_cache",
                name if norm is None else f"{name}, QK norm",
                lambda cache=cache, norm=norm: rope_and_cache_triton(
                    qkv, table, table, slots, cache, qk_norm=norm, **sizes
                ),
                {},
            )


def _decode(
    name: str,
    stored: torch.dtype,
    heads: int,
    kv_heads: int,
    head_dim: int,
    splits: int = 8,
    window: int | None = None,
    softcap: float | None = None,
) -> Case:
    query, cache = meta(32, heads, head_dim), cache_of(stored, kv_heads, head_dim)
    step = step_of(32, 32, 32, splits, window)
    return Case(
        "paged_decode",
        name,
        lambda: paged_decode_triton(query, cache, step, query, scale=0.1, softcap=softcap),
        WARP_PRODUCTS,
        hot=head_dim == 128,
    )


def _prefill(
    name: str,
    stored: torch.dtype,
    heads: int,
    kv_heads: int,
    head_dim: int,
    window: int | None = None,
    softcap: float | None = None,
) -> Case:
    query, cache = meta(2048, heads, head_dim), cache_of(stored, kv_heads, head_dim)
    step = step_of(8, 2048, 0, 1, window)
    return Case(
        "paged_prefill",
        name,
        lambda: paged_prefill_triton(query, cache, step, query, scale=0.1, softcap=softcap),
        TILE_PRODUCTS,
        hot=head_dim == 128,
    )
