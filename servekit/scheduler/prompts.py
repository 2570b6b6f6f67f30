"""Room for prompt tokens: to those with a seat that lack some, and to those that get a seat."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from servekit.scheduler.pace import Meter
from servekit.scheduler.request import Request, State
from servekit.scheduler.step import Step

if TYPE_CHECKING:
    from servekit.scheduler.scheduler import Scheduler


class Prompts:
    """Nobody is seated in a step in which a running request went without a block."""

    def __init__(self, scheduler: "Scheduler") -> None:
        self.static = scheduler.config.policy == "static"
        self.running, self.line, self.kv = scheduler.seats, scheduler.line, scheduler.kv
        self.pace, self.reserve = scheduler.pace, scheduler.reserve
        self.seated: list[Request] = []
        """Those that the latest step gave a seat."""

    def plan(self, step: Step, now: float) -> Meter | None:
        """Rows of prompt tokens, until the step is full; None if there is nobody for any."""
        running, line, prefilling = self.running, self.line, step.prefilling
        closed = step.short or (self.static and len(running) > 0)
        seats = not closed and line.seats_left > 0 and len(line) > len(line.held)
        if not prefilling and not seats:
            return None
        decodes = len(running.decoding) + len(step.rows)
        context, pending = running.decoding.mean_context, self._pending(prefilling, now)
        meter = self.pace.meter(now, decodes, context, pending, step.guesses)
        for request in line.merged(prefilling, now, seats=seats):
            if request.state is State.WAITING:
                room = self._seat(request, meter, now)
            else:
                room = meter.allow(request.computed, request.wanted - request.computed)
            start = request.computed
            if room and (room := self.kv.prepare(request, start + room) - start):
                step.add(request, request.tokens[start : start + room])
                meter.spend(start, room)
                line.charge(request, room)
            elif meter.full and not self.static:
                break
        return meter

    def _pending(self, prefilling: list[Request], now: float) -> Iterator[Request]:
        """Whom the pace looks at if it has to know what is ahead; before that, nobody does."""
        yield from self.line.upcoming(prefilling, now)

    def short(self, request: Request) -> int:
        """Blocks that must come free before it can be seated."""
        lacking = self.kv.lacking(request, self.kv.lookup(request))
        return lacking + self._reserved(request) - self.kv.num_free

    def _reserved(self, request: Request) -> int:
        running = self.running
        return self.reserve.blocks(
            request, running.by_rank, self.kv, running.decoding.clock.planned
        )

    def _seat(self, request: Request, meter: Meter, now: float) -> int:
        """Give it a seat if there are blocks for it; returns its room for tokens in this step.

        A static batch is seated at once, whatever its prompts take to compute.
        """
        kv, line = self.kv, self.line
        hit = kv.lookup(request)
        room = meter.allow(hit.tokens, len(request.tokens) - hit.tokens)
        if not room and not self.static:
            return 0
        if kv.is_computed_by_another(request, hit):
            line.deferred(request)
            return 0
        if kv.lacking(request, hit) + self._reserved(request) > kv.num_free:
            line.passed(request, now)
            return 0
        kv.seat(request, hit)
        line.seated(request, now)
        self.running.seat(request)
        self.seated.append(request)
        self.reserve.seated(request)
        if request.admitted_at is None:
            request.admitted_at = now
            request.cached_tokens = request.computed
        return room
