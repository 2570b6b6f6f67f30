"""Requests that go on by one token in every step, as columns: a step does nothing for each."""

from collections import Counter, deque
from typing import NamedTuple

from servekit.scheduler.batch import PLACEHOLDER, Decodes
from servekit.scheduler.request import Clock, Request


class Columns(NamedTuple):
    """Whose rows the decodes of a batch are; lists of equal length, never changed once given."""

    ids: list[int]
    said: list[list[int]]
    """The requests' own `tokens`."""


class Decoding:
    """Who is in lock step, and when something is due for one of them.

    All go on by one position a step, so who writes to a new block, fills one, or plans its last
    row is known from when it joined: `at_boundary` and `last` are calendars over the clock. The
    lists of a batch are those here until somebody joins or leaves; then the change is made to new
    ones.
    """

    def __init__(self, block_size: int) -> None:
        self.clock = Clock()
        self.block_size = block_size
        self.ids: list[int] = []
        self.starts: list[int] = []
        """Of the next step."""
        self.tables: list[tuple[list[int], ...]] = []
        self.said: list[list[int]] = []
        self.given = False
        """A batch has these lists, so that they may not change."""
        self.context = 0
        """Sum of the positions that they would have had when the clock began."""
        self.by_phase: list[dict[Request, None]] = [{} for _ in range(block_size)]
        self.by_last: dict[int, dict[Request, None]] = {}
        self.stop_sets: Counter[frozenset[int]] = Counter()
        self.stop_ids: frozenset[int] = frozenset()
        self.newest: Columns | None = None
        self.spoken: list[int] | None = None
        """What `newest` sampled, once that is known."""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def mean_context(self) -> float:
        """Tokens there are before the next one, on average."""
        return self.context / len(self.ids) + self.clock.planned if self.ids else 0.0

    @property
    def unfilled(self) -> int:
        """Places in their last blocks that no token is in yet, of one group of layers."""
        size, planned = self.block_size, self.clock.planned
        return sum(
            len(some) * (-(phase + planned) % size)
            for phase, some in enumerate(self.by_phase)
            if some
        )

    def join(self, request: Request) -> None:
        """From the next batch on; it lacks one token, and has a block for that."""
        self._change()
        start = request.computed
        request.follow(self.clock)
        self.ids.append(request.id)
        self.starts.append(start)
        self.tables.append(request.tables)
        self.said.append(request.tokens)
        begin = start - self.clock.planned
        self.context += begin
        self.by_phase[begin % self.block_size][request] = None
        self.by_last.setdefault(request.limit - 2 - begin, {})[request] = None
        if request.stop_ids:
            self.stop_sets[request.stop_ids] += 1
            if self.stop_sets[request.stop_ids] == 1:
                self.stop_ids |= request.stop_ids

    def leave(self, request: Request) -> int:
        """Not in the next batch; returns how many batches came before its first here."""
        self._change()
        at = self.ids.index(request.id)
        begin = request.computed - self.clock.planned
        del self.ids[at], self.starts[at], self.tables[at], self.said[at]
        self.context -= begin
        del self.by_phase[begin % self.block_size][request]
        last = request.limit - 2 - begin
        alike = self.by_last.get(last)
        if alike is not None:
            del alike[request]
            if not alike:
                del self.by_last[last]
        self.clock.drafting.discard(request)
        if request.stop_ids:
            self.stop_sets[request.stop_ids] -= 1
            if not self.stop_sets[request.stop_ids]:
                del self.stop_sets[request.stop_ids]
                self.stop_ids = frozenset().union(*self.stop_sets)
        return request.stop()

    def _change(self) -> None:
        if self.given:
            self.ids, self.tables = self.ids.copy(), self.tables.copy()
            self.said, self.given = self.said.copy(), False
        self.newest = None

    def crossing(self) -> list[Request]:
        """Those whose next token is the first of a block."""
        return list(self.by_phase[-self.clock.planned % self.block_size])

    @property
    def drafting(self) -> set[Request]:
        """Those that have guesses."""
        return self.clock.drafting

    def plan(self) -> tuple[Decodes, Columns]:
        """The next batch's; the clock has to be moved on."""
        count, newest = len(self.ids), self.newest
        if newest is None:
            tokens = [
                said[start] if start < len(said) else PLACEHOLDER
                for said, start in zip(self.said, self.starts, strict=True)
            ]
            newest = self.newest = Columns(self.ids, self.said)
        elif self.spoken is not None:
            tokens = self.spoken
        else:
            tokens = [PLACEHOLDER] * count
        self.given, self.spoken = True, None
        decodes = Decodes(self.ids, self.starts, tokens, self.tables)
        self.starts = [start + 1 for start in self.starts]
        return decodes, newest

    def advance(self) -> list[Request]:
        """A batch was planned; returns those whose last row is in it."""
        last = self.by_last.pop(self.clock.planned, {})
        self.clock.planned += 1
        return list(last)

    def commit(self, columns: Columns, said: list[list[int]], new: list[int]) -> None:
        """A batch was: `new` is what those who are still here of its columns sampled."""
        deque(map(list.append, said, new), maxlen=0)
        clock = self.clock
        clock.committed += 1
        latest = columns is self.newest and clock.committed == clock.planned
        self.spoken = new if latest else None

    def leap(self, said: list[list[int]], steps: int) -> None:
        """So many batches are as good as planned and committed; the clock has to be moved on."""
        deque(map(list.extend, self.said, said), maxlen=0)
        self.starts = [start + steps for start in self.starts]
        self.newest = self.spoken = None

    def filled(self) -> list[Request]:
        """Those that a commit just brought to the end of a block."""
        return list(self.by_phase[-self.clock.committed % self.block_size])
