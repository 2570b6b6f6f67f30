"""Requests without a seat."""

from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass, field

from servekit.scheduler.policy import Key
from servekit.scheduler.request import Request, State


@dataclass(slots=True)
class WaitingQueue:
    """Those who wait for a seat, in order, and those held until something else has come."""

    order: Callable[[Request], Key]
    line: list[Request] = field(default_factory=list)
    held: dict[int, Request] = field(default_factory=dict)
    tokens: int = 0
    """Known tokens of all of them."""

    def __len__(self) -> int:
        return len(self.line) + len(self.held)

    def add(self, request: Request) -> None:
        request.state = State.WAITING
        insort(self.line, request, key=self.order)
        self.tokens += len(request.tokens)

    def remove(self, request: Request) -> None:
        if request.state is State.HELD:
            del self.held[request.id]
        else:
            self.line.remove(request)
        self.tokens -= len(request.tokens)

    def hold(self, request: Request, until: float) -> None:
        self.line.remove(request)
        self.held[request.id] = request
        request.state, request.deadline = State.HELD, until

    def release(self, request_id: int) -> None:
        """It keeps its place in the line. Not held: nothing happens."""
        request = self.held.pop(request_id, None)
        if request is not None:
            request.state, request.deadline = State.WAITING, None
            insort(self.line, request, key=self.order)

    def deadlines(self) -> list[tuple[float, Request]]:
        return [(r.deadline, r) for r in self.held.values() if r.deadline is not None]

    def check(self) -> None:
        assert self.line == sorted(self.line, key=self.order), "the line is out of order"
        assert all(r.state is State.WAITING for r in self.line), "in the line, but not waiting"
        assert all(r.state is State.HELD for r in self.held.values()), "held, but not so marked"
        both = [*self.line, *self.held.values()]
        assert self.tokens == sum(len(r.tokens) for r in both), "waiting tokens are miscounted"
        assert not any(r.blocks or r.computed or r.in_flight for r in both), "blocks without a seat"
