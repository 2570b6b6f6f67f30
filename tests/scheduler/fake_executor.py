"""An executor whose KV cache is a dictionary, and whose next token hangs on every token before it.

Each slot holds the token and the position it was written for. A row reads its whole context back
from the slots of its block table, so a block owned by two, cached before it was computed or reused
too early shows as a wrong token, and so does everything that follows from it.
"""

from array import array
from collections import defaultdict
from collections.abc import Iterable
from typing import Any
from zlib import crc32

from servekit.scheduler.batch import PLACEHOLDER, Batch, Outcome, Progress, Row
from servekit.scheduler.groups import Group, KvSettings
from servekit.scheduler.request import Request
from servekit.scheduler.scheduler import Scheduler
from servekit.scheduler.settings import Settings, StepTime
from tests.conftest import tiny_config

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


Cell = tuple[int, int] | None
"""The token and its position; None: a failed row was to write it, or nobody ever did."""


class FakeExecutor:
    def __init__(self, block_size: int, groups: tuple[Group, ...] = (Group(),)) -> None:
        self.block_size = block_size
        self.groups = groups
        self.host: dict[int, list[Cell]] = {}
        self.kv: dict[int, Cell] = {}
        self.sampled: dict[int, int] = {}
        self.failed: set[int] = set()
        self.known: dict[int, dict[int, int]] = defaultdict(dict)
        """Of each request, the tokens that it has read so far, by position."""

    def run(self, batch: Batch, fail: Iterable[int] = ()) -> Outcome:
        outcome = Outcome([], {})
        fail = set(fail)
        self._copy(batch)
        decodes = set(batch.decodes.ids)
        for row in batch.rows:
            if row.request_id in decodes:
                outcome.decoded.append(0)
            if row.request_id in fail or row.request_id in self.failed:
                self._spoil(row)
                outcome.failed[row.request_id] = "boom"
            else:
                context = self._write_and_read(row)
                if row.samples:
                    new = self._sample(row, context)
                    if row.request_id in decodes:
                        outcome.decoded[-1] = new[0]
                    else:
                        outcome.tokens[row.request_id] = new
        return outcome

    def _copy(self, batch: Batch) -> None:
        """To host memory, within, and from host memory; of each kind all are read first."""
        copies = batch.copies
        for host, block in [(host, self._block(block)) for block, host in copies.to_host]:
            self.host[host] = block
        for to, block in [(to, self._block(block)) for block, to in copies.within]:
            self._put(to, block)
        for to, block in [(to, self.host[host]) for host, to in copies.from_host]:
            self._put(to, block)

    def _block(self, block: int) -> list[Cell]:
        first = block * self.block_size
        return [self.kv.get(first + offset) for offset in range(self.block_size)]

    def _put(self, block: int, cells: list[Cell]) -> None:
        assert block != 0, "the null block was written"
        for offset, cell in enumerate(cells):
            self.kv[block * self.block_size + offset] = cell

    def _slot(self, row: Row, position: int, group: int = 0) -> int:
        block = row.tables[group][position // self.block_size]
        assert block != 0, "the null block was written, or read"
        return block * self.block_size + position % self.block_size

    def _write_and_read(self, row: Row) -> list[int]:
        """All tokens up to the row's last, as the keys and values of each group have them.

        What a windowed group no longer sees is taken from memory, and never looked up.
        """
        tokens = [self.sampled[row.request_id] if t == PLACEHOLDER else t for t in row.tokens]
        for group in range(len(self.groups)):
            for position, token in enumerate(tokens, row.start):
                self.kv[self._slot(row, position, group)] = (token, position)
        end = row.start + len(tokens)
        context = [self.known[row.request_id].get(position, -1) for position in range(end)]
        for number, group in enumerate(self.groups):
            for position in range(group.seen_from(row.start), end):
                cell = self.kv.get(self._slot(row, position, number))
                assert cell is not None, f"{row.request_id} reads what was never written, or failed"
                assert cell[1] == position, f"{row.request_id} reads the KV of position {cell[1]}"
                context[position] = cell[0]
        self.known[row.request_id].update(enumerate(context))
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
        for group in range(len(self.groups)):
            for position in range(row.start, row.start + len(row.tokens)):
                self.kv[self._slot(row, position, group)] = None


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
    groups: tuple[Group, ...] = (Group(),),
    host_blocks: int = 0,
    block_copy_s: float | None = None,
    step_tokens: int = 0,
    slo: dict[str, Any] | None = None,
    step_time: StepTime | None = None,
    **scheduler: Any,
) -> Scheduler:
    """`slo` and further words change those groups of the tiny configuration."""
    config = tiny_config(
        scheduler={
            "policy": policy,
            "max_num_seqs": seats,
            "max_num_batched_tokens": budget,
            "max_num_waiting": max_waiting,
            **scheduler,
        },
        slo=slo or {},
    )
    kv = KvSettings(
        num_blocks=num_blocks,
        block_size=block_size,
        prefix_caching=prefix_caching,
        groups=groups,
        host_blocks=host_blocks,
        step_tokens=step_tokens or budget,
    )
    return Scheduler(
        Settings(config.scheduler, config.slo, kv, max_model_len, step_time, block_copy_s)
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
    gains = scheduler.commit(batch, executor.run(batch, fail), 0.0)
    scheduler.check()
    return gains.progress


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
