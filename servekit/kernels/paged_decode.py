"""Attention of rows of one token over the paged cache: flash-decoding (Dao et al. 2023).

The context of a row is split between programs, each of which takes all query heads of a KV head at
once, so that keys and values are read once; their results are merged by their log-sum-exp. Scales
of a cache in eight bits multiply scores and probabilities, never keys and values.

What it means is `paged_attention_reference`.
"""

import torch

from servekit.kernels.kv import LayerCache, cache_pointers
from servekit.kernels.language import jit, tl, triton
from servekit.kernels.paged_step import PagedStep
from servekit.kernels.target import Target, target
from servekit.kernels.tuned import Parameters, launch_parameters

LOG2E = 1.4426950408889634


# fmt: off
@jit
def load_tile(ptr, at, mask, DTYPE: tl.constexpr, BYTES: tl.constexpr):
    """A tile of keys or values in the type of the queries. BYTES: those of fp8 e4m3, for chips
    without the type: seven bits under bfloat16's sign are the value times 2^-120, exactly."""
    tile = tl.load(ptr + at, mask=mask, other=0.0)
    if BYTES:
        bits = tile.to(tl.uint16)
        bits = ((bits & 0x80) << 8) | ((bits & 0x7F) << 4)
        tile = bits.to(tl.bfloat16, bitcast=True).to(tl.float32) * 1.329227995784916e36
    return tile.to(DTYPE)


@jit
def scores_of(products, scale, CAP: tl.constexpr):
    """In units of log 2, from queries times keys; `scale` is a number or a row of them."""
    scores = products * scale
    if CAP > 0:
        # tanh x = 1 - 2 / (e^2x + 1), which is right where e^2x is 0 or infinity
        scores = CAP * (1.0 - 2.0 / (tl.exp2(scores * (2.0 * 1.4426950408889634 / CAP)) + 1.0))
    return scores * 1.4426950408889634


