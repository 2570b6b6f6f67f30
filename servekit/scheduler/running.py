"""Requests with a seat, and the batches that are under way."""

from bisect import insort
from collections import Counter, deque
from collections.abc import Callable

from servekit.scheduler.batch import Batch, Copies
from servekit.scheduler.decoding import Decoding
from servekit.scheduler.pace import Meter
from servekit.scheduler.request import Request, State
from servekit.scheduler.step import Flight, Step


class Running:
    """Each is in lock step (`decoding`) or not (`loose`): because it computes a prompt, has guesses
    under way, rests, or waits for what its last row gives.
    """

    def __init__(self, rank: Callable[[Request], tuple[float, ...]], block_size: int) -> None:
        self.rank = rank
        self.by_rank: list[Request] = []
        self.loose: dict[Request, None] = {}
        self.decoding = Decoding(block_size)
        self.flights: deque[Flight] = deque()

    def __len__(self) -> int:
        return len(self.by_rank)

    @property
    def unfilled(self) -> int:
        """Places in last blocks that no token is in, or is to be, of one group of layers."""
        size = self.decoding.block_size
        loose = sum(-max(r.computed, len(r.prompt)) % size for r in self.loose)
        return self.decoding.unfilled + loose

    def seat(self, request: Request) -> None:
        request.state = State.RUNNING
        insort(self.by_rank, request, key=self.rank)
        self.loose[request] = None

    def leave(self, request: Request) -> None:
        """Give up the seat; its rows under way are still its own."""
        self.rest(request)
        self.by_rank.remove(request)
        del self.loose[request]

    def join(self, request: Request) -> None:
        del self.loose[request]
        self.decoding.join(request)

    def rest(self, request: Request) -> None:
        """Go out of lock step, if it is in that; rows under way then are strays."""
        if not request.in_lock_step:
            return
        before = self.decoding.leave(request)
        for flight in self.flights:
            if flight.batch.id > before:
                flight.strays.append(request)
        self.loose[request] = None

    def take_off(self, step: Step, copies: Copies, meter: Meter | None) -> Batch:
        """The batch of this step, which has a row at least."""
        context = self.decoding.mean_context
        decodes, columns = self.decoding.plan()
        batch = Batch(self.decoding.clock.planned + 1, decodes, step.rows, copies)
        self.flights.append(Flight(batch, columns, step.requests, meter, context))
        for request in self.decoding.advance():
            self.rest(request)
        return batch

    def check(self, everyone: list[Request], seats: int) -> None:
        decoding, clock = self.decoding, self.decoding.clock
        assert len(self.by_rank) <= seats, "more run than there are seats"
        assert self.by_rank == sorted(self.by_rank, key=self.rank), "running, out of order"
        stepping = {r.id: r for r in self.by_rank if r.in_lock_step}
        assert set(self.by_rank) == {*self.loose, *stepping.values()}, "neither loose nor in step"
        assert len(self.by_rank) == len(self.loose) + len(stepping), "loose, and in step"
        assert sorted(stepping) == sorted(decoding.ids), "not in step, or not running"
        columns = zip(decoding.ids, decoding.starts, decoding.tables, decoding.said, strict=True)
        for id, start, tables, said in columns:
            request = stepping[id]
            assert start == request.computed, f"{id} is not where its column says"
            assert tables is request.tables, f"the column of {id} has another table"
            assert said is request.tokens, f"the column of {id} has other tokens"
        total = sum(r.computed - clock.planned for r in stepping.values())
        assert decoding.context == total, "the sum of contexts is wrong"
        assert clock.planned - clock.committed == len(self.flights), "batches are miscounted"
        rows: Counter[int] = Counter()
        for flight in self.flights:
            rows.update(flight.batch.decodes.ids)
            rows.update(request.id for request in flight.requests)
        assert all(r.in_flight == rows[r.id] for r in everyone), "rows in flight are miscounted"
