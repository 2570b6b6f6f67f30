"""Random numbers that belong to what they are for, so that one change does not shift the others.

The draw of a purpose for a conversation's turn depends on the seed, the purpose and the turn, not
on what was drawn before. Two runs with one seed thus see the same lengths for the same turn, in
whatever order a policy answers: common random numbers, by which policies are compared.
"""

import math
from bisect import bisect_right
from collections.abc import Mapping
from hashlib import sha256
from itertools import accumulate
from statistics import NormalDist

_MASK = 2**64 - 1
_NORMAL = NormalDist()
_MOST_TURNS = 2**24
SMALLEST_CV = 1e-6
"""A spread below that is none."""


class Draws:
    """Numbers inside 0 to 1, one for each turn of each conversation, of one purpose."""

    def __init__(self, seed: int, purpose: str) -> None:
        self._key = int.from_bytes(sha256(f"{seed} {purpose}".encode()).digest()[:8], "big")

    def at(self, session: int, turn: int = 0) -> float:
        """The finalizer of splitmix64 (Steele, Lea and Flood 2014) of the turn's number."""
        mixed = self._key + (session * _MOST_TURNS + turn) * 0x9E3779B97F4A7C15 & _MASK
        mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _MASK
        mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _MASK
        return (((mixed ^ mixed >> 31) >> 12) + 0.5) / 2**52


class Lengths:
    """Token counts, log-normal with a mean and a spread over it; at least 1."""

    def __init__(self, mean: float, cv: float) -> None:
        self._mean = mean
        self._sigma = math.sqrt(math.log1p(cv * cv)) if cv >= SMALLEST_CV else 0.0
        self._mu = math.log(max(mean, 1e-9)) - self._sigma**2 / 2

    def of(self, draw: float) -> int:
        if not self._sigma:
            return max(1, round(self._mean))
        return max(1, round(math.exp(self._mu + self._sigma * _NORMAL.inv_cdf(draw))))


class Shares:
    """Names in proportion to their weights."""

    def __init__(self, weights: Mapping[str, float], otherwise: str) -> None:
        self._names = list(weights) or [otherwise]
        self._sums = list(accumulate(weights.values())) or [1.0]

    def of(self, draw: float) -> str:
        return self._names[bisect_right(self._sums, draw * self._sums[-1], hi=len(self._sums) - 1)]


class Zipf:
    """Numbers from 0 to `count` - 1, the k-th in proportion to 1 / k.

    Beyond the first 1024 by the integral that the harmonic numbers approach; the error of a share
    is less than a thousandth of it, and no table is as long as `count`.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._sums = list(accumulate(1 / k for k in range(1, min(count, 1024) + 1)))
        tail = math.log((count + 0.5) / (len(self._sums) + 0.5))
        self._total = self._sums[-1] + tail

    def of(self, draw: float) -> int:
        target = draw * self._total
        if target < self._sums[-1]:
            return bisect_right(self._sums, target)
        known = len(self._sums)
        beyond = (known + 0.5) * math.exp(target - self._sums[-1])
        return min(self._count - 1, max(known, round(beyond) - 1))
