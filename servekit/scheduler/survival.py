"""How answers that went on so far go on: survival curves over lengths.

Answers that have ended are not a fair sample of answers: those that run still are the longer ones.
So the lengths are treated as survival times. Of every bucket of lengths it is counted how many
answers reached it and how many ended in it; those that were cut off (by their client, by max_tokens
or because they run still) are known to have come that far and no more (Kaplan and Meier 1958).
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from math import sqrt
from operator import add, mul
from typing import NamedTuple

STEPS = 4
"""Buckets in an octave: each is 19 % wider than the one before."""
BUCKETS = 22 * STEPS
EDGES = [2 ** (index / STEPS) for index in range(BUCKETS + 1)]
"""A bucket holds lengths from its edge up to the next one's."""
WIDTHS = [end - edge for edge, end in pairwise(EDGES)]

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
LEAST = 1e-12
"""A share, where it must not be 0."""


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


class Counts:
    """What was known of a class at some time. What follows is worked out once somebody asks:
    where there are blocks and seats for everybody nobody does.
    """

    def __init__(self, ended: list[float], cut: list[float], above: "Counts | None") -> None:
        self.ended, self.cut, self.above = ended, cut, above

    @cached_property
    def survival(self) -> Survival:
        """In each bucket the share that ends there of those that come there; who was cut off in it
        has been there for half of it. The class above counts as so many more who came; where there
        is none, one that ends as often as those did that came to the buckets before.
        """
        cut = self.cut
        come = list(accumulate(map(add, reversed(self.ended), reversed(cut))))[::-1]
        come = [there - left / 2 for there, left in zip(come, cut, strict=True)]
        if self.above is None:
            weight, above, over = ROOT_WEIGHT, carried(self.ended, come), [PRIOR] * BUCKETS
        else:
            survival = self.above.survival
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
        return Survival(hazard, known, alive, list(area), list(doubt))


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
