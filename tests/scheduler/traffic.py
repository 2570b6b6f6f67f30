"""A scheduler, what runs its batches, and everybody who asks something of it: the steps of a test
that may do anything in any order.
"""

from collections import deque
from collections.abc import Iterable
from typing import Any

from servekit.scheduler.batch import Batch, Progress
from servekit.scheduler.groups import Group
from servekit.scheduler.request import Request, State
from tests.scheduler.fake_executor import VOCAB, FakeExecutor, alone, make_scheduler

BRANCHES = ([0] * 9, [0] * 5 + [1] * 6, [3, 1, 4, 1, 2], [2])
"""What prompts begin with."""
ORDERS = ["fcfs", "priority", "shortest_prefill", "longest_prefix", "deadline", "fair", "two_pool"]
STEP_S = 0.25
"""Between two plans."""


class Linear:
    """Step times of a machine on which everything costs something."""

    def seconds(self, decodes, context, prefill=()):
        chunks = sum(1e-3 * new + 1e-5 * new * (new / 2 + there) for new, there in prefill)
        return 1e-3 + 1e-5 * decodes * context + chunks


class Clients:
    """Everybody who asked: what was said to them must be what they would have heard alone."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.said: dict[int, list[int]] = {}
        self.ends: dict[int, Progress] = {}
        self.truths: dict[int, list[int]] = {}

    def truth(self, request: Request) -> list[int]:
        if request.id not in self.truths:
            self.truths[request.id] = alone(request)
        return self.truths[request.id]

    def take(self, progress: list[Progress]) -> None:
        for one in progress:
            assert one.request_id not in self.ends, "something followed the end"
            said = self.said.setdefault(one.request_id, [])
            said += one.tokens
            request = self.requests[one.request_id]
            assert said == request.output
            if one.finish is None:
                continue
            self.ends[one.request_id] = one
            truth = self.truth(request)
            whole = one.finish in ("stop", "length")
            assert said == truth if whole else said == truth[: len(said)]
            assert (one.stop_token is not None) == (one.finish == "stop")
            assert (one.error is not None) == (one.finish == "error")
            assert request.state is State.FINISHED


class Traffic:
    """Arrivals, aborts, holds, failures, drafts and `depth` batches in flight, in any order."""

    def __init__(
        self,
        *,
        seats: int,
        extra_budget: int,
        num_blocks: int,
        block_size: int,
        window: Group | None,
        seconds: bool,
        depth: int,
        **rules: Any,
    ) -> None:
        """`num_blocks` are for each group of layers; `rules` are those of `make_scheduler`."""
        groups = (Group(),) if window is None else (Group(), window)
        self.scheduler = make_scheduler(
            seats=seats,
            budget=seats + extra_budget,
            num_blocks=num_blocks * len(groups),
            block_size=block_size,
            groups=groups,
            block_copy_s=1e-6,
            step_time=Linear() if seconds else None,
            slo={"ttft_ms": 5000.0},
            **rules,
        )
        self.executor = FakeExecutor(block_size, groups)
        self.capacity = min(self.scheduler.kv.max_servable_tokens, (num_blocks - 1) * block_size)
        """Tokens of the longest request that can be served."""
        self.depth = depth
        self.now = 0.0
        self.in_flight: deque[Batch] = deque()
        self.clients = Clients()

    def arrive(self, prompt: list[int], max_tokens: int, *, stops: bool, **kind: Any) -> Request:
        """Cut to what can be served. It came at its id, unless `kind` says when."""
        prompt = prompt[: self.capacity - 1]
        id = len(self.clients.requests)
        request = Request(
            id=id,
            prompt=prompt,
            max_tokens=min(max_tokens, self.capacity - len(prompt)),
            stop_ids=frozenset({0} if stops else ()),
            **{"arrived": float(id), **kind},
        )
        self.clients.requests.append(request)
        self.scheduler.add(request)
        return request

    def abort(self, id: int) -> None:
        ended = self.scheduler.abort(id)
        assert (ended is None) == (id in self.clients.ends)
        if ended is not None:
            self.clients.take([ended])

    def hold(self, request: Request, steps: int) -> None:
        self.scheduler.hold(request.id, until=self.scheduler.steps_total + steps)

    def draft(self, request: Request, count: int, *, wrong: bool) -> None:
        """Guesses that are right, but for the last if `wrong`."""
        truth = self.clients.truth(request)[len(request.output) :][:count]
        request.drafts = [*truth[:-1], (truth[-1] + wrong) % VOCAB] if truth else []

    def plan(self) -> None:
        self.clients.take(self.scheduler.expire(self.scheduler.steps_total))
        if len(self.in_flight) == self.depth:
            return
        first = min(self.scheduler.running, key=self.scheduler.line.rank, default=None)
        decodes = first is not None and first.in_lock_step
        self.now += STEP_S
        batch = self.scheduler.plan(self.now)
        if batch is not None:
            assert batch.rows
            assert batch.num_tokens <= self.scheduler.config.max_num_batched_tokens
            ids = [row.request_id for row in batch.rows]
            assert len(ids) == len(set(ids)) <= self.scheduler.config.max_num_seqs
            self.in_flight.append(batch)
        if len(self.in_flight) == (batch is not None):
            assert batch is not None or not (
                self.scheduler.running or list(self.scheduler.line.requests())
            )
            ids = [row.request_id for row in batch.rows] if batch else []
            taken = first is not None and first.state is not State.RUNNING
            # a prompt may stand behind more urgent ones, but not behind nobody
            behind = not decodes and batch is not None and bool(batch.others)
            assert first is None or first.id in ids or taken or behind

    def commit(self, fail: Iterable[int] = ()) -> None:
        """The oldest batch runs now, after all that was decided since it was planned."""
        batch = self.in_flight.popleft()
        gains = self.scheduler.commit(batch, self.executor.run(batch, fail), 1.0)
        self.clients.take(gains.progress)

    def step(self) -> None:
        """A plan, and a commit if that was the last batch that may be in flight, or there is none
        to plan.
        """
        before = len(self.in_flight)
        self.plan()
        if self.in_flight and len(self.in_flight) in (before, self.depth):
            self.commit()

    def end(self, *, rivals: bool = False, checks: int = 1) -> None:
        """All come to an end within a bound of steps and leave nothing behind; the books are
        looked at every `checks` steps. With `rivals`, others that go first wherever rank counts
        keep coming until those who are here have gone.
        """
        for id in list(self.scheduler.line.held):
            self.scheduler.release(id)
        here = list(self.scheduler.requests.values())
        self.now = max(self.now, *(request.arrived for request in here), 0.0)
        steps, most = 0, 60 * (1 + len(self.clients.requests)) * (1 + 4 * rivals)
        while self.scheduler.busy:
            rivals = rivals and not all(request.finish for request in here)
            if rivals and len(self.scheduler.line) < 3 + len(here):
                urgent = {"priority": -1, "tenant": "a", "arrived": self.now}
                self.arrive([steps % VOCAB], 2, stops=False, **urgent)
            self.step()
            if steps % checks == 0:
                self.scheduler.check()
            steps += 1
            assert steps < most, "it does not come to an end"
        self.scheduler.check()
        stats = self.scheduler.stats()
        assert stats.blocks_free == stats.blocks_total, "a block leaked"
        self.scheduler.kv.take_copies()  # of somebody who left before it could be copied
        host = self.scheduler.settings.kv.host_blocks
        assert self.scheduler.kv.num_host_free == host, "a host block leaked"
        assert len(self.clients.ends) == len(self.clients.requests)
