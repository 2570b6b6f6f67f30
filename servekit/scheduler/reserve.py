"""How many blocks must be free beyond those that a new request takes."""

from collections.abc import Callable, Sequence
from typing import Protocol

from servekit.scheduler.kv import KvBlocks
from servekit.scheduler.lengths import OutputLengths
from servekit.scheduler.request import Request
from servekit.scheduler.settings import Settings


class Reserve(Protocol):
    last: int
    """What was asked for last."""
    unsure: float
    """The share of that by which it may soon be more, for little is known."""

    def blocks(self, request: Request, running: Sequence[Request], kv: KvBlocks, step: int) -> int:
        """That a request, seated beside those that run, should find free besides those it takes at
        once; `step` counts steps.
        """
        ...

    def seated(self, request: Request) -> None: ...

    def left(self, request: Request) -> None:
        """It has no seat any more."""
        ...

    def failed(self) -> None:
        """Somebody was preempted, for what was kept free did not suffice."""
        ...


class Greedy:
    """None: whoever is short of blocks later has somebody preempted."""

    def __init__(self, settings: Settings, lengths: OutputLengths) -> None:
        self.last = 0
        self.unsure = 0.0
        self.need: Callable[[int], int] = lambda tokens: tokens

    def blocks(self, request: Request, running: Sequence[Request], kv: KvBlocks, step: int) -> int:
        return 0

    def seated(self, request: Request) -> None:
        pass

    def left(self, request: Request) -> None:
        pass

    def failed(self) -> None:
        pass


class WorstCase(Greedy):
    """As if all went on to their max_tokens: nobody is ever preempted."""

    def __init__(self, settings: Settings, lengths: OutputLengths) -> None:
        super().__init__(settings, lengths)
        self.at_end: dict[int, int] = {}
        self.total = self.held = 0
        """Blocks of those that run: at their end, and now."""
        self.step = -1
        """At which `held` was counted; -1: not since somebody left."""

    def blocks(self, request: Request, running: Sequence[Request], kv: KvBlocks, step: int) -> int:
        self.need = need = needs(kv)
        if step != self.step:
            self.step = step
            self.held = sum([need(len(one.tokens) - 1) for one in running])
        own = self._at_end(request) - need(len(request.tokens) + 1)
        self.last = max(0, self.total - self.held + own)
        return self.last

    def _at_end(self, request: Request) -> int:
        """The last token is written nowhere."""
        return self.need(request.limit - 1)

    def seated(self, request: Request) -> None:
        self.at_end[request.id] = self._at_end(request)
        self.total += self.at_end[request.id]
        self.held += self.need(len(request.tokens) - 1)

    def left(self, request: Request) -> None:
        self.step = -1
        self.total -= self.at_end.pop(request.id, 0)


def needs(kv: KvBlocks) -> Callable[[int], int]:
    """Blocks, over all groups, of a request with so many tokens; with one group in short."""
    size = kv.block_size
    if len(kv.full) == len(kv.settings.groups) == 1:
        return lambda tokens: -(-tokens // size)
    return kv.blocks_for
