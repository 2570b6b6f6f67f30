"""How long answers become, learnt while serving.

Answers that have ended are not a fair sample of answers: those that run still are the longer ones.
So the lengths are treated as survival times. Of every bucket of lengths it is counted how many
answers reached it and how many ended in it; those that were cut off (by their client, by max_tokens
or because they run still) are known to have come that far and no more (Kaplan and Meier 1958).
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from math import sqrt
from operator import add, mul
from typing import NamedTuple

from servekit.scheduler.request import Request

STEPS = 4
"""Buckets in an octave: each is 19 % wider than the one before."""
BUCKETS = 22 * STEPS
EDGES = [2 ** (index / STEPS) for index in range(BUCKETS + 1)]
"""A bucket holds lengths from its edge up to the next one's."""
WIDTHS = [end - edge for edge, end in pairwise(EDGES)]

MEMORY = 2000.0
"""Answers of a class that count fully; twice as many are halved, so that old ones fade."""
PARENT_WEIGHT = 10.0
"""As many answers of the class above does a class count, however many it has of its own."""
ROOT_WEIGHT = 1.0
PRIOR = 8.0
"""As many answers does count what is usual, beyond all that were seen."""
ENOUGH = 20.0
"""Answers that came to a bucket, to learn from it about those beyond."""
TYPICAL = 256
"""Before any answer has ended, half are taken to be longer, and one in n + 1 than n times this."""
STEEPEST = 4.0
"""Power of the tail, at most; what is usual has 1."""
FEW, FEW_STEPS = 500, 16
"""Until so many answers have ended, those that run are counted every so many steps at least."""
LEAST = 1e-12
"""A share, where it must not be 0."""
MAX_CLASSES = 2048


def bucket_of(length: float) -> int:
    return min(BUCKETS, bisect_right(EDGES, length)) - 1 if length > 1 else 0


class Odds(NamedTuple):
    """Of going on to some lengths, of an answer that came to another."""

    likely: list[float]
    off: list[float]
    """Standard errors of that, for few answers may be known."""


@dataclass(slots=True)
class Survival:
    """Share of answers longer than each edge, and its integral from 0, tokens."""

    hazard: list[float]
    """Of those that come to a bucket, the share that ends there."""
    known: list[float]
    """Answers that each of these shares was learnt from."""
    alive: list[float]
    area: list[float]
    doubt: list[float]
    """Variance of the logarithm of `alive`, for no more than that is known (Greenwood 1926). What
    is added in each bucket is independent of the others."""

    def beyond(self, length: float) -> float:
        """Share of answers that are longer; linear within a bucket, never 0."""
        if length <= 1.0:
            return 1.0
        index = bucket_of(length)
        before = self.alive[index]
        past = min(1.0, (length - EDGES[index]) / WIDTHS[index])
        return before + past * (self.alive[index + 1] - before)

    def remaining(self, done: int, limit: int) -> float:
        """Tokens expected after `done` of an answer that ends at `limit` in any case."""
        if done >= limit:
            return 0.0
        return (self._until(limit) - self._until(done)) / self.beyond(done)

    def _until(self, length: float) -> float:
        if length <= 1.0:
            return max(0.0, length)
        index = bucket_of(length)
        both = self.alive[index] + self.beyond(length)
        return self.area[index] + (length - EDGES[index]) * both / 2

    def odds(self, bucket: int, more: Sequence[int]) -> Odds:
        """Of so many tokens more, for each of `more`, from the middle of a bucket on."""
        done = (EDGES[bucket] + EDGES[bucket + 1]) / 2 if bucket else 0
        now, doubt = self.beyond(done), self.doubt[bucket]
        likely, off = [], []
        for tokens in more:
            odds = self.beyond(done + tokens) / now
            likely.append(odds)
            off.append(odds * sqrt(self.doubt[bucket_of(done + tokens)] - doubt))
        return Odds(likely, off)


@dataclass(slots=True, eq=False)
class LengthClass:
    """Counts of one kind of request, by bucket; `parent` is the broader kind it is part of."""

    parent: "LengthClass | None" = None
    ended: list[float] = field(default_factory=lambda: [0.0] * BUCKETS)
    cut: list[float] = field(default_factory=lambda: [0.0] * BUCKETS)
    running: list[float] = field(default_factory=lambda: [0.0] * BUCKETS)
    total: float = 0.0
    news: float = 0.0
    """Answers since the last survival was made."""
    made: Survival | None = None

    def add(self, bucket: int, ended: bool) -> None:
        (self.ended if ended else self.cut)[bucket] += 1.0
        self.total += 1.0
        self.news += 1.0
        if self.total >= 2 * MEMORY:
            self.ended = [count / 2 for count in self.ended]
            self.cut = [count / 2 for count in self.cut]
            self.total /= 2

    @property
    def survival(self) -> Survival:
        """To ask changes nothing: it is made anew by what is learnt."""
        if self.total == 0.0 and self.parent is not None:
            return self.parent.survival
        return self.made or self.make()

    def make(self) -> Survival:
        """In each bucket the share that ends there of those that come there; who was cut off in it
        has been there for half of it. The class above counts as so many more who came; where there
        is none, one that ends as often as those did that came to the buckets before.
        """
        cut = list(map(add, self.cut, self.running))
        come = list(accumulate(map(add, reversed(self.ended), reversed(cut))))[::-1]
        come = [there - left / 2 for there, left in zip(come, cut, strict=True)]
        if self.parent is None:
            weight, above, over = ROOT_WEIGHT, carried(self.ended, come), [PRIOR] * BUCKETS
        else:
            survival = self.parent.survival
            weight, above, over = PARENT_WEIGHT, survival.hazard, survival.known
        hazard = [
            (ended + weight * more) / (came + weight)
            for ended, came, more in zip(self.ended, come, above, strict=True)
        ]
        known = [came + min(PARENT_WEIGHT, each) for came, each in zip(come, over, strict=True)]
        stays = [max(LEAST, 1.0 - share) for share in hazard]
        alive = [max(LEAST, share) for share in accumulate(stays, mul, initial=1.0)]
        areas = [
            width * (before + after) / 2
            for width, before, after in zip(WIDTHS, alive, alive[1:], strict=False)
        ]
        doubts = [
            share / (count * stay) for share, count, stay in zip(hazard, known, stays, strict=True)
        ]
        area, doubt = accumulate(areas, initial=1.0), accumulate(doubts, initial=0.0)
        self.made, self.news = Survival(hazard, known, alive, list(area), list(doubt)), 0.0
        return self.made


