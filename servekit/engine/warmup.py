"""The worst step, run before the first request: what does not fit fails at start-up."""

from servekit.config.schema import Config
from servekit.engine.messages import Sampling
from servekit.engine.runner import Runner
from servekit.errors import WeightsError
from servekit.scheduler.batch import Batch, Row
from servekit.spec.model import ceil_div

DEMANDING = Sampling(max_tokens=1, seed=0, top_k=50, top_p=0.9, presence_penalty=0.1, logprobs=5)


def warm_up(runner: Runner, config: Config) -> None:
    """Runs a step at all limits, and one of a single token; the cache must be unused.

    Raises WeightsError if the model gives no numbers.
    """
    limits = config.scheduler
    worst = worst_batch(
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        max_model_len=config.model.max_model_len,
        num_blocks=runner.cache.num_blocks,
        block_size=runner.cache.block_size,
    )
    for batch in (worst, Batch(0, [Row(worst.rows[0].request_id, 0, [0], [1], True)])):
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
