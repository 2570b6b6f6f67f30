"""What an order of the line is made of; the base class is first come, first served."""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator

from servekit.scheduler.kv import KvBlocks
from servekit.scheduler.request import Request
from servekit.scheduler.settings import Settings

Key = tuple[float, ...]
"""Ends with the id of the request, so that no two are equal. The smallest goes first."""

IsOpen = Callable[[], bool]
"""May one more of those that wait be looked at?"""

TOKENS_PER_AGING = 1000
"""Prompt tokens that waiting `aging_s` makes up for."""

TURN = 8
"""Where waiting long cannot be let count in full, it does for one chunk of a prompt in so many."""


class Sorted:
    """Requests by a key of their own. In and out is a bisection; a walk bears both."""

    def __init__(self) -> None:
        self.entries: list[tuple[Key, Request]] = []
        self.keys: dict[int, Key] = {}

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[Request]:
        return (request for _, request in self.walk())

    @property
    def first(self) -> Request | None:
        return self.entries[0][1] if self.entries else None

    def add(self, request: Request, key: Key) -> None:
        assert request.id not in self.keys, f"request {request.id} waits twice"
        self.keys[request.id] = key
        insort(self.entries, (key, request))

    def remove(self, request: Request) -> None:
        del self.entries[self.position(self.keys.pop(request.id))]

    def position(self, key: Key) -> int:
        """How many are before this key."""
        # a tuple of one is less than the same with a request after it, which is never compared
        return bisect_left(self.entries, (key,))

    def walk(self) -> Iterator[tuple[Key, Request]]:
        """In order, each once, whoever comes or goes meanwhile."""
        index, entries = 0, self.entries
        while index < len(entries):
            entry = entries[index]
            yield entry
            if index >= len(entries) or entries[index] is not entry:
                index = self.position(entry[0])
            if index < len(entries) and entries[index][0] == entry[0]:
                index += 1

    def check(self) -> None:
        keys = [key for key, _ in self.entries]
        assert keys == sorted(keys), "the line is out of order"
        assert {request.id: key for key, request in self.entries} == self.keys, "a key is stale"


def merge(
    seated: list[tuple[Key, Request]], waiting: Iterable[tuple[Key, Request]], is_open: IsOpen
) -> Iterator[Request]:
    """Two sorted lines as one. Of `waiting` no more is looked at than is asked for."""
    rest = iter(waiting)
    head = next(rest, None) if is_open() else None
    for key, request in seated:
        while head is not None and head[0] < key and is_open():
            yield head[1]
            head = next(rest, None)
        yield request
    while head is not None and is_open():
        yield head[1]
        head = next(rest, None)


class Order:
    """Who is given room for prompt tokens next, of those without a seat and those with one.

    Orders differ in `key` and little else. Those that keep accounts are told when somebody takes
    a seat, gives it back (`ended`), or is given prompt tokens (`charge`).
    """

    def __init__(self, settings: Settings, kv: KvBlocks) -> None:
        self.config = settings.scheduler
        self.kv = kv
        self.line = Sorted()
        self.seconds_per_token = self.config.aging_s / TOKENS_PER_AGING
        """A prompt token weighs as much as waiting so long."""

    def __len__(self) -> int:
        return len(self.line)

    def rank(self, request: Request) -> Key:
        """Of running requests: the first takes blocks first and is never preempted. Never changes,
        so that the preempted keep their place.
        """
        return (request.arrived, request.id)

    def key(self, request: Request) -> Key:
        """Of one that waits, when it comes, or one with a seat, now."""
        return (request.arrived, request.id)

    def add(self, request: Request) -> None:
        self.line.add(request, self.key(request))

    def remove(self, request: Request) -> None:
        self.line.remove(request)

    def requests(self) -> Iterator[Request]:
        """All that wait, in no order that is promised."""
        return iter(self.line)

    def merged(
        self, prefilling: Iterable[Request], now: float, is_open: IsOpen
    ) -> Iterator[Request]:
        """Both kinds in one order; once `is_open` says no, only those that have a seat."""
        return merge(self.by_key(prefilling), self.line.walk(), is_open)

    def by_key(self, requests: Iterable[Request]) -> list[tuple[Key, Request]]:
        # the id ends a key, so that requests themselves are never compared
        return sorted((self.key(request), request) for request in requests)

    def ahead(self, request: Request) -> int:
        """About how many wait that would go before this one, were it added now."""
        return self.line.position(self.key(request))

    def seated(self, request: Request) -> None:
        """It left the line for a seat; what is cached counts as computed already."""

    def ended(self, request: Request) -> None:
        """It gave its seat back: it is done, or preempted."""

    def charge(self, request: Request, tokens: int) -> None:
        """So many of its prompt tokens are in the next step."""

    def challenger(self) -> Request | None:
        """Who waits and might take the seat of a running one."""
        return None

    def beaten(self, winner: Request, running: Iterable[Request]) -> list[tuple[float, Request]]:
        """Those whose seat it may take, the smallest number first."""
        return []

    def most_beaten(self) -> int:
        """Seats that may be taken at once."""
        return self.config.max_num_seqs

    def check(self) -> None:
        self.line.check()