def carried(ended: list[float], come: list[float]) -> list[float]:
    """For each bucket, the share that ends there, to go by those before it: as many times what is
    usual (see `TYPICAL`) as in the last octave, or so, that enough came to. Beyond all that was
    seen lengths so have the tail of a power law, which falls more slowly than those of real
    answers.

    Before anything was seen it is what is usual. To take all answers for as long as they may be
    would leave most seats of a model with a long context empty until the first of them ends.
    """
    shares, seen, usually = [], 0.0, 0.0
    for edge, end, ends, came in zip(EDGES, EDGES[1:], ended, come, strict=False):
        usual = (end - edge) / (TYPICAL + end)
        shares.append(usual * min(STEEPEST, (seen + PRIOR) / (usually + PRIOR)))
        kept = 1.0 - came / (came + ENOUGH) / STEPS
        seen, usually = kept * seen + ends, kept * usually + usual * came
    return shares


Key = tuple[str | int, ...]


class OutputLengths:
    """Of classes within classes: all requests; of one SLO class and octave of max_tokens; of one
    tenant among those; with prompts of one octave. A class that has seen little follows the one
    above it.
    """

    def __init__(self) -> None:
        self.root = LengthClass()
        self.classes: dict[Key, LengthClass] = {}
        self.ends = 0
        self.refreshes = 0
        """How often those that run were counted."""
        self._refresh_at = 0
        self._step = 0

    def class_of(self, request: Request) -> LengthClass:
        key: Key = (
            request.slo_class,
            request.max_tokens.bit_length(),
            request.tenant,
            len(request.prompt).bit_length(),
        )
        return self.classes.get(key) or self._new(key)

    def _new(self, key: Key) -> LengthClass:
        parent = self.root
        for depth in (2, 3, 4):
            one = self.classes.get(key[:depth])
            if one is None:
                if len(self.classes) >= MAX_CLASSES:
                    del self.classes[next(iter(self.classes))]
                one = self.classes[key[:depth]] = LengthClass(parent)
            parent = one
        return parent

    def survival(self, request: Request) -> Survival:
        return self.class_of(request).survival

    def remaining(self, request: Request) -> float:
        """Output tokens that it is expected to give from now on."""
        done = len(request.tokens) - len(request.prompt)
        return self.class_of(request).survival.remaining(done, request.max_tokens)

    def finished(self, request: Request) -> None:
        """It has ended, as `request.finish` says; to be called once.

        A class is made anew when there is a sixteenth more to know.
        """
        length = len(request.tokens) - len(request.prompt)
        if length < 1:
            return
        self.ends += 1
        bucket, ended = bucket_of(length), request.finish == "stop"
        for one in self._line_of(request):
            one.add(bucket, ended)
            if one.news >= one.total / 16:
                one.make()

    @property
    def unsure(self) -> float:
        """By so large a share what is said of lengths may be off: the standard error of a mean of
        the answers that have ended, whose spread is about their mean.
        """
        return 1.0 / sqrt(1.0 + self.ends)

    def is_due(self, step: int) -> bool:
        """To count those that run again can make a difference; `step` counts steps.

        While few answers have ended those that run are most of what is known, and if they were
        taken to be where they were some steps ago, all answers would seem to be short.
        """
        if self.ends >= self._refresh_at:
            return True
        return self.ends < FEW and not 0 <= step - self._step < FEW_STEPS

    def refresh(self, running: Iterable[Request], step: int) -> None:
        """Count in those that run, if that is due."""
        if not self.is_due(step):
            return
        more = self.ends // 16 if self.ends < FEW else min(500, self.ends // 4)
        self._refresh_at = self.ends + max(1, more)
        self._step = step
        self.refreshes += 1
        everyone = (self.root, *self.classes.values())
        for one in everyone:
            one.running = [0.0] * BUCKETS
        for request in running:
            bucket = bucket_of(len(request.tokens) - len(request.prompt))
            for one in self._line_of(request):
                one.running[bucket] += 1.0
        for one in everyone:
            if one.total > 0 or one.parent is None:
                one.make()

    def _line_of(self, request: Request) -> list[LengthClass]:
        """Its classes, the broadest first."""
        line = [self.class_of(request)]
        while line[-1].parent is not None:
            line.append(line[-1].parent)
        return line[::-1]
