"""An executor whose KV cache is a dictionary, and whose next token hangs on every token before it.

Each slot holds the token and the position it was written for. A row reads its whole context back
from the slots of its block table, so a block owned by two, cached before it was computed or reused
too early shows as a wrong token, and so does everything that follows from it.
"""

from array import array
from collections.abc import Iterable
from zlib import crc32

from servekit.config.schema import SchedulerConfig
from servekit.scheduler.batch import PLACEHOLDER, Batch, Outcome, Progress, Row
from servekit.scheduler.request import Request
from servekit.scheduler.scheduler import Scheduler

VOCAB = 5


def next_token(context: list[int]) -> int:
    return crc32(array("q", context).tobytes()) % VOCAB


def alone(request: Request) -> list[int]:
    """The output of this request in a world without others, batches or caches."""
    tokens = list(request.prompt)
    while len(tokens) < len(request.prompt) + request.max_tokens:
        tokens.append(next_token(tokens))
        patient = len(tokens) - len(request.prompt) <= request.min_tokens
        if tokens[-1] in request.stop_ids and not patient:
            break
    return tokens[len(request.prompt) :]


class FakeExecutor:
    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.kv: dict[int, tuple[int, int] | None] = {}
        self.sampled: dict[int, int] = {}
        self.failed: set[int] = set()

    def run(self, batch: Batch, fail: Iterable[int] = ()) -> Outcome:
        outcome = Outcome({})
        fail = set(fail)
        for row in batch.rows:
            if row.request_id in fail or row.request_id in self.failed:
                self._spoil(row)
                outcome.failed[row.request_id] = "boom"
            else:
                context = self._write_and_read(row)
                if row.samples:
                    outcome.tokens[row.request_id] = self._sample(row, context)
        return outcome

    def _slot(self, row: Row, position: int) -> int:
        block = row.blocks[position // self.block_size]
        assert block != 0, "the null block was written"
        return block * self.block_size + position % self.block_size

    def _write_and_read(self, row: Row) -> list[int]:
        tokens = [self.sampled[row.request_id] if t == PLACEHOLDER else t for t in row.tokens]
        for position, token in enumerate(tokens, row.start):
            self.kv[self._slot(row, position)] = (token, position)
        context = []
        for position in range(row.start + len(tokens)):
            cell = self.kv.get(self._slot(row, position))
            assert cell is not None, f"{row.request_id} reads what was never written, or failed"
            assert cell[1] == position, f"{row.request_id} reads the KV of position {cell[1]}"
            context.append(cell[0])
        return context

    def _sample(self, row: Row, context: list[int]) -> list[int]:
        """The tokens of accepted drafts and the one after them."""
        new = []
        for end in range(len(context) - row.drafts, len(context) + 1):
            new.append(next_token(context[:end]))
            if end < len(context) and context[end] != new[-1]:
                break
        self.sampled[row.request_id] = new[-1]
        return new

    def _spoil(self, row: Row) -> None:
        self.failed.add(row.request_id)
        for position in range(row.start, row.start + len(row.tokens)):
            self.kv[self._slot(row, position)] = None


def make_scheduler(
    *,
    policy: str = "continuous",
    seats: int = 4,
    budget: int = 16,
    max_waiting: int = 100,
    num_blocks: int = 20,
    block_size: int = 4,
    max_model_len: int = 1000,
    prefix_caching: bool = True,
) -> Scheduler:
    config = SchedulerConfig.model_validate(
        {
            "policy": policy,
            "max_num_seqs": seats,
            "max_num_batched_tokens": budget,
            "max_num_waiting": max_waiting,
        }
    )
    return Scheduler(
        config,
        num_blocks=num_blocks,
        block_size=block_size,
        max_model_len=max_model_len,
        prefix_caching=prefix_caching,
    )


def request(id: int, prompt: int | list[int] = 3, max_tokens: int = 4, **more: object) -> Request:
    """`prompt` as a number gives that many tokens, different for each id."""
    tokens = [100 * id + i for i in range(prompt)] if isinstance(prompt, int) else prompt
    return Request(id=id, prompt=tokens, max_tokens=max_tokens, arrived=float(id), **more)  # type: ignore[arg-type]


def planned(scheduler: Scheduler) -> tuple[Batch, list[tuple[int, int, int, bool]]]:
    """The next batch; (request, start, number of tokens, samples) of each row."""
    batch = scheduler.plan(0.0)
    assert batch is not None
    return batch, [(r.request_id, r.start, len(r.tokens), r.samples) for r in batch.rows]


def step(scheduler: Scheduler, executor: FakeExecutor, fail: Iterable[int] = ()) -> list[Progress]:
    """Plan, run, commit, check; a scheduler that has nothing to do fails the test."""
    batch = scheduler.plan(0.0)
    assert batch is not None
    progress = scheduler.commit(batch, executor.run(batch, fail), 0.0)
    scheduler.check()
    return progress


def drain(scheduler: Scheduler, executor: FakeExecutor) -> dict[int, Progress]:
    """Step until nothing is left; the last progress of each request, with all its new tokens."""
    tokens: dict[int, list[int]] = {}
    ends: dict[int, Progress] = {}
    while scheduler.busy:
        for progress in step(scheduler, executor):
            tokens.setdefault(progress.request_id, []).extend(progress.tokens)
            if progress.finish:
                ends[progress.request_id] = progress._replace(tokens=tokens[progress.request_id])
    return ends
