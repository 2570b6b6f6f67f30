"""Orders of the line, as a table; `scheduler.order` in the configuration picks a row."""

from collections.abc import Iterable, Iterator
from itertools import islice

from servekit.scheduler.deadline import Deadline
from servekit.scheduler.fair import Fair
from servekit.scheduler.order import IsOpen, Key, Order, merge
from servekit.scheduler.pools import TwoPool
from servekit.scheduler.priority import Priority
from servekit.scheduler.request import Request


class ShortestPrefill(Order):
    """Fewest prompt tokens to compute; waiting makes up for them."""

    ROUNDS = 16
    """Of looking again at who is first: what was in the cache when it came may be gone."""

    def key(self, request: Request) -> Key:
        there = request.computed or self.kv.probable_hit(request)
        missing = request.wanted - there
        return (request.arrived + missing * self.seconds_per_token, request.id)

    def merged(
        self, prefilling: Iterable[Request], now: float, is_open: IsOpen
    ) -> Iterator[Request]:
        if is_open():
            self._look_again()
        return super().merged(prefilling, now, is_open)

    def _look_again(self) -> None:
        for _ in range(self.ROUNDS):
            first = self.line.first
            if first is None or self.key(first) == self.line.keys[first.id]:
                break
            self.remove(first)
            self.add(first)


class LongestPrefix(Order):
    """Most tokens found in the cache, among those who came first; waiting makes up for them."""

    WINDOW = 64
    """Waiting requests whose prompts are looked up."""

    def _by_hit(self, request: Request) -> Key:
        there = request.computed or self.kv.probable_hit(request)
        return (request.arrived - there * self.seconds_per_token, request.id)

    def merged(
        self, prefilling: Iterable[Request], now: float, is_open: IsOpen
    ) -> Iterator[Request]:
        seated = sorted((self._by_hit(request), request) for request in prefilling)
        return merge(seated, self._waiting() if is_open() else (), is_open)

    def _waiting(self) -> Iterator[tuple[Key, Request]]:
        window = [request for _, request in islice(self.line.walk(), self.WINDOW)]
        yield from sorted((self._by_hit(request), request) for request in window)
        looked_at = {request.id for request in window}
        yield from ((key, r) for key, r in self.line.walk() if r.id not in looked_at)


LINES: dict[str, type[Order]] = {
    "fcfs": Order,
    "priority": Priority,
    "shortest_prefill": ShortestPrefill,
    "longest_prefix": LongestPrefix,
    "deadline": Deadline,
    "fair": Fair,
    "two_pool": TwoPool,
}
