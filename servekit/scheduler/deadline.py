"""Least slack first: whoever has to start soonest to keep its promise."""

import math
from collections.abc import Iterable, Iterator

from servekit.scheduler.kv import KvBlocks
from servekit.scheduler.order import TURN, IsOpen, Key, Order, merge
from servekit.scheduler.request import Request
from servekit.scheduler.settings import Settings

RESUMED, IN_TIME, LATE, BATCH = range(4)
"""Levels: answers that were interrupted; those that can still keep their promise, by the moment
at which they must start; those that cannot any more; and those to whom nothing was promised."""


class Deadline(Order):
    """The slack of all shrinks at the same rate, so its order is that of the latest start: `due`
    less the seconds that its prompt takes. It only changes when that moment passes. Where there is
    none to keep, the order is that in which they would be done if each were alone: a long prompt
    lets short ones past that come while it is computed, and none for ever.

    Of TURN chunks of prompts one goes to the oldest of the lower levels, if it waited `aging_s`.
    Overload makes everybody old: were they all let past, everybody would be late.
    """

    def __init__(self, settings: Settings, kv: KvBlocks) -> None:
        super().__init__(settings, kv)
        self.step_time = settings.step_time
        self.prompt_s: dict[int, float] = {}
        """Of each seated request, how long its whole prompt takes."""
        self.chunks = 0
        """Given since the last one to an old request of a lower level."""
        self.now = -math.inf

    def rank(self, request: Request) -> Key:
        return (request.slo_class == "batch", request.arrived, request.id)

    def key(self, request: Request) -> Key:
        if request.first_token_at is not None:
            return (RESUMED, request.arrived, request.arrived, request.id)
        if request.slo_class == "batch":
            return (BATCH, request.arrived, request.arrived, request.id)
        seconds = self._seconds(request)
        latest, alone = request.due - seconds, request.arrived + seconds
        if latest < self.now:
            return (LATE, alone, request.arrived, request.id)
        return (IN_TIME, latest, alone, request.id)

    def _seconds(self, request: Request) -> float:
        """That the rest of its prompt takes to compute."""
        whole = self.prompt_s.get(request.id)
        if whole is not None:
            return whole * (request.wanted - request.computed) / max(1, request.wanted)
        return self._whole_s(request, self.kv.probable_hit(request))

    def _whole_s(self, request: Request, there: int) -> float:
        if self.step_time is None:
            return 0.0
        return self.step_time.seconds(0, 0, [(request.wanted - there, there)])

    def seated(self, request: Request) -> None:
        # of all of it, as if none were cached: the share that is left counts
        if request.first_token_at is None:
            self.prompt_s[request.id] = self._whole_s(request, 0)

    def ended(self, request: Request) -> None:
        self.prompt_s.pop(request.id, None)

    def charge(self, request: Request, tokens: int) -> None:
        self.chunks = 0 if self._is_old(request) else self.chunks + 1

    def _is_old(self, request: Request) -> bool:
        waited = self.now - request.arrived
        return waited >= self.config.aging_s and self.key(request)[0] >= LATE

    def merged(
        self, prefilling: Iterable[Request], now: float, is_open: IsOpen
    ) -> Iterator[Request]:
        self.now = now
        self._pass_moments()
        seated = self.by_key(prefilling)
        old = self._oldest(seated, is_open()) if self.chunks >= TURN - 1 else None
        if old is not None:
            yield old
        for request in merge(seated, self.line.walk(), is_open):
            if request is not old:
                yield request

    def _pass_moments(self) -> None:
        """Those whose moment has passed go behind those who can still make it."""
        line = self.line
        index = line.position((IN_TIME,))
        while index < len(line):
            key, request = line.entries[index]
            if key[0] != IN_TIME or key[1] >= self.now:
                break
            line.remove(request)
            alone = request.arrived + request.due - key[1]
            line.add(request, (LATE, alone, request.arrived, request.id))

    def _oldest(self, seated: list[tuple[Key, Request]], is_open: bool) -> Request | None:
        found = [request for key, request in seated if key[0] >= LATE]
        for level in (LATE, BATCH) if is_open else ():
            index = self.line.position((level,))
            found += [request for _, request in self.line.entries[index : index + 1]]
        oldest = min(found, key=lambda request: (request.arrived, request.id), default=None)
        if oldest is None or self.now - oldest.arrived < self.config.aging_s:
            return None
        return oldest

    def ahead(self, request: Request) -> int:
        self.now = max(self.now, request.arrived)
        return super().ahead(request)
