"""What happens step by step, as columns: a run has millions of steps."""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum


def _doubles() -> "array[float]":
    return array("d")


def _ints() -> "array[int]":
    return array("i")


StepRow = tuple[float, float, int, int, int, int, int, int, int, int, int]
"""In the order of STEP_COLUMNS."""

STEP_COLUMNS = (
    *("at", "seconds", "decodes", "prompt_tokens", "prompts", "running", "waiting"),
    *("blocks_used", "preempted", "refused", "output_tokens"),
)
AT_ONCE = 4096


@dataclass(slots=True)
class Steps:
    """The steps of one copy of the model, as columns of equal length, in order.

    `at` is when a step ended and `seconds` how long it took; `running`, `waiting` (those who got
    no seat for it) and `blocks_used` are of its time; `preempted` and `refused` happened since the
    step before ended.
    """

    at: "array[float]" = field(default_factory=_doubles)
    seconds: "array[float]" = field(default_factory=_doubles)
    decodes: "array[int]" = field(default_factory=_ints)
    """Requests that went on by a token (or more, with guesses)."""
    prompt_tokens: "array[int]" = field(default_factory=_ints)
    """Computed, those that were computed before and thrown away among them."""
    prompts: "array[int]" = field(default_factory=_ints)
    """Chunks that these were in."""
    running: "array[int]" = field(default_factory=_ints)
    waiting: "array[int]" = field(default_factory=_ints)
    blocks_used: "array[int]" = field(default_factory=_ints)
    preempted: "array[int]" = field(default_factory=_ints)
    refused: "array[int]" = field(default_factory=_ints)
    output_tokens: "array[int]" = field(default_factory=_ints)
    """Sampled; those of guesses that held among them."""
    pending: list[StepRow] = field(default_factory=list, repr=False)
    """Rows that are not in the columns yet: so many at once are cheaper."""

    def add(self, row: StepRow) -> None:
        """One more step, a value of each column."""
        self.pending.append(row)
        if len(self.pending) >= AT_ONCE:
            self.settle()

    def add_all(self, rows: Iterable[StepRow]) -> None:
        self.pending.extend(rows)
        if len(self.pending) >= AT_ONCE:
            self.settle()

    def settle(self) -> None:
        """Move what is pending into the columns."""
        for name, column in zip(STEP_COLUMNS, zip(*self.pending, strict=True), strict=False):
            getattr(self, name).extend(column)
        self.pending.clear()

    def __len__(self) -> int:
        return len(self.at) + len(self.pending)


@dataclass(slots=True)
class Lookups:
    """What the prefix cache found and missed of prompts, in all, after each step that seated some.

    `tokens` are those of FOUND, then of each reason in `reasons`.
    """

    reasons: tuple[str, ...] = ()
    at: "array[float]" = field(default_factory=_doubles)
    tokens: list[tuple[int, ...]] = field(default_factory=list)

    def add(self, at: float, found: int, missed: Iterable[tuple[str, int]]) -> None:
        """The totals so far; `missed` has the same reasons each time."""
        reasons, tokens = zip(*missed, strict=True)
        self.reasons = reasons
        self.at.append(at)
        self.tokens.append((found, *tokens))

    def between(self, low: float, high: float, *, last: bool = False) -> dict[str, int]:
        """Of those seated from `low` on and before `high`, or with `last` at `high` too."""
        if not self.at:
            return {}
        none = (0,) * len(self.tokens[0])
        places = bisect_left(self.at, low), (bisect_right if last else bisect_left)(self.at, high)
        before, after = (self.tokens[place - 1] if place else none for place in places)
        names = (FOUND, *self.reasons)
        return {name: b - a for name, a, b in zip(names, before, after, strict=True)}


FOUND = "found"


class SeatState(IntEnum):
    EMPTY = 0
    PREFILL = 1
    DECODE = 2
    STALLED = 3
    """Has a seat, but no row in this step."""
    PREEMPTED = 4
    """Lost its seat in this step."""


@dataclass(slots=True)
class Seats:
    """Who sat where in a window of steps of copy 0: one entry a step, in each one a seat.

    A request keeps its seat, the lowest that was free, until it ends or is preempted. Rows grow
    with the highest seat taken in their step; seats beyond are empty.
    """

    first_step: int = 0
    at: list[float] = field(default_factory=list)
    """When the step began."""
    seconds: list[float] = field(default_factory=list)
    states: list[list[SeatState]] = field(default_factory=list)
    requests: list[list[int]] = field(default_factory=list)
    """Which request; -1: none."""
    tokens: list[list[int]] = field(default_factory=list)
    """Computed for it in this step."""
    capacity: int = 0
    """Seats there are."""


@dataclass(slots=True)
class Gaps:
    """Times between two tokens of one request, each with how often it was seen.

    Requests that decode in the same two steps wait equally long, so a step is one entry.
    """

    at: "array[float]" = field(default_factory=_doubles)
    """When the second token came."""
    seconds: "array[float]" = field(default_factory=_doubles)
    count: "array[int]" = field(default_factory=_ints)
