"""Attention of rows of any number of tokens over the paged cache, which holds theirs already.

A tile is some queries of one row with all query heads of a KV head; which row it is of is searched
for on the device, so that the grid depends on shapes alone. Keys and values are taken from first to
last in tiles of a fixed size: a query's sum has one order, whatever else is in the step.

What it means is `paged_attention_reference`.
"""

import torch

from servekit.kernels.kv import LayerCache, cache_pointers
from servekit.kernels.language import jit, tl, triton
from servekit.kernels.paged_decode import load_tile, scores_of
from servekit.kernels.paged_step import PagedStep
from servekit.kernels.target import Target, target
from servekit.kernels.tuned import Parameters, launch_parameters


# fmt: off
@jit
def _row_of(starts_ptr, first_row, rows, tile, QUERIES: tl.constexpr):
    """The row of a tile: row r has its tiles from (its start / QUERIES) + r on, counted from the
    first row, which leaves at most one tile too many to a row."""
    base = tl.load(starts_ptr + first_row)
    low = first_row
    high = rows
    while low < high:
        middle = (low + high) // 2
        begin = (tl.load(starts_ptr + middle) - base) // QUERIES + middle - first_row
        if begin <= tile:
            low = middle + 1
        else:
            high = middle
    return low - 1


@jit
def _attend_tile(
    query, most, total, sums, start, positions, length, kv_head,
    keys_ptr, values_ptr, key_scales_ptr, value_scales_ptr, table_ptr, block_stride, scale,
    KV_HEADS: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr, WINDOW: tl.constexpr, CAP: tl.constexpr,
    SCALED: tl.constexpr, BYTES: tl.constexpr, MASKED: tl.constexpr,
):
    """One tile of keys for all rows of a tile of queries."""
    DTYPE: tl.constexpr = query.dtype
    d = tl.arange(0, WIDTH)
    place = start + tl.arange(0, TILE)
    read = place
    if MASKED:
        # what lies beyond the row is not read: it may be anything
        read = tl.minimum(place, length - 1)
        if WINDOW > 0:
            # nor what is before the window: a block there may have gone to somebody else
            read = tl.maximum(read, tl.maximum(tl.min(positions, 0) - WINDOW + 1, 0))
    block = tl.load(table_ptr + read // BLOCK_SIZE).to(tl.int64)
    at = block * block_stride + (read % BLOCK_SIZE * KV_HEADS + kv_head) * D
    scale_at = (block * BLOCK_SIZE + read % BLOCK_SIZE) * KV_HEADS + kv_head
    keys = load_tile(keys_ptr, at[None, :] + d[:, None], (d < D)[:, None], DTYPE, BYTES)
    scores = tl.dot(query, keys, input_precision="ieee")
    if SCALED:
        scores = scores_of(scores, scale * tl.load(key_scales_ptr + scale_at)[None, :], CAP)
    else:
        scores = scores_of(scores, scale, CAP)
    if MASKED:
        seen = place[None, :] <= positions[:, None]
        if WINDOW > 0:
            seen = seen & (place[None, :] > positions[:, None] - WINDOW)
        scores = tl.where(seen, scores, float("-inf"))
    more = tl.maximum(most, tl.max(scores, 1))
    safe = tl.where(more == float("-inf"), 0.0, more)
    shrink = tl.exp2(most - safe)
    weights = tl.exp2(scores - safe[:, None])
    total = total * shrink + tl.sum(weights, 1)
    if SCALED:
        weights = weights * tl.load(value_scales_ptr + scale_at)[None, :]
    values = load_tile(values_ptr, at[:, None] + d[None, :], (d < D)[None, :], DTYPE, BYTES)
    sums = sums * shrink[:, None] + tl.dot(weights.to(DTYPE), values, input_precision="ieee")
    return more, total, sums


@jit(do_not_specialize=["table_stride", "first_row", "rows"])
def _prefill_kernel(
    query_ptr, keys_ptr, values_ptr, key_scales_ptr, value_scales_ptr, table_ptr, lens_ptr,
    starts_ptr, out_ptr,
    scale, query_stride, block_stride, table_stride, first_row, rows,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, QUERIES: tl.constexpr, ROWS: tl.constexpr,
    D: tl.constexpr, WIDTH: tl.constexpr, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr,
    WINDOW: tl.constexpr, CAP: tl.constexpr, SCALED: tl.constexpr, BYTES: tl.constexpr,
):
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    GROUP: tl.constexpr = HEADS // KV_HEADS
    row = _row_of(starts_ptr, first_row, rows, tile, QUERIES)
    base = tl.load(starts_ptr + first_row)
    begin = tl.load(starts_ptr + row)
    count = tl.load(starts_ptr + row + 1) - begin
    own = (tile - ((begin - base) // QUERIES + row - first_row)) * QUERIES
    if own < count:
        length = tl.load(lens_ptr + row)
        context = length - count
        r = tl.arange(0, ROWS)
        number = own + r // GROUP
        head = kv_head * GROUP + r % GROUP
        real = (r < QUERIES * GROUP) & (number < count)
        # a row of padding sees what the last query sees, and nobody reads what comes of it
        positions = context + tl.minimum(number, count - 1)
        d = tl.arange(0, WIDTH)
        mine = real[:, None] & (d < D)[None, :]
        token = (begin + number).to(tl.int64)
        query = tl.load(
            query_ptr + token[:, None] * query_stride + head[:, None] * D + d[None, :],
            mask=mine, other=0.0,
        )
        most = tl.full((ROWS,), float("-inf"), tl.float32)
        total = tl.zeros((ROWS,), tl.float32)
        sums = tl.zeros((ROWS, WIDTH), tl.float32)
        table = table_ptr + row.to(tl.int64) * table_stride
        low = 0
        full = 0
        if WINDOW > 0:
            low = tl.maximum(context + own - WINDOW + 1, 0) // TILE * TILE
            # tiles from here on are inside the window of the last query too
            last = context + tl.minimum(own + QUERIES, count) - 1
            full = tl.cdiv(tl.maximum(last - WINDOW + 1, 0), TILE) * TILE
        # keys up to here are seen by every query of the tile
        seen_by_all = (context + own + 1) // TILE * TILE
        high = tl.minimum(context + own + QUERIES, length)
        full = tl.minimum(full, seen_by_all)
        full = tl.maximum(full, low)
        for start in range(low, full, TILE):
            most, total, sums = _attend_tile(
                query, most, total, sums, start, positions, length, kv_head,
                keys_ptr, values_ptr, key_scales_ptr, value_scales_ptr, table, block_stride, scale,
                KV_HEADS, D, WIDTH, BLOCK_SIZE, TILE, WINDOW, CAP, SCALED, BYTES, True)
        for start in range(full, seen_by_all, TILE):
            most, total, sums = _attend_tile(
                query, most, total, sums, start, positions, length, kv_head,
                keys_ptr, values_ptr, key_scales_ptr, value_scales_ptr, table, block_stride, scale,
                KV_HEADS, D, WIDTH, BLOCK_SIZE, TILE, WINDOW, CAP, SCALED, BYTES, False)
        for start in range(tl.maximum(full, seen_by_all), high, TILE):
            most, total, sums = _attend_tile(
                query, most, total, sums, start, positions, length, kv_head,
                keys_ptr, values_ptr, key_scales_ptr, value_scales_ptr, table, block_stride, scale,
                KV_HEADS, D, WIDTH, BLOCK_SIZE, TILE, WINDOW, CAP, SCALED, BYTES, True)
        # nothing is seen by a row of no length, the padding of a captured batch: its sums are 0
        result = sums / tl.where(total > 0, total, 1.0)[:, None]
        tl.store(
            out_ptr + (token * HEADS + head)[:, None] * D + d[None, :],
            result.to(query_ptr.dtype.element_ty), mask=mine,
        )
# fmt: on


def default_launch(on: Target, kv_bytes: int, width: int, group: int) -> Parameters:
    """`rows` of a tile are queries times the heads that share a KV head.

    As large as registers allow: what was seen to spill is halved, and caches of eight bits, which
    are widened in registers, spill first. A `group` of heads that is no power of two needs
    registers for the places of its queries.
    """
    rows, tile, warps = 128, 32, 8
    uneven = group != triton.next_power_of_2(group)
    if on.at_least(100) and (kv_bytes == 1 or width <= 64):
        rows, warps = 64, 4
    elif on.at_least(90):
        tile = 64 if kv_bytes == 2 and width <= 128 else 32
    elif width > 128 or kv_bytes == 4 or (not on.is_amd and (kv_bytes == 1 or uneven)):
        rows = 64
    return {"rows": rows, "tile": tile, "num_warps": warps, "num_stages": 2}


def paged_prefill_triton(
    query: torch.Tensor,
    cache: LayerCache,
    step: PagedStep,
    out: torch.Tensor,
    *,
    scale: float,
    softcap: float | None,
) -> None:
    """Attention of all rows after the first `step.decodes`, of `query` [N, heads, head_dim] into
    `out`, which is contiguous and of the same shape.
    """
    heads, head_dim = query.shape[1:]
    _, block_size, kv_heads, _ = cache.keys.shape
    rows = step.seq_lens.shape[0]
    on = target()
    keys, values, as_bytes = cache_pointers(cache, on)
    width = triton.next_power_of_2(head_dim)
    kv_bytes = keys.element_size()
    group = heads // kv_heads
    default = default_launch(on, kv_bytes, width, group)
    launch = dict(launch_parameters("paged_prefill", f"{kv_bytes} bytes, {width} wide", default))
    queries = max(1, launch.pop("rows") // group)
    tiles = (step.tokens - step.decodes) // queries + rows - step.decodes
    _prefill_kernel[(tiles, kv_heads)](
        query,
        keys,
        values,
        keys if cache.key_scales is None else cache.key_scales,
        values if cache.value_scales is None else cache.value_scales,
        step.block_table,
        step.seq_lens,
        step.query_starts,
        out,
        scale,
        query.stride(0),
        keys.stride(0),
        step.block_table.stride(0),
        step.decodes,
        rows,
        HEADS=heads,
        KV_HEADS=kv_heads,
        QUERIES=queries,
        ROWS=max(16, triton.next_power_of_2(queries * group)),
        D=head_dim,
        WIDTH=width,
        BLOCK_SIZE=block_size,
        TILE=launch.pop("tile"),
        WINDOW=step.window or 0,
        CAP=softcap or 0.0,
        SCALED=cache.key_scales is not None,
        BYTES=as_bytes,
        **launch,
    )
