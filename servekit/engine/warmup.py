"""Steps run before the first request: what does not fit fails at start-up, and nothing is compiled
while somebody waits."""

import math
import time
from bisect import bisect_right
from collections.abc import Callable

from servekit.config.schema import Config
from servekit.engine.messages import Sampling
from servekit.engine.runner import Runner
from servekit.errors import WeightsError
from servekit.kernels.sizes import sizes_up_to
from servekit.scheduler.batch import Batch, Decodes, Row
from servekit.spec.kv import KvLayout
from servekit.spec.tensors import ceil_div

DEMANDING = Sampling(max_tokens=1, seed=0, top_k=50, top_p=0.9, presence_penalty=0.1, logprobs=5)


SIZES_S = 5.0
"""Seconds that may be spent on compiling for sizes of steps; a large model is not kept waiting."""


def warm_up(
    runner: Runner, config: Config, layout: KvLayout, report: Callable[[int, int], None]
) -> float:
    """Runs a step at all limits, then one of each size of step; the cache must be unused.

    On a CPU these are sizes that are compiled for, on a GPU powers of two, between which launches
    of products do not change, and contexts of every length.
    Seconds of the slowest. `report` is told steps done and their number. Raises WeightsError if the
    model gives no numbers.
    """
    worst = worst_batch(
        layout,
        max_num_seqs=config.scheduler.max_num_seqs,
        max_num_batched_tokens=config.scheduler.max_num_batched_tokens,
    )
    if runner.device == "cpu":
        steps = [batch_of(size, worst, layout) for size in sizes_up_to(worst.num_tokens)]
        seconds = SIZES_S
    else:
        sizes = [1 << power for power in range(worst.num_tokens.bit_length())]
        steps = [batch_of(size, worst, layout) for size in sizes]
        steps, seconds = [*steps, *mixed_batches(layout)], math.inf
    report(0, 1 + len(steps))
    slowest = _run(runner, worst)
    deadline = time.monotonic() + seconds
    for done, step in enumerate(steps, start=1):
        report(done, 1 + len(steps))
        if time.monotonic() < deadline:
            slowest = max(slowest, _run(runner, step))
    report(1 + len(steps), 1 + len(steps))
    return slowest


def _run(runner: Runner, batch: Batch) -> float:
    started = time.monotonic()
    for row in batch.rows:
        runner.add(row.request_id, [0] * (row.start + len(row.tokens)), DEMANDING)
    failed = runner.run(batch).failed
    for row in batch.rows:
        runner.remove(row.request_id)
    if failed:
        raise WeightsError(
            f"a first step over token 0 failed: {next(iter(failed.values()))}; "
            "the weights are damaged, or not those of this model"
        )
    return time.monotonic() - started


def batch_of(size: int, worst: Batch, layout: KvLayout) -> Batch:
    """So many tokens: as decodes where the worst batch has as many rows, else as prompts."""
    lengths = [row.start + len(row.tokens) for row in worst.rows]
    if size <= len(lengths):
        lengths = [1] * size
    free = list(range(1, layout.allocated_blocks))
    rows: list[Row] = []
    for length in lengths:
        rows.append(_row(len(rows), min(size, length), 0, layout, free))
        size -= len(rows[-1].tokens)
        if not size:
            break
    return Batch.of(0, rows)


def mixed_batches(layout: KvLayout) -> list[Batch]:
    """One that decodes beside a short prompt, with contexts that double up to the longest: those
    between which attention shares a row out differently. No graph is of such a step."""
    batches, context = list[Batch](), 1
    while layout.blocks_for(context) + layout.blocks_for(2) <= layout.num_blocks:
        free = list(range(1, layout.allocated_blocks))
        beside = _row(1, 2, 0, layout, free)
        decoding = _row(0, 1, context - 1, layout, free)
        decodes = Decodes([decoding.request_id], [context - 1], [0], [decoding.tables])
        batches.append(Batch(0, decodes, [beside]))
        if context == layout.max_model_len:
            break
        context = min(2 * context, layout.max_model_len)
    return batches


def worst_batch(layout: KvLayout, *, max_num_seqs: int, max_num_batched_tokens: int) -> Batch:
    """As many rows and tokens as a step may have, looking back on as much as the cache holds.

    The first row is as long as a request can be, with the longest prompt chunk at its end; the
    others share the blocks left. A small cache makes for fewer rows. Request ids are negative,
    never those of a client.
    """
    free = list(range(1, layout.allocated_blocks))
    one_each = layout.blocks_for(1)
    seats = min(max_num_seqs, len(free) // one_each)
    tokens_left = max_num_batched_tokens
    rows: list[Row] = []
    for others in range(seats - 1, -1, -1):
        share = len(free) // (others + 1) if rows else len(free) - others * one_each
        length = bisect_right(range(1, layout.max_model_len + 1), share, key=layout.blocks_for)
        tokens = min(tokens_left - others, length)
        rows.append(_row(len(rows), tokens, length - tokens, layout, free))
        tokens_left -= tokens
    return Batch.of(0, rows)


def _row(index: int, tokens: int, start: int, layout: KvLayout, free: list[int]) -> Row:
    """With blocks, out of the free ones, for what its tokens see."""
    tables = []
    for group in layout.groups:
        oldest = 0 if group.window is None else max(0, start - group.window + 1)
        unseen = oldest // layout.block_size
        count = ceil_div(start + tokens, layout.block_size)
        tables.append([0] * unseen + [free.pop() for _ in range(count - unseen)])
    return Row(-1 - index, start, [0] * tokens, tuple(tables), samples=True)
