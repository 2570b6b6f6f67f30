"""Seats that those who wait take from those who run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from servekit.scheduler.kv import KvBlocks
from servekit.scheduler.preemption import cost
from servekit.scheduler.request import Request
from servekit.scheduler.settings import Settings
from servekit.scheduler.waiting import Line

BURST_S = 60.0
"""Takeovers of so long may happen at once."""


@dataclass(frozen=True, slots=True)
class Takeover:
    """`losers` are to be preempted, then `winner` has a seat and its blocks."""

    winner: Request
    losers: list[Request]


class Takeovers:
    """At most `takeovers_per_s` seats change hands a second, those of the last minute saved up.

    Nobody loses its seat more than `max_preemptions` times.
    """

    def __init__(self, settings: Settings, line: Line, kv: KvBlocks) -> None:
        self.config = settings.scheduler
        self.line = line
        self.kv = kv
        self.most = max(1.0, BURST_S * self.config.takeovers_per_s)
        self.left = self.most
        self.at: float | None = None

    def due(
        self,
        running: Sequence[Request],
        now: float,
        short: Callable[[Request], int],
        remaining: Callable[[Request], float],
    ) -> Takeover | None:
        """Who should take whose seat now, which counts as done; nothing may be on its way from
        the last time. `short` says how many blocks a waiting request lacks, with what is free.
        """
        if not self.config.takeovers_per_s or self.config.policy == "static":
            return None
        winner = self.line.order.challenger()
        if winner is None:
            return None
        limit = min(self._allowed(now), self.line.order.most_beaten())
        if limit < 1:
            return None
        losers = self._losers(winner, running, short, remaining)
        if not losers or len(losers) > limit:
            return None
        self.left -= len(losers)
        return Takeover(winner, losers)

    def _allowed(self, now: float) -> int:
        if self.at is not None:
            self.left += max(0.0, now - self.at) * self.config.takeovers_per_s
        self.left = min(self.left, self.most)
        self.at = now
        return int(self.left)

    def _losers(
        self,
        winner: Request,
        running: Sequence[Request],
        short: Callable[[Request], int],
        remaining: Callable[[Request], float],
    ) -> list[Request]:
        """As few as give it a seat and its blocks, the cheapest first; none if all are too few."""
        beaten = [
            (first, request)
            for first, request in self.line.order.beaten(winner, running)
            if request.preemptions < self.config.max_preemptions
        ]
        if not beaten or self.kv.is_computed_by_another(winner, self.kv.lookup(winner)):
            return []
        lacking = short(winner)
        seats = self.line.seats_left
        if seats > 0 and lacking <= 0:
            return []
        beaten.sort(key=lambda one: (one[0], cost(one[1], self.kv, remaining)))
        losers: list[Request] = []
        for _, request in beaten:
            losers.append(request)
            lacking -= self.kv.freed_by(request)
            if lacking <= 0:
                return losers
        return []
