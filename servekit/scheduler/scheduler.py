"""Continuous batching over a paged KV cache: who computes what in the next step."""

from servekit.scheduler.admission import Door
from servekit.scheduler.batch import Batch, Gains, Outcome, Progress
from servekit.scheduler.forecast import Forecast
from servekit.scheduler.kv import KvBlocks
from servekit.scheduler.leap import Leap
from servekit.scheduler.ledger import Ledger
from servekit.scheduler.lengths import OutputLengths
from servekit.scheduler.pace import Pace
from servekit.scheduler.predicted import RESERVES
from servekit.scheduler.prompts import Prompts
from servekit.scheduler.request import Request, State
from servekit.scheduler.running import Running
from servekit.scheduler.settings import Settings
from servekit.scheduler.shortage import Shortage
from servekit.scheduler.stats import SchedulerStats
from servekit.scheduler.step import Step
from servekit.scheduler.waiting import line_of


class Scheduler:
    """Requests in, batches out, outcomes in, progress out.

    `plan` may be called again before its last batch is committed; batches are committed in the
    order they were planned. What a batch holds is not changed by anything that happens after.

    The first by rank always gets a row: it is never preempted, blocks are asked for by rank, and
    nobody is seated in a step in which a running request went without.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings, self.config = settings, settings.scheduler
        self.kv = KvBlocks(settings.kv)
        self.line = line_of(settings, self.kv)
        self.lengths = OutputLengths()
        self.pace = Pace(settings)
        self.reserve = RESERVES[self.config.reserve](settings, self.lengths)
        self.seats = Running(self.line.rank, settings.kv.block_size)
        self.shortage = Shortage(self)
        self.prompts = Prompts(self)
        self.door = Door(settings, Forecast(settings, self.pace, self.lengths))
        self.ledger = Ledger(self)
        self.leap = Leap(self)

    @property
    def running(self) -> list[Request]:
        """Those with a seat, by rank."""
        return self.seats.by_rank

    @property
    def requests(self) -> dict[int, Request]:
        """Everybody who is here."""
        return self.ledger.requests

    @property
    def busy(self) -> bool:
        """Something is waiting, held, running or in flight."""
        return bool(self.ledger.requests)

    @property
    def steps_total(self) -> int:
        return self.seats.decoding.clock.planned

    def add(self, request: Request) -> None:
        """Queue it, or raise what `Door.refuse` does and know nothing of it."""
        assert request.id not in self.requests, f"request {request.id} is here already"
        target = self.settings.slo.ttft_ms
        if target is not None and request.slo_class == "interactive":
            request.due = request.arrived + target / 1000
        self.door.refuse(request, self)
        self.requests[request.id] = request
        self.line.add(request)

    def abort(self, request_id: int) -> Progress | None:
        """End it wherever it is and return its last progress; None if nobody knows it."""
        request = self.requests.get(request_id)
        if request is None or request.finish:
            return None
        return self.ledger.finish(request, "abort", None)

    def hold(self, request_id: int, until: float) -> None:
        """Let a waiting request wait for something other than a seat; unknown: nothing happens."""
        request = self.requests.get(request_id)
        if request is None or request.finish:
            return
        assert request.state is State.WAITING, f"request {request_id} is {request.state.value}"
        self.line.hold(request, until)

    def release(self, request_id: int) -> None:
        """What it was held for has come; it keeps its place. Not held: nothing happens."""
        self.line.release(request_id)

    @property
    def next_deadline(self) -> float | None:
        """When `expire` will have something to do."""
        return min((deadline for deadline, _ in self.line.deadlines()), default=None)

    def expire(self, now: float) -> list[Progress]:
        """End with an error those held past their deadline."""
        why = "what the request was held for did not come before its deadline"
        late = [request for deadline, request in self.line.deadlines() if deadline <= now]
        return [self.ledger.finish(request, "error", now, error=why) for request in late]

    def plan(self, now: float) -> Batch | None:
        """The next step; None when there is nothing to compute, or nothing until a commit.

        Those that decode go on by a token each, then come prompts: of those with a seat, and of
        those that get one.
        """
        step = Step(self.config.max_num_batched_tokens)
        self.prompts.seated.clear()
        self.shortage.preempted.clear()
        self.shortage.take_over(now, self.prompts.short)
        self._plan_decodes(step)
        meter = self.prompts.plan(step, now)
        if not step.rows and not self.seats.decoding:
            return None
        return self.seats.take_off(step, self.kv.take_copies(), meter)

    def _plan_decodes(self, step: Step) -> None:
        """Only those are looked at that need a block, have guesses, or are not in lock step."""
        seats, shortage = self.seats, self.shortage
        shortage.spare_first()
        asking = shortage.extend(seats.decoding.crossing())
        if seats.decoding.drafting:
            asking += seats.decoding.drafting.difference(asking)
        for request in seats.loose:
            missing = request.wanted - request.computed
            if missing == 1 and request.computed >= len(request.prompt):
                asking.append(request)
            elif missing:
                step.prefilling.append(request)
        if asking:
            asking.sort(key=self.line.rank)
            self._ask(asking, step)
        if shortage.settle(step):
            self._ask(asking, step)
        if step.short or shortage.giving:
            step.prefilling = [
                request
                for request in step.prefilling
                if request.state is State.RUNNING and request not in shortage.giving
            ]

    def _ask(self, asking: list[Request], step: Step) -> None:
        """Whoever has a block for its next token gets a row, or comes to be in lock step."""
        seats, shortage = self.seats, self.shortage
        leaving = bool(self.ledger.leaving)
        for request in asking:
            if request.state is not State.RUNNING or request in shortage.giving:
                continue
            if request.computed == request.wanted:
                continue
            if not shortage.reach(request, step, leaving):
                if request.state is State.RUNNING:
                    seats.rest(request)
            elif request.drafts and (drafts := shortage.take_drafts(request, step)):
                seats.rest(request)
                start = request.computed
                step.add(request, [request.tokens[start], *drafts], len(drafts))
            elif not request.in_lock_step:
                seats.join(request)

    def commit(self, batch: Batch, outcome: Outcome, now: float) -> Gains:
        """Take in what came of the oldest batch in flight."""
        flight = self.seats.flights[0]
        gains = self.ledger.commit(batch, outcome, now)
        if flight.meter is not None:
            self.pace.observe(flight.meter, outcome.seconds)
        elif not batch.others:
            self.pace.decoded(len(batch.decodes.ids), flight.context, outcome.seconds)
        return gains

    def stats(self) -> SchedulerStats:
        return SchedulerStats(
            running=len(self.running),
            waiting=len(self.line),
            held=len(self.line.held),
            waiting_tokens=self.line.tokens,
            blocks_total=self.kv.settings.num_blocks - 1,
            blocks_free=self.kv.num_free,
            blocks_cached=self.kv.cache.index.num_cached,
            blocks_remembering=self.kv.pool.num_remembering,
            block_size=self.kv.block_size,
            steps_total=self.steps_total,
            preemptions_total=self.shortage.preemptions_total,
            preempted_tokens_total=self.shortage.preempted_tokens_total,
            swaps_total=self.kv.swaps_total,
            takeovers_total=self.shortage.takeovers_total,
            merged_blocks_total=self.kv.cache.merged_total,
            prefix_query_tokens_total=self.kv.query_tokens_total,
            prefix_hit_tokens_total=self.kv.hit_tokens_total,
            prefix_miss_tokens_total={
                str(why): n for why, n in self.kv.cache.misses.tokens.items()
            },
            refused_total=dict(self.door.refused),
            predicted_ttft_s=self.door.forecast.typical(self),
            slots_unfilled=self.seats.unfilled * len(self.kv.settings.groups),
            step_budget_tokens=self.pace.budget_tokens,
        )

    def check(self) -> None:
        """Everything that is always true between two calls; for tests."""
        line = self.line
        line.check()
        waiting = [*line.requests(), *line.held.values()]
        everyone = [*waiting, *self.running, *self.ledger.leaving.values()]
        assert {r.id: r for r in everyone} == self.requests, "a request is lost"
        assert len(everyone) == len(self.requests), "a request is in two places"
        assert line.num_seated == len(self.running), "the line miscounts seats"
        assert line.tokens == sum(len(r.tokens) for r in waiting), "waiting tokens are miscounted"
        assert not any(r.tables or r.in_flight for r in waiting), "blocks without a seat"
        self.kv.check(everyone)
        self.seats.check(everyone, self.config.max_num_seqs)
        gone = self.ledger.leaving.values()
        assert all(r.finish and r.in_flight for r in gone), "gone, but still here"
        for r in self.running:
            assert r.state is State.RUNNING, f"{r.id} has a seat, but is {r.state.value}"
            assert r.sealed * self.kv.block_size <= r.committed <= r.computed <= r.wanted < r.limit
            reached = r.computed == 0 or self.kv.reaches(r, r.computed - 1)
            assert reached, f"{r.id} writes where it has none"
