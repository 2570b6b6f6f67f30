"""Which changes make a refused configuration pass: single ones, then two together, each planned."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from servekit.planner.advice.change import Change, Point
from servekit.planner.advice.ways import (
    FASTER_WAYS,
    FIRST_WAYS,
    FREE_FIRST_WAYS,
    WAYS,
    Way,
    cards,
)
from servekit.planner.capability import cannot_run, refusals
from servekit.planner.outcome import AS_IT_IS, Correction, Outcome, assess, book_of

MOST_SINGLES, MOST_PAIRS = 30, 20
"""Predictions, which take milliseconds; a plan must not take a second."""
MOST_LEDGERS = 200
"""Each a fraction of a millisecond."""

ENOUGH = 8
ENOUGH_HERE = 2


@dataclass(frozen=True, slots=True)
class Found:
    """A point that passes; `gentleness` is the place of its ways among all, of two the sum."""

    point: Point
    outcome: Outcome
    gentleness: int

    @property
    def planned_only(self) -> bool:
        """The gate of this release would refuse it all the same."""
        return bool(cannot_run(self.point.config))

    @property
    def runs_here(self) -> bool:
        """On the same devices, by this release."""
        moved = any(change.key.startswith("hardware") for change in self.point.changes)
        return not moved and not self.planned_only

    @property
    def rank(self) -> tuple[bool, bool, int, int]:
        """What runs and is sure before what is not; then by how little it changes."""
        return (
            self.planned_only,
            self.outcome.verdict != "ok",
            len(self.point.changes),
            self.gentleness,
        )


class Trials:
    """Plans points until its predictions are used up; the count makes a search end in time.

    `may_miss`: where memory lacks, what only misses a target that warns is better than nothing.
    """

    def __init__(
        self, predictions: int, *, may_miss: bool, correction: Correction = AS_IT_IS
    ) -> None:
        self.may_miss = may_miss
        self.correction = correction
        self.predictions = predictions
        self.ledgers = MOST_LEDGERS

    @property
    def over(self) -> bool:
        return self.predictions <= 0 or self.ledgers <= 0

    def passing(self, point: Point | None) -> Outcome | None:
        """Its outcome if that is well; memory, which is cheap, is looked at first."""
        if point is None or self.over or next(refusals(point.config), None):
            return None
        self.ledgers -= 1
        book = book_of(point.config)
        if book.verdict == "does_not_fit":
            return None
        self.predictions -= 1
        outcome = assess(point.config, book, self.correction)
        well = outcome.verdict in ("ok", "unsure") or (self.may_miss and outcome.exit_code == 0)
        return outcome if well else None

    def first(self, point: Point, changes: Iterator[Change], gentleness: int) -> Found | None:
        """The first of a way's changes that passes, one that is sure if there is one."""
        unsure = None
        for change in changes:
            if self.over:
                break
            there = point.then(change)
            outcome = self.passing(there)
            if there is not None and outcome is not None:
                found = Found(there, outcome, gentleness)
                if outcome.verdict == "ok":
                    return found
                unsure = unsure or found
        return unsure


def mended(point: Point) -> Point:
    """With the words that the hardware leaves no choice about, such as another dtype."""
    while refusal := next(refusals(point.config), None):
        there = point.then(Change(refusal.key, refusal.value))
        if there is None:
            return point
        point = there
    return point


def search(start: Point, correction: Correction = AS_IT_IS) -> list[Found]:
    """Points that pass by closed forms, the best first; empty where nothing that is tried does.

    `correction` is what simulated times of `start` were longer by.
    """
    start = mended(start)
    lacks_memory = book_of(start.config).verdict == "does_not_fit"
    trials = Trials(MOST_SINGLES, may_miss=lacks_memory, correction=correction)
    outcome = trials.passing(start) if start.changes else None
    found = [Found(start, outcome, 0)] if outcome is not None else []
    found += singles(start, trials)
    again = Trials(MOST_PAIRS, may_miss=lacks_memory, correction=correction)
    if not found:
        found = list(islice(two_changes(start, again, lacks_memory), ENOUGH))
    elif not cannot_run(start.config):
        found += runnable(start, again, found)
    if not found and lacks_memory:
        found = list(islice(triples(start, Trials(MOST_PAIRS, may_miss=True)), 1))
    best: dict[frozenset[str], Found] = {}
    for item in sorted(found, key=lambda item: item.rank):
        best.setdefault(frozenset(change.key for change in item.point.changes), item)
    return list(best.values())


def two_changes(start: Point, trials: Trials, lacks_memory: bool) -> Iterator[Found]:
    if lacks_memory:
        return pairs(start, trials, FIRST_WAYS, WAYS)
    return pairs(start, trials, FASTER_WAYS, FASTER_WAYS)


def runnable(start: Point, trials: Trials, found: list[Found]) -> Iterator[Found]:
    """Two changes where one needs another device, or more than this release runs."""
    if not any(item.runs_here for item in found):
        here = pairs(start, trials, FREE_FIRST_WAYS, WAYS)
        yield from islice((item for item in here if item.runs_here), ENOUGH_HERE)
    if all(item.planned_only for item in found):
        every = pairs(start, trials, FIRST_WAYS, WAYS)
        yield from islice((item for item in every if not item.planned_only), ENOUGH_HERE)


def singles(point: Point, trials: Trials) -> list[Found]:
    book = book_of(point.config)
    tried = (trials.first(point, way(point, book), place) for place, way in enumerate(WAYS))
    return [found for found in tried if found is not None]


def pairs(
    point: Point, trials: Trials, firsts: tuple[Way, ...], seconds: tuple[Way, ...]
) -> Iterator[Found]:
    """Two changes together, the first by one of `firsts`; one pair of values for each two ways."""
    for gentleness, first in enumerate(firsts):
        done = {first, *firsts[:gentleness]}  # two ways together are the same in either order
        for change in first(point, book_of(point.config)):
            there = point.then(change)
            if there is None or trials.over:
                continue
            book = book_of(there.config)
            for place, way in enumerate(seconds):
                if way not in done:
                    found = trials.first(there, way(there, book), place + gentleness)
                    if found is not None:
                        done.add(way)
                        yield found


def triples(point: Point, trials: Trials) -> Iterator[Found]:
    """Two changes on another device, the largest first: for what is far too large."""
    for change in reversed(list(cards(point, book_of(point.config)))):
        there = point.then(change)
        if there is not None:
            yield from pairs(there, trials, FIRST_WAYS, WAYS)
