"""Steps run before the first request: what does not fit fails at start-up, and nothing is compiled
while somebody waits."""

import time
from collections.abc import Callable

from servekit.config.schema import Config
from servekit.engine.messages import Sampling
from servekit.engine.runner import Runner
from servekit.errors import WeightsError
from servekit.model.sizes import sizes_up_to
from servekit.scheduler.batch import Batch, Row
from servekit.spec.tensors import ceil_div

DEMANDING = Sampling(max_tokens=1, seed=0, top_k=50, top_p=0.9, presence_penalty=0.1, logprobs=5)


SIZES_S = 5.0
"""Seconds that may be spent on compiling for sizes of steps; a large model is not kept waiting."""


def warm_up(runner: Runner, config: Config, report: Callable[[int, int], None]) -> None:
    """Runs a step at all limits, then one of each size of step; the cache must be unused.

    `report` is told steps done and their number. Raises WeightsError if the model gives no numbers.
    """
    limits = config.scheduler
    worst = worst_batch(
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        max_model_len=config.model.max_model_len,
        num_blocks=runner.cache.num_blocks,
        block_size=runner.cache.block_size,
    )
    sizes = sizes_up_to(worst.num_tokens) if runner.device == "cpu" else [1]
    report(0, 1 + len(sizes))
    _run(runner, worst)
    deadline = time.monotonic() + SIZES_S
    for done, size in enumerate(sizes, start=1):
        report(done, 1 + len(sizes))
        if time.monotonic() < deadline:
            _run(runner, batch_of(size, worst))
    report(1 + len(sizes), 1 + len(sizes))


def _run(runner: Runner, batch: Batch) -> None:
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


def batch_of(size: int, worst: Batch) -> Batch:
    """So many tokens: as decodes where the worst batch has as many rows, else as prompts."""
    if size <= len(worst.rows):
        one_each = [row._replace(start=0, tokens=[0]) for row in worst.rows[:size]]
        return Batch(0, one_each)
    rows: list[Row] = []
    for row in worst.rows:
        tokens = min(size, row.start + len(row.tokens))
        rows.append(row._replace(start=0, tokens=[0] * tokens))
        size -= tokens
        if not size:
            break
    return Batch(0, rows)


def worst_batch(
    *,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    max_model_len: int,
    num_blocks: int,
    block_size: int,
) -> Batch:
    """As many rows and tokens as a step may have, looking back on as much as the cache holds.

    The first row is as long as a request can be, with the longest prompt chunk at its end; the
    others share the blocks left. A small cache makes for fewer rows. Request ids are negative,
    never those of a client.
    """
    free = list(range(1, num_blocks))
    seats = min(max_num_seqs, len(free))
    tokens_left = max_num_batched_tokens
    rows: list[Row] = []
    for others in range(seats - 1, -1, -1):
        share = len(free) // (others + 1) if rows else len(free) - others
        length = min(max_model_len, share * block_size)
        own = [free.pop() for _ in range(ceil_div(length, block_size))]
        tokens = min(tokens_left - others, length)
        rows.append(Row(-1 - others, length - tokens, [0] * tokens, own, samples=True))
        tokens_left -= tokens
    return Batch(0, rows)
