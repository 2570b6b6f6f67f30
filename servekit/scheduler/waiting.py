"""Requests without a seat."""

import sys
from collections.abc import Iterable, Iterator

from servekit.scheduler.kv import KvBlocks
from servekit.scheduler.order import Key
from servekit.scheduler.policy import LINES
from servekit.scheduler.request import Request, State
from servekit.scheduler.settings import Settings

MAX_DEFERRED = 64
"""Requests a step that are put off because another computes their prompt."""


def line_of(settings: Settings, kv: KvBlocks) -> "Line":
    return Line(settings, kv)


class Line:
    """Those who wait for a seat, in order, and those held until something else has come.

    It counts the seats: `seated` takes one, `ended` gives it back.
    """

    def __init__(self, settings: Settings, kv: KvBlocks) -> None:
        self.config = settings.scheduler
        self.order = LINES[self.config.order](settings, kv)
        self.held: dict[int, Request] = {}
        self.tokens = 0
        """Known tokens of all of them."""
        self.num_seated = 0
        self.stuck: dict[int, float] = {}
        """Of those that did not fit: since when others go past them."""
        self.looks = 0
        """Waiting requests that may still be looked at in this step."""
        self.deferrals = 0

    def __len__(self) -> int:
        return len(self.order) + len(self.held)

    @property
    def seats_left(self) -> int:
        return self.config.max_num_seqs - self.num_seated

    def requests(self) -> Iterator[Request]:
        """Those who wait for a seat, held ones aside; in no order that is promised."""
        return self.order.requests()

    def rank(self, request: Request) -> Key:
        """Of running requests: the first takes blocks first and is never preempted."""
        return self.order.rank(request)

    def add(self, request: Request) -> None:
        """New, or preempted."""
        request.state = State.WAITING
        self.order.add(request)
        self.tokens += len(request.tokens)

    def remove(self, request: Request) -> None:
        """It ended without a seat."""
        if request.state is State.HELD:
            del self.held[request.id]
        else:
            self._leave(request)
        self.tokens -= len(request.tokens)

    def _leave(self, request: Request) -> None:
        self.order.remove(request)
        self.stuck.pop(request.id, None)

    def hold(self, request: Request, until: float) -> None:
        self._leave(request)
        self.held[request.id] = request
        request.state, request.held_until = State.HELD, until

    def release(self, request_id: int) -> None:
        """It keeps its place in the line. Not held: nothing happens."""
        request = self.held.pop(request_id, None)
        if request is not None:
            request.state, request.held_until = State.WAITING, None
            self.order.add(request)

    def deadlines(self) -> list[tuple[float, Request]]:
        return [(r.held_until, r) for r in self.held.values() if r.held_until is not None]

    def merged(
        self, prefilling: Iterable[Request], now: float, *, seats: bool = True
    ) -> Iterator[Request]:
        """Who gets room for prompt tokens next: of `prefilling`, which have a seat, and of those
        that wait, which may be seated while they are given.

        Nobody of those that wait comes once there is no seat (`seats` False: there is none now),
        or once nobody may pass one that did not fit. Begun again with every step.
        """
        self.looks, self.deferrals = sys.maxsize if seats else 0, 0
        for request in self.order.merged(prefilling, now, self._is_open):
            if request.state is State.WAITING:
                if not self._is_open():
                    continue
                self.looks -= 1
            yield request

    def _is_open(self) -> bool:
        return self.looks > 0 and self.num_seated < self.config.max_num_seqs

    def upcoming(self, prefilling: Iterable[Request], now: float) -> Iterator[Request]:
        """The same order, for those who only want to know; nobody is seated on the way."""
        return self.order.merged(prefilling, now, lambda: self.seats_left > 0)

    def seated(self, request: Request, now: float) -> None:
        """It leaves the line for a seat and blocks, which it has already."""
        self._leave(request)
        self.tokens -= len(request.tokens)
        self.num_seated += 1
        self.order.seated(request)

    def ended(self, request: Request) -> None:
        """It gives its seat back, done or preempted, and has not forgotten yet what it computed."""
        self.num_seated -= 1
        self.order.ended(request)

    def charge(self, request: Request, tokens: int) -> None:
        """So many of its prompt tokens are in the step; `computed` counts them."""
        self.order.charge(request, tokens)

    def passed(self, request: Request, now: float) -> None:
        """It did not fit. Some others may go first, until it has waited so for `aging_s`."""
        since = self.stuck.setdefault(request.id, now)
        most = 0 if now - since >= self.config.aging_s else self.config.max_skip_ahead
        self.looks = min(self.looks, most)

    def deferred(self, request: Request) -> None:
        """Another computes what it would; it waits for that and nobody waits for it."""
        self.deferrals += 1
        if self.deferrals >= MAX_DEFERRED:
            self.looks = 0

    def ahead(self, request: Request) -> tuple[int, int]:
        """About how many wait that go before a newcomer like this, and their known tokens."""
        count, everyone = self.order.ahead(request), len(self)
        return count, self.tokens * count // everyone if everyone else 0

    def check(self) -> None:
        self.order.check()
        line = list(self.requests())
        assert len(line) == len(self.order), "the line is miscounted"
        assert all(r.state is State.WAITING for r in line), "in the line, but not waiting"
        assert all(r.state is State.HELD for r in self.held.values()), "held, but not so marked"
        assert self.stuck.keys() <= {r.id for r in line}, "who does not wait is passed by nobody"
        both = [*line, *self.held.values()]
        assert self.tokens == sum(len(r.tokens) for r in both), "waiting tokens are miscounted"
        assert not any(r.tables or r.in_flight for r in both), "blocks without a seat"
