"""Lower priority numbers first, and seats taken from higher ones."""

from collections import Counter
from collections.abc import Iterable, Iterator

from servekit.scheduler.kv import KvBlocks
from servekit.scheduler.order import TURN, IsOpen, Key, Order, merge
from servekit.scheduler.request import Request
from servekit.scheduler.settings import Settings


class Priority(Order):
    """By number, then by arrival; waiting `aging_s` makes up for one number, in one turn of TURN
    and for one seat of TURN.

    Were the old always let past, a low class that asks for more than there is would be old
    altogether, and the high one would wait as long as it.
    """

    def __init__(self, settings: Settings, kv: KvBlocks) -> None:
        super().__init__(settings, kv)
        self.waiting: Counter[int] = Counter()
        self.running: Counter[int] = Counter()
        """Requests of each number."""
        self.chunks = 0
        """Of prompts, since the last one whose turn it was."""
        self.turn: Request | None = None
        self.by_age: set[int] = set()
        """Those whose seat is from such a turn; they keep it."""
        self.seats_by_age = max(1, self.config.max_num_seqs // TURN)

    def aged(self, request: Request) -> Key:
        """All grow old at the same rate, so this never changes."""
        return (request.priority * self.config.aging_s + request.arrived, request.id)

    rank = aged

    def key(self, request: Request) -> Key:
        return (request.priority, request.arrived, request.id)

    def add(self, request: Request) -> None:
        super().add(request)
        self.waiting[request.priority] += 1

    def remove(self, request: Request) -> None:
        super().remove(request)
        self.waiting[request.priority] -= 1
        if not self.waiting[request.priority]:
            del self.waiting[request.priority]

    def merged(
        self, prefilling: Iterable[Request], now: float, is_open: IsOpen
    ) -> Iterator[Request]:
        seated = self.by_key(prefilling)
        old = self._oldest(seated, is_open()) if self.chunks >= TURN - 1 else None
        self.turn = old
        if old is not None:
            yield old
        for request in merge(seated, self.line.walk(), is_open):
            if request is not old:
                yield request

    def _oldest(self, seated: list[tuple[Key, Request]], is_open: bool) -> Request | None:
        """Who would be first if waiting counted in full; None if it is first already."""
        found, first = seated[:], seated[:1]
        if is_open:
            first += self.line.entries[:1]
        for number in self.waiting if is_open and len(self.by_age) < self.seats_by_age else ():
            index = self.line.position((number,))
            found.append(self.line.entries[index])
        if not found:
            return None
        _, oldest = min(found, key=lambda one: self.aged(one[1]))
        return oldest if oldest.priority > min(first)[0][0] else None

    def seated(self, request: Request) -> None:
        self.running[request.priority] += 1
        if request is self.turn:
            self.by_age.add(request.id)

    def ended(self, request: Request) -> None:
        self.by_age.discard(request.id)
        self.running[request.priority] -= 1
        if not self.running[request.priority]:
            del self.running[request.priority]

    def charge(self, request: Request, tokens: int) -> None:
        self.chunks = 0 if request is self.turn else self.chunks + 1

    def challenger(self) -> Request | None:
        first = self.line.first
        if first is None or max(self.running, default=first.priority) <= first.priority:
            return None
        return first

    def beaten(self, winner: Request, running: Iterable[Request]) -> list[tuple[float, Request]]:
        """The highest numbers first. A lower number never gives its seat to a higher one, so no
        two take it from each other in turns.
        """
        return [
            (-loser.priority, loser)
            for loser in running
            if loser.priority > winner.priority and loser.id not in self.by_age
        ]
