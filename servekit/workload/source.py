"""A workload as a simulator or a load generator asks for it: who comes, and who comes then.

requests = source(config.workload, max_model_len=config.model.max_model_len, seed=1)
for arrival in requests:              # by themselves, in order of time
    ...
requests.answered(arrival, now)       # who comes because this one was answered
requests.unanswered(arrival, now)     # who comes although it was refused, or left
"""

import math
from collections.abc import Iterator
from itertools import islice
from typing import Protocol

from servekit.config.targets import WorkloadConfig
from servekit.workload.arrival import Arrival
from servekit.workload.drawn import Drawn
from servekit.workload.draws import Draws
from servekit.workload.read import trace_of
from servekit.workload.recorded import Recorded
from servekit.workload.times import starts


class Content(Protocol):
    """What the requests of a workload are; `drawn.Drawn` or `recorded.Recorded`."""

    turns: float
    """Requests of a conversation, on average."""

    def opening(self, session: int, at: float) -> Arrival:
        """The first request of a conversation."""
        ...

    def following(self, before: Arrival, at: float) -> Arrival | None:
        """The request of its conversation that follows its answer, if one does."""
        ...


class Source:
    """The arrivals of one run of a workload. Made anew for each run; the same by its seed.

    With closed arrivals those that come by themselves are the clients' first requests, all others
    follow from `answered`. Without, it has no end unless a trace has one.
    """

    def __init__(
        self,
        content: Content,
        work: WorkloadConfig,
        *,
        seed: int,
        replayed: Iterator[Arrival] | None = None,
    ) -> None:
        """`replayed`: all who come by themselves, where a trace has their times."""
        self._content = content
        self._clients = 0
        if replayed is None:
            times = starts(work, turns=content.turns, seed=seed)
            replayed = (content.opening(session, at) for session, at in enumerate(times))
            self._clients = work.concurrency if work.arrivals == "closed" else 0
        self._arrivals = replayed
        self._think_s = work.think_s
        self._draw_think = Draws(seed, "think").at

    def __iter__(self) -> Iterator[Arrival]:
        """Those not yet taken that come by themselves, in order of time."""
        return self._arrivals

    def first(self, count: int) -> list[Arrival]:
        """The next `count` that come by themselves, or as many as there are."""
        return list(islice(self._arrivals, count))

    def answered(self, arrival: Arrival, now: float) -> list[Arrival]:
        """Who comes because this one has its whole answer at `now`: its next turn, after a time
        to think, or the next conversation of its client.
        """
        thought = -self._think_s * math.log(self._draw_think(arrival.session, arrival.turn))
        following = self._content.following(arrival, now + thought)
        return [following] if following else self._next_of_client(arrival, now)

    def unanswered(self, arrival: Arrival, now: float, wait_s: float = 1.0) -> list[Arrival]:
        """Who comes although this one was refused or left at `now`; its conversation is over.

        A client of a closed workload asks something else `wait_s` later, which must be more than
        0: one that is refused at once would ask again without end.
        """
        return self._next_of_client(arrival, now + wait_s)

    def _next_of_client(self, arrival: Arrival, at: float) -> list[Arrival]:
        if not self._clients:
            return []
        return [self._content.opening(arrival.session + self._clients, at)]


def source(work: WorkloadConfig, *, max_model_len: int, seed: int) -> Source:
    """Requests of at most `max_model_len` tokens, prompt and answer; longer ones are cut.

    ConfigError where its trace cannot be read, or its lengths contradict each other.
    """
    if work.trace is None:
        return Source(Drawn(work, max_model_len=max_model_len, seed=seed), work, seed=seed)
    trace = trace_of(work.trace)
    recorded = Recorded(trace, work, max_model_len=max_model_len, seed=seed)
    replayed = recorded.replayed(work.trace_speed) if trace.at else None
    return Source(recorded, work, seed=seed, replayed=replayed)
