"""Who sat where, step by step, for as long as somebody wants to look at it."""

from heapq import heapify, heappop, heappush

from servekit.scheduler.batch import Batch
from servekit.scheduler.scheduler import Scheduler
from servekit.simulator.columns import Seats, SeatState

CELLS = 48_000
"""Seats that are written down, all steps together: what a page can show."""
STEPS = 1200
"""And no more steps than these."""


class SeatKeeper:
    """Gives each running request the lowest free seat, and writes down some steps of it."""

    def __init__(self, capacity: int) -> None:
        self.seats = Seats(capacity=capacity)
        self.seat_of: dict[int, int] = {}
        self.free = list(range(capacity))
        heapify(self.free)
        self.cells = 0

    @property
    def is_full(self) -> bool:
        return self.cells >= CELLS or len(self.seats.at) >= STEPS

    def step(self, now: float, seconds: float, batch: Batch, scheduler: Scheduler) -> None:
        """A step began at `now`; its batch is planned and not yet committed."""
        running = {request.id for request in scheduler.running}
        lost = {}
        for id in [id for id in self.seat_of if id not in running]:
            seat = self.seat_of.pop(id)
            heappush(self.free, seat)
            if id in scheduler.requests:
                lost[seat] = id
        for request in scheduler.running:
            if request.id not in self.seat_of:
                self.seat_of[request.id] = heappop(self.free)
        width = 1 + max((*self.seat_of.values(), *lost), default=-1)
        states, requests, tokens = [SeatState.EMPTY] * width, [-1] * width, [0] * width
        for seat, id in lost.items():
            states[seat], requests[seat] = SeatState.PREEMPTED, id
        for id, seat in self.seat_of.items():
            states[seat], requests[seat] = SeatState.STALLED, id
        for id in batch.decodes.ids:
            seat = self.seat_of[id]
            states[seat], tokens[seat] = SeatState.DECODE, 1
        for row in batch.others:
            seat = self.seat_of[row.request_id]
            states[seat] = SeatState.DECODE if row.drafts else SeatState.PREFILL
            tokens[seat] = len(row.tokens)
        self.cells += width
        seats = self.seats
        seats.at.append(now)
        seats.seconds.append(seconds)
        seats.states.append(states)
        seats.requests.append(requests)
        seats.tokens.append(tokens)