@jit(do_not_specialize=["table_stride", "splits"])
def _decode_kernel(
    query_ptr, keys_ptr, values_ptr, key_scales_ptr, value_scales_ptr, table_ptr, lens_ptr,
    out_ptr, part_ptr, lse_ptr,
    scale, query_stride, block_stride, table_stride, splits,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, ROWS: tl.constexpr,
    D: tl.constexpr, WIDTH: tl.constexpr, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr,
    WINDOW: tl.constexpr, CAP: tl.constexpr,
    SCALED: tl.constexpr, BYTES: tl.constexpr, ALONE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    GROUP: tl.constexpr = HEADS // KV_HEADS
    DTYPE: tl.constexpr = query_ptr.dtype.element_ty
    length = tl.load(lens_ptr + row)
    first = 0
    if WINDOW > 0:
        first = tl.maximum(length - WINDOW, 0)
    begin = first // TILE * TILE
    chunk = tl.cdiv(tl.cdiv(length - begin, splits), TILE) * TILE
    low = begin + split * chunk
    high = tl.minimum(low + chunk, length)

    group = tl.arange(0, ROWS)
    head = kv_head * GROUP + group
    d = tl.arange(0, WIDTH)
    t = tl.arange(0, TILE)
    mine = (group < GROUP)[:, None] & (d < D)[None, :]
    out_at = (row * HEADS + head)[:, None] * D + d[None, :]
    if low < high:
        query_at = row * query_stride + head[:, None] * D + d[None, :]
        query = tl.load(query_ptr + query_at, mask=mine, other=0.0)
        most = tl.full((ROWS,), float("-inf"), tl.float32)
        total = tl.zeros((ROWS,), tl.float32)
        sums = tl.zeros((ROWS, WIDTH), tl.float32)
        for start in range(low, high, TILE):
            place = start + t
            seen = (place < high) & (place >= first)
            # a place outside is read as one inside: what lies there is finite, and is not counted
            place = tl.maximum(tl.minimum(place, high - 1), first)
            block = tl.load(table_ptr + row * table_stride + place // BLOCK_SIZE).to(tl.int64)
            at = block * block_stride + (place % BLOCK_SIZE * KV_HEADS + kv_head) * D
            scale_at = (block * BLOCK_SIZE + place % BLOCK_SIZE) * KV_HEADS + kv_head
            keys = load_tile(keys_ptr, at[None, :] + d[:, None], (d < D)[:, None], DTYPE, BYTES)
            scores = tl.dot(query, keys, input_precision="ieee")
            if SCALED:
                scores = scores_of(scores, scale * tl.load(key_scales_ptr + scale_at)[None, :], CAP)
            else:
                scores = scores_of(scores, scale, CAP)
            scores = tl.where(seen[None, :], scores, float("-inf"))
            more = tl.maximum(most, tl.max(scores, 1))
            shrink = tl.exp2(most - more)
            weights = tl.exp2(scores - more[:, None])
            total = total * shrink + tl.sum(weights, 1)
            if SCALED:
                weights = weights * tl.load(value_scales_ptr + scale_at)[None, :]
            values = load_tile(values_ptr, at[:, None] + d[None, :], (d < D)[None, :], DTYPE, BYTES)
            gained = tl.dot(weights.to(DTYPE), values, input_precision="ieee")
            sums = sums * shrink[:, None] + gained
            most = more
        result = sums / total[:, None]
        if ALONE:
            tl.store(out_ptr + out_at, result.to(DTYPE), mask=mine)
        else:
            part = (row * HEADS + head) * splits + split
            tl.store(part_ptr + part[:, None] * D + d[None, :], result, mask=mine)
            tl.store(lse_ptr + part, most + tl.log2(total), mask=group < GROUP)
    elif ALONE:  # the padding of a captured batch
        tl.store(out_ptr + out_at, tl.zeros((ROWS, WIDTH), DTYPE), mask=mine)


@jit(do_not_specialize=["splits"])
def _merge_kernel(
    part_ptr, lse_ptr, lens_ptr, out_ptr, splits,
    HEADS: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr,
    WINDOW: tl.constexpr, AT_ONCE: tl.constexpr,
):
    """One result of a row's splits, those that had a context, in their order."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    length = tl.load(lens_ptr + row)
    first = 0
    if WINDOW > 0:
        first = tl.maximum(length - WINDOW, 0)
    span = length - first // TILE * TILE
    chunk = tl.maximum(tl.cdiv(tl.cdiv(span, splits), TILE) * TILE, 1)
    used = tl.cdiv(span, chunk)
    d = tl.arange(0, WIDTH)
    each = tl.arange(0, AT_ONCE)
    at = (row * HEADS + head) * splits
    most = float("-inf")
    total = 0.0
    sums = tl.zeros((WIDTH,), tl.float32)
    for start in range(0, used, AT_ONCE):
        split = start + each
        live = split < used
        lse = tl.load(lse_ptr + at + split, mask=live, other=float("-inf"))
        parts = tl.load(
            part_ptr + (at + split)[:, None] * D + d[None, :],
            mask=live[:, None] & (d < D)[None, :], other=0.0,
        )
        more = tl.maximum(most, tl.max(lse, 0))
        weights = tl.exp2(lse - more)
        shrink = tl.exp2(most - more)
        total = total * shrink + tl.sum(weights, 0)
        sums = sums * shrink + tl.sum(parts * weights[:, None], 0)
        most = more
    result = sums / tl.where(total > 0, total, 1.0)
    out = result.to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + (row * HEADS + head) * D + d, out, mask=d < D)
# fmt: on


def default_launch(on: Target, kv_bytes: int, width: int) -> Parameters:
    """Wide tiles need registers: what spills at 64 keys is halved."""
    tile = 64 if width <= 128 and kv_bytes < 4 else 32
    if on.arch == "sm_80" and kv_bytes == 1:
        tile = 32
    return {"tile": tile, "num_warps": 4, "num_stages": 2 if on.is_amd or kv_bytes != 2 else 3}


def paged_decode_triton(
    query: torch.Tensor,
    cache: LayerCache,
    step: PagedStep,
    out: torch.Tensor,
    *,
    scale: float,
    softcap: float | None,
) -> None:
    """Attention of the first `step.decodes` of `query` [N, heads, head_dim] into those of `out`.

    `out` is contiguous and of the same shape. A row of length 0 becomes 0. Sums are in float32;
    the grid depends on shapes alone.
    """
    rows, (heads, head_dim) = step.decodes, query.shape[1:]
    _, block_size, kv_heads, _ = cache.keys.shape
    on = target()
    keys, values, as_bytes = cache_pointers(cache, on)
    width = triton.next_power_of_2(head_dim)
    kv_bytes = keys.element_size()
    launch = launch_parameters(
        "paged_decode", f"{kv_bytes} bytes, {width} wide", default_launch(on, kv_bytes, width)
    )
    launch = dict(launch)
    tile, splits, window = launch.pop("tile"), step.splits, step.window or 0
    alone = splits == 1
    size = (0,) if alone else (rows, heads, splits)
    lse = torch.empty(size, dtype=torch.float32, device=query.device)
    parts = torch.empty((*size, head_dim), dtype=torch.float32, device=query.device)
    _decode_kernel[(rows, kv_heads, splits)](
        query,
        keys,
        values,
        keys if cache.key_scales is None else cache.key_scales,
        values if cache.value_scales is None else cache.value_scales,
        step.block_table,
        step.seq_lens,
        out,
        parts,
        lse,
        scale,
        query.stride(0),
        keys.stride(0),
        step.block_table.stride(0),
        splits,
        HEADS=heads,
        KV_HEADS=kv_heads,
        ROWS=max(16, triton.next_power_of_2(heads // kv_heads)),
        D=head_dim,
        WIDTH=width,
        BLOCK_SIZE=block_size,
        TILE=tile,
        WINDOW=window,
        CAP=softcap or 0.0,
        SCALED=cache.key_scales is not None,
        BYTES=as_bytes,
        ALONE=alone,
        **launch,
    )
    if not alone:
        sizes = {"HEADS": heads, "D": head_dim, "WIDTH": width, "TILE": tile, "WINDOW": window}
        _merge_kernel[(rows, heads)](
            parts, lse, step.seq_lens, out, splits, **sizes, AT_ONCE=min(16, splits), num_warps=1
        )
