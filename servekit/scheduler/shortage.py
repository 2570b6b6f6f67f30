"""Blocks for those who run, and who gives way when there are none."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from servekit.scheduler.preemption import by_swap, victim
from servekit.scheduler.request import Request, State
from servekit.scheduler.step import Step
from servekit.scheduler.takeover import Takeovers

if TYPE_CHECKING:
    from servekit.scheduler.scheduler import Scheduler


class Shortage:
    """Some have to give way while rows of them are in flight: they rest, and give way after."""

    def __init__(self, scheduler: "Scheduler") -> None:
        self.settings, self.config = scheduler.settings, scheduler.config
        self.running, self.line, self.kv = scheduler.seats, scheduler.line, scheduler.kv
        self.reserve, self.lengths = scheduler.reserve, scheduler.lengths
        self.takeovers = Takeovers(scheduler.settings, scheduler.line, scheduler.kv)
        self.winner: Request | None = None
        """For whom those in `giving` give way; None: for those that run."""
        self.giving: dict[Request, None] = {}
        self.preempted: list[Request] = []
        """Those that lost their seat while the latest step was planned."""
        self.preemptions_total = 0
        self.preempted_tokens_total = 0
        self.takeovers_total = 0

    def extend(self, crossing: list[Request]) -> list[Request]:
        """Blocks for all of these, who are in lock step and come to the end of theirs, if there are
        enough for whoever might ask; returns those that still need one, or may.
        """
        kv = self.kv
        if not crossing or kv.num_free < (len(crossing) + 1) * len(kv.settings.groups):
            return crossing
        if kv.extend_all(crossing):
            return []
        left = []
        for request in crossing:
            if not kv.reaches(request, request.computed):
                if kv.can_extend(request):
                    kv.extend(request)
                else:
                    left.append(request)
        return left

    def reach(self, request: Request, step: Step, leaving: bool) -> bool:
        """Have a block for its next position, if others must give way for it.

        False: no row this time. Blocks of requests that are `leaving` come by themselves.
        """
        if self.kv.reaches(request, request.computed):
            return True
        while not self.kv.can_extend(request):
            step.short = True
            if leaving or (request is self.running.by_rank[0] and len(self.running) == 1):
                return False
            self.giving.pop(self.running.by_rank[0], None)
            loser = next(iter(self.giving), None) or self._choose()
            if loser.in_flight:
                self._rest(loser)
                return False
            self.preempt(loser)
            self.reserve.failed()
            if loser is request:
                return False
        self.kv.extend(request)
        return True

    def spare_first(self) -> None:
        """Who comes to be first by rank gives way no more, or others would have its block."""
        if self.giving and self.winner is None:
            self.giving.pop(self.running.by_rank[0], None)

    def _choose(self) -> Request:
        """The first by rank never gives way, so somebody always comes to an end."""
        others = self.running.by_rank[1:]
        return victim(others, self.kv, self.config, self.lengths.remaining)

    def _rest(self, loser: Request) -> None:
        self.running.rest(loser)
        self.giving[loser] = None

    def settle(self, step: Step) -> bool:
        """Blocks have come meanwhile and nobody need give way any more, who was about to."""
        if not self.giving or step.short or self.winner is not None:
            return False
        self.giving.clear()
        return True

    def take_over(self, now: float, short: Callable[[Request], int]) -> None:
        """Let those who wait have the seats of those who run, where the order says so."""
        if self.winner is None:
            due = self.takeovers.due(self.running.by_rank, now, short, self.lengths.remaining)
            if due is None:
                return
            self.winner = due.winner
            for loser in due.losers:
                self._rest(loser)
            self.takeovers_total += len(due.losers)
        if self.winner.state is not State.WAITING:
            self.giving.clear()
        if not any(loser.in_flight for loser in self.giving):
            for loser in tuple(self.giving):
                self.preempt(loser)
            self.winner = None

    def preempt(self, request: Request) -> None:
        """Give its seat and its blocks back; it keeps its place in the line."""
        self.line.ended(request)
        self.leave(request)
        if not (by_swap(request, self.kv, self.settings) and self.kv.swap_out(request)):
            self.preempted_tokens_total += request.computed
            self.kv.release(request)
            request.restart()
        request.preemptions += 1
        self.preempted.append(request)
        self.preemptions_total += 1
        self.line.add(request)

    def leave(self, request: Request) -> None:
        """It loses its seat."""
        self.giving.pop(request, None)
        self.running.leave(request)
        self.reserve.left(request)

    def take_drafts(self, request: Request, step: Step) -> list[int]:
        """Those guesses that are allowed, and have blocks without anybody giving way."""
        length, guesses = len(request.tokens), request.drafts
        request.drafts = []
        if request.computed >= length:
            return []
        spare = step.budget - (len(self.running) - len(step.rows))
        drafts = guesses[: max(0, min(request.limit - length - 1, spare))]
        while drafts and not self.kv.reaches(request, length + len(drafts) - 1):
            if not self.kv.can_extend(request):
                drafts.pop()
            else:
                self.kv.extend(request)
        return drafts
