"""One copy of the model: the scheduler that serves, on a device that is a formula."""

import math
from collections import deque
from collections.abc import Callable, Collection
from itertools import repeat
from typing import NamedTuple

from servekit.config.schema import Config
from servekit.errors import ServekitError
from servekit.scheduler.batch import Batch, Outcome
from servekit.scheduler.request import Request
from servekit.scheduler.scheduler import Scheduler
from servekit.scheduler.settings import StepTime, settings_of
from servekit.simulator.columns import Steps
from servekit.simulator.executor import STOP, SimulatedExecutor, Work
from servekit.simulator.gaps import GapKeeper
from servekit.simulator.record import CopyRecord, End, Served
from servekit.simulator.seats import SeatKeeper
from servekit.spec.kv import KvLayout
from servekit.workload.arrival import Arrival

STOPS = frozenset((STOP,))

Ended = Callable[[int, Arrival, Served, float], None]
"""Told of the end of a request: its number, what it was, what became of it, and when."""


class Flight(NamedTuple):
    """A step under way, and how full the copy is meanwhile."""

    batch: Batch
    outcome: Outcome
    work: Work
    running: int
    waiting: int
    blocks_used: int


class Replica:
    """Takes requests in when they come, and wakes where a step ends or, idle, somebody comes."""

    def __init__(
        self,
        config: Config,
        layout: KvLayout,
        step_time: StepTime,
        device: StepTime,
        *,
        number: int,
        seed: int,
        foreseen: bool,
        ended: Ended,
    ) -> None:
        """The scheduler begins with what `step_time` says, a step takes what `device` says."""
        self.number = number
        self.ended = ended
        self.foreseen = foreseen
        self.patience = config.workload.patience_s
        self.scheduler = Scheduler(settings_of(config, layout, step_time))
        self.executor = SimulatedExecutor(config, device, seed + number)
        self.room = min(config.model.max_model_len, self.scheduler.kv.max_servable_tokens)
        self.guesses = [0] * config.speculative.tokens
        self.gaps = GapKeeper()
        self.record = CopyRecord(Steps(), self.gaps.gaps, layout.num_blocks)
        self.seats: SeatKeeper | None = None
        self.live: dict[int, tuple[Arrival, Request]] = {}
        self.leaving: deque[tuple[float, int]] = deque()
        """When the patience of whose client ends, in order."""
        self.flight: Flight | None = None
        self.wakes_at = math.inf
        self.outstanding = 0
        self.gone: set[int] = set()
        """Left while a step was under way, which may still compute something for them."""
        self.preempted = self.refused = self.asked = 0

    def watch(self, seats: SeatKeeper) -> None:
        """Write down the seats of the steps from now on."""
        seats.seats.first_step = len(self.record.steps) + (self.flight is not None)
        self.seats = seats

    def wake(self, now: float, until: Callable[[], float]) -> None:
        """End the step that is under way and begin the next.

        Steps in which nothing happens are taken at once if they end before `until`, when something
        may come from outside; it is asked after the end of the step, which may let somebody come.
        """
        if self.leaving and self.leaving[0][0] <= now:
            self._leave(now)
        if self.flight is not None:
            self._commit(self.flight, now)
        if self.guesses:
            for request in self.scheduler.running:
                if request.first_token_at is not None:
                    request.drafts = self.guesses
        else:
            now = self._leap(now, until)
        batch = self.scheduler.plan(now)
        if self.scheduler.kv.query_tokens_total != self.asked:
            self._look_up(now)
        if batch is None:
            self.flight = None
            self.wakes_at = self.leaving[0][0] if self.leaving and self.live else math.inf
            return
        outcome, work = self.executor.run(batch)
        if self.seats is not None and not self.seats.is_full:
            self.seats.step(now, outcome.seconds, batch, self.scheduler)
        scheduler = self.scheduler
        held = self.record.blocks_total - scheduler.kv.num_free
        running, waiting = len(scheduler.running), len(scheduler.line)
        self.flight = Flight(batch, outcome, work, running, waiting, held)
        self.wakes_at = now + outcome.seconds

    def _leap(self, now: float, until: Callable[[], float]) -> float:
        """Take the steps of which all is known; returns when they end."""
        scheduler, most = self.scheduler, self.scheduler.leap.most()
        if not most or (self.seats is not None and not self.seats.is_full):
            return now
        end = until()
        if self.leaving and len(scheduler.line):
            end = min(end, self.leaving[0][0])
        decoding, answers = scheduler.seats.decoding, self.executor.answers
        ids, starts = decoding.ids, decoding.starts
        seconds, ends = self.executor.ahead(ids, starts, most, now, end)
        if not seconds:
            return now
        steps, rows = len(seconds), len(ids)
        free = scheduler.leap.take([[answers[id]] * steps for id in ids], seconds)
        self.gaps.steps(ends, ids)
        record, none = self.record, repeat(0)
        alike = (repeat(len(scheduler.running)), repeat(len(scheduler.line)))
        used = map(record.blocks_total.__sub__, free)
        columns = (ends, seconds, repeat(rows), none, none, *alike, used, none, none, repeat(rows))
        record.steps.add_all(zip(*columns, strict=False))
        record.padding_tokens += steps * self.executor.padding(rows)
        return ends[-1]

    def _look_up(self, now: float) -> None:
        kv = self.scheduler.kv
        self.asked, missed = kv.query_tokens_total, kv.cache.misses.tokens
        self.record.lookups.add(now, kv.hit_tokens_total, missed.items())

    def send(self, number: int, arrival: Arrival) -> None:
        """A request comes, at `arrival.at`.

        Without `foreseen` its client sets no max_tokens, as most do: it is all there is room for,
        and nobody knows that the answer will stop before.
        """
        output, prompt = arrival.output_tokens, arrival.prompt_tokens
        request = Request(
            number,
            arrival.prompt,
            output if self.foreseen else max(output, self.room - prompt),
            stop_ids=frozenset() if self.foreseen else STOPS,
            arrived=arrival.at,
            salt=arrival.tenant.encode(),
            priority=arrival.priority,
            tenant=arrival.tenant,
            slo_class=arrival.slo_class,
        )
        try:
            self.scheduler.add(request)
        except ServekitError as error:
            self.refused += 1
            self._end(number, arrival, request, "refused", arrival.at, error)
            return
        self.executor.add(
            number, arrival.answer, math.inf if self.foreseen else prompt + output - 2
        )
        self.live[number] = arrival, request
        self.outstanding += prompt
        if self.flight is None:
            self.wakes_at = arrival.at
        if self.patience is not None:
            self.leaving.append((arrival.at + self.patience, number))

    def _leave(self, now: float) -> None:
        """Clients whose patience ends close the connection, unless they have a first token."""
        while self.leaving and self.leaving[0][0] <= now:
            at, number = self.leaving.popleft()
            if number in self.live and self.live[number][1].first_token_at is None:
                self.scheduler.abort(number)
                self.gone.add(number)
                self._gone(number, "left", at)

    def _commit(self, flight: Flight, now: float) -> None:
        scheduler, batch, outcome, work = self.scheduler, *flight[:3]
        gains = scheduler.commit(batch, outcome, now)
        decodes: list[int] = batch.decodes.ids
        others: Collection[int] = outcome.tokens
        if self.gone:
            decodes = [id for id in decodes if id not in self.gone]
            others = outcome.tokens.keys() - self.gone
            self.gone.clear()
        self.gaps.step(now, decodes, others)
        if work.accepted:
            self.gaps.more(now, work.accepted)
        self._note(now, flight, len(decodes) + len(others))
        for gain in gains.others:
            if gain.finish is not None:
                self._gone(gain.request_id, "finished", now)

    def _note(self, now: float, flight: Flight, rows: int) -> None:
        """What the step was, in the columns of the record."""
        _, outcome, work, running, waiting, blocks_used = flight
        decodes, prompt_tokens, prompts, padding, drafts, accepted = work
        before, self.preempted = self.preempted, self.scheduler.shortage.preemptions_total
        record, preempted, said = self.record, self.preempted - before, rows + accepted
        record.steps.add(
            (
                *(now, outcome.seconds, decodes, prompt_tokens, prompts, running, waiting),
                *(blocks_used, preempted, self.refused, said),
            )
        )
        self.refused = 0
        record.padding_tokens += padding
        if drafts:
            record.drafts += drafts
            record.accepted_drafts += accepted

    def _gone(self, number: int, end: End, now: float) -> None:
        arrival, request = self.live.pop(number)
        self.executor.remove(number)
        self.gaps.ended(number)
        self.outstanding -= arrival.prompt_tokens
        self._end(number, arrival, request, end, now, None)

    def _end(
        self,
        number: int,
        arrival: Arrival,
        request: Request,
        end: End,
        now: float,
        error: ServekitError | None,
    ) -> None:
        served = Served(
            at=arrival.at,
            prompt_tokens=arrival.prompt_tokens,
            output_tokens=len(request.tokens) - len(request.prompt),
            asked_tokens=arrival.output_tokens,
            tenant=arrival.tenant,
            priority=arrival.priority,
            slo_class=arrival.slo_class,
            copy=self.number,
            end=end,
            admitted_at=request.admitted_at,
            first_token_at=request.first_token_at,
            finished_at=now,
            cached_tokens=request.cached_tokens,
            preemptions=request.preemptions,
            code="" if error is None else error.code,
            retry_after_s=None if error is None else error.retry_after_s,
        )
        self.ended(number, arrival, served, now)

    def close(self, now: float) -> None:
        """The run is over: those who are still here are not served any more."""
        for number in list(self.live):
            self._gone(number, "unfinished", now)
        self.record.steps.settle()
        totals = self.scheduler.stats()
        self.record.prefix_query_tokens = totals.prefix_query_tokens_total
        self.record.prefix_hit_tokens = totals.prefix_hit_tokens_total
        self.record.wasted_tokens = totals.preempted_tokens_total
        self.record.swaps = totals.swaps_total
        self.record.misses = totals.prefix_miss_tokens_total
