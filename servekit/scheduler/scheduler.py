"""Continuous batching over a paged KV cache: who computes what in the next step."""

from bisect import insort
from collections import Counter, deque

from servekit.config.schema import SchedulerConfig
from servekit.scheduler.admission import refuse_impossible, refuse_overload, seat
from servekit.scheduler.batch import PLACEHOLDER, Batch, FinishReason, Outcome, Progress, Row
from servekit.scheduler.blocks import BlockPool
from servekit.scheduler.policy import POLICIES
from servekit.scheduler.prefix import seal
from servekit.scheduler.request import Request, State
from servekit.scheduler.stats import SchedulerStats
from servekit.scheduler.step import Flight, Step
from servekit.scheduler.waiting import WaitingQueue


class Scheduler:
    """Requests in, batches out, outcomes in, progress out.

    `plan` may be called again before its last batch is committed; batches are committed in the
    order they were planned. A request that ends while a row of it is in flight keeps its blocks
    until that row is committed, so no block is written by two.

    The first in order always gets a row: it is never preempted, blocks are asked for in order, and
    nobody is seated in a step in which a running request went without.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        *,
        num_blocks: int,
        block_size: int,
        max_model_len: int,
        prefix_caching: bool,
    ) -> None:
        self.config = config
        self.policy = POLICIES[config.policy]
        self.block_size = block_size
        self.max_model_len = max_model_len
        self.max_servable_tokens = (num_blocks - 1) * block_size
        self.prefix_caching = prefix_caching
        self.pool = BlockPool(num_blocks)
        self.requests: dict[int, Request] = {}
        self.waiting = WaitingQueue(self.policy.order)
        self.running: list[Request] = []
        self.leaving: dict[int, Request] = {}
        self.in_flight: deque[Flight] = deque()
        self.steps_total = 0
        self.preemptions_total = 0
        self.prefix_query_tokens_total = 0
        self.prefix_hit_tokens_total = 0

    @property
    def busy(self) -> bool:
        """Something is waiting, held, running or in flight."""
        return bool(self.requests)

    def add(self, request: Request) -> None:
        """Queue it, or raise RequestError, ContextTooLong or Overloaded and know nothing of it."""
        assert request.id not in self.requests, f"request {request.id} is here already"
        refuse_impossible(request, self.max_model_len, self.max_servable_tokens)
        seats = self.config.max_num_seqs - len(self.running)
        refuse_overload(len(self.waiting), seats, self.config.max_num_waiting)
        self.requests[request.id] = request
        self.waiting.add(request)

    def abort(self, request_id: int) -> Progress | None:
        """End it wherever it is and return its last progress; None if nobody knows it."""
        request = self.requests.get(request_id)
        if request is None or request.finish:
            return None
        return self._finish(request, "abort")

    def hold(self, request_id: int, until: float) -> None:
        """Let a waiting request wait for something other than a seat; unknown: nothing happens."""
        request = self.requests.get(request_id)
        if request is None or request.finish:
            return
        assert request.state is State.WAITING, f"request {request_id} is {request.state.value}"
        self.waiting.hold(request, until)

    def release(self, request_id: int) -> None:
        """What it was held for has come; it keeps its place. Not held: nothing happens."""
        self.waiting.release(request_id)

    @property
    def next_deadline(self) -> float | None:
        """When `expire` will have something to do."""
        return min((deadline for deadline, _ in self.waiting.deadlines()), default=None)

    def expire(self, now: float) -> list[Progress]:
        """End with an error those held past their deadline."""
        why = "what the request was held for did not come before its deadline"
        late = self.waiting.deadlines()
        return [self._finish(r, "error", error=why) for deadline, r in late if deadline <= now]

    def plan(self, now: float) -> Batch | None:
        """The next step; None when there is nothing to compute, or nothing until a commit.

        Running requests come first, in order: those that lack one token, then those that lack
        more. What is left of the budget goes to new ones.
        """
        step = Step(self.config.max_num_batched_tokens)
        for request in self._plan_decodes(step):
            self._plan_prefill(request, step)
        if not step.short:
            self._admit(step, now)
        if not step.rows:
            return None
        self.steps_total += 1
        batch = Batch(self.steps_total, step.rows)
        self.in_flight.append(Flight(batch, step.requests))
        return batch

    def commit(self, batch: Batch, outcome: Outcome, now: float) -> list[Progress]:
        """Take in what came of the oldest batch in flight."""
        flight = self.in_flight.popleft()
        assert flight.batch is batch, f"batch {flight.batch.id} comes before batch {batch.id}"
        progress = []
        for row, request in zip(batch.rows, flight.requests, strict=True):
            request.in_flight -= 1
            if request.finish:
                self._let_go(request)
            elif request.id in outcome.failed:
                progress.append(self._finish(request, "error", error=outcome.failed[request.id]))
            elif row.samples:
                progress.append(self._accept(request, row, outcome.tokens[request.id], now))
            else:
                request.committed = row.start + len(row.tokens)
                self._seal(request)
        return progress

    def stats(self) -> SchedulerStats:
        return SchedulerStats(
            running=len(self.running),
            waiting=len(self.waiting),
            held=len(self.waiting.held),
            waiting_tokens=self.waiting.tokens,
            blocks_total=self.pool.num_blocks - 1,
            blocks_free=self.pool.num_free,
            blocks_cached=self.pool.num_cached,
            block_size=self.block_size,
            steps_total=self.steps_total,
            preemptions_total=self.preemptions_total,
            prefix_query_tokens_total=self.prefix_query_tokens_total,
            prefix_hit_tokens_total=self.prefix_hit_tokens_total,
        )

    def check(self) -> None:
        """Everything that is always true between two calls; for tests."""
        waiting = self.waiting
        waiting.check()
        everyone = [*waiting.line, *waiting.held.values(), *self.running, *self.leaving.values()]
        assert {r.id: r for r in everyone} == self.requests, "a request is lost"
        assert len(everyone) == len(self.requests), "a request is in two places"
        self.pool.check(r.blocks for r in everyone)
        assert len(self.running) <= self.config.max_num_seqs, "more run than there are seats"
        assert self.running == sorted(self.running, key=self.policy.order), "running, out of order"
        in_flight = Counter(r for flight in self.in_flight for r in flight.requests)
        assert all(r.in_flight == in_flight[r] for r in everyone), "rows in flight are miscounted"
        assert all(r.finish and r.in_flight for r in self.leaving.values()), "gone, but still here"
        for r in self.running:
            assert r.state is State.RUNNING, f"{r.id} has a seat, but is {r.state.value}"
            assert r.sealed * self.block_size <= r.committed <= r.computed <= r.wanted < r.limit
            assert r.computed <= len(r.blocks) * self.block_size, f"{r.id} writes where it has none"

    def _plan_decodes(self, step: Step) -> list[Request]:
        """A row for each running request that lacks one token; returns those that lack more."""
        prefills = []
        spare = step.budget - len(self.running)
        for request in tuple(self.running):
            start = request.computed
            missing = request.wanted - start
            if missing > 1:
                prefills.append(request)
            elif missing and request not in step.out and self._reach(request, start, step):
                known = start < len(request.tokens)
                tokens = [request.tokens[start] if known else PLACEHOLDER]
                if request.drafts:
                    drafts = self._take_drafts(request, spare) if known else []
                    request.drafts = []
                    spare -= len(drafts)
                    step.add(request, tokens + drafts, len(drafts))
                else:
                    step.add(request, tokens)
        return prefills

    def _plan_prefill(self, request: Request, step: Step) -> None:
        """As many of the missing tokens as the budget allows; their blocks it has already."""
        if step.budget and request not in step.out:
            start = request.computed
            end = min(request.wanted, start + step.budget)
            step.add(request, request.tokens[start:end])

    def _take_drafts(self, request: Request, spare: int) -> list[int]:
        """Those drafts that are allowed, and have blocks without anybody giving way."""
        length = len(request.tokens)
        room = (len(request.blocks) + self.pool.num_free) * self.block_size - length
        drafts = request.drafts[: max(0, min(request.limit - length - 1, spare, room))]
        lacking = -(-(length + len(drafts)) // self.block_size) - len(request.blocks)
        request.blocks += self.pool.take(max(0, lacking))
        return drafts

    def _reach(self, request: Request, position: int, step: Step) -> bool:
        """Have a block for this position, one after those it has, if others must give way for it.

        False: no row this time. Whoever has to give way does so once nothing of it is in flight;
        until then it rests. Blocks of requests that are leaving come by themselves.
        """
        if position < len(request.blocks) * self.block_size:
            return True
        while not self.pool.num_free:
            step.short = True
            if self.leaving:
                return False
            victim = max(self.running[1:], key=self.policy.victim)
            step.out.add(victim)
            if victim.in_flight:
                return False
            self._preempt(victim)
            if victim is request:
                return False
        request.blocks += self.pool.take(1)
        return True

    def _preempt(self, request: Request) -> None:
        self.running.remove(request)
        self.pool.give_back(request.blocks)
        request.restart()
        request.preemptions += 1
        self.preemptions_total += 1
        self.waiting.add(request)

    def _admit(self, step: Step, now: float) -> None:
        """Seat those who wait, in order, until one does not fit."""
        ran, line = len(self.running), self.waiting.line
        while line and len(self.running) < self.config.max_num_seqs:
            request = line[0]
            if not self.policy.admit(ran, step.budget) or not self._seat(request, now):
                break
            self._plan_prefill(request, step)

    def _seat(self, request: Request, now: float) -> bool:
        if not seat(request, self.pool, self.block_size, prefix_caching=self.prefix_caching):
            return False
        self.waiting.remove(request)
        request.state = State.RUNNING
        insort(self.running, request, key=self.policy.order)
        if request.admitted_at is None:
            request.admitted_at = now
            request.cached_tokens = request.computed
            self.prefix_query_tokens_total += len(request.prompt)
            self.prefix_hit_tokens_total += request.computed
        return True

    def _accept(self, request: Request, row: Row, new: list[int], now: float) -> Progress:
        assert 1 <= len(new) <= row.drafts + 1, f"{len(new)} tokens for {row.drafts} drafts"
        if request.first_token_at is None:
            request.first_token_at = now
        last_known = row.start + len(row.tokens) - row.drafts - 1
        new, stop_token = request.accept(last_known, new, drafts=row.drafts > 0)
        self._seal(request)
        if stop_token is not None:
            return self._finish(request, "stop", tokens=new, stop_token=stop_token)
        if len(request.tokens) == request.limit:
            return self._finish(request, "length", tokens=new)
        cached, preemptions = request.cached_tokens, request.preemptions
        return Progress(request.id, new, None, None, None, cached, preemptions)

    def _seal(self, request: Request) -> None:
        if self.prefix_caching and request.committed >= (request.sealed + 1) * self.block_size:
            seal(request, self.pool, self.block_size)

    def _finish(
        self,
        request: Request,
        finish: FinishReason,
        *,
        tokens: list[int] | None = None,
        stop_token: int | None = None,
        error: str | None = None,
    ) -> Progress:
        if request.state is State.RUNNING:
            self.running.remove(request)
        else:
            self.waiting.remove(request)
        request.state, request.finish = State.FINISHED, finish
        self.leaving[request.id] = request
        self._let_go(request)
        cached, preemptions = request.cached_tokens, request.preemptions
        return Progress(request.id, tokens or [], finish, stop_token, error, cached, preemptions)

    def _let_go(self, request: Request) -> None:
        """Give its blocks back once nothing of it is in flight."""
        if not request.in_flight:
            self.pool.give_back(request.blocks)
            request.blocks = []
            del self.leaving[request.id], self.requests[request.id]
