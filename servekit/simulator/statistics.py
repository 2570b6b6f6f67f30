"""Means, percentiles and how sure they are, in the standard library's arithmetic."""

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate

from servekit.simulator.record import Estimate

BATCHES = 10
"""That a run is cut into: long ones are next to independent of each other, so their spread says
how sure a number of the whole is (batch means)."""

CONFIDENCE_Z = 1.959963984540054
"""Of the normal distribution, two-sided 95 %."""

DOUBT = 0.05
"""Chance below which something is not taken for chance."""

SMALL_T = (math.nan, 12.706, 4.303)
"""Student's t at 95 % for 0, 1 and 2 degrees of freedom, where the expansion is too far off."""


def mean(values: Sequence[float]) -> float:
    """NaN of nothing."""
    return math.fsum(values) / len(values) if values else math.nan


def percentile(ordered: Sequence[float], share: float) -> float:
    """Of sorted values, straight between the two nearest, as numpy has it; NaN of nothing."""
    if not ordered:
        return math.nan
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def weighted_percentiles(
    values: Iterable[float], counts: Iterable[int], shares: Sequence[float]
) -> list[float]:
    """The same as if each value stood there as often as counted."""
    pairs = sorted(zip(values, counts, strict=True))
    if not pairs:
        return [math.nan] * len(shares)
    ends = list(accumulate(count for _, count in pairs))

    def at(place: int) -> float:
        return pairs[bisect_left(ends, place + 1)][0]

    found = []
    for share in shares:
        place = share * (ends[-1] - 1)
        below = math.floor(place)
        low, high = at(below), at(min(below + 1, ends[-1] - 1))
        found.append(low + (place - below) * (high - low))
    return found


def student(freedom: int) -> float:
    """Two-sided 95 % quantile of Student's t, by its expansion around the normal one (Abramowitz
    and Stegun 26.7.5); within 0.1 % from 3 degrees of freedom on.
    """
    if freedom < len(SMALL_T):
        return SMALL_T[max(0, freedom)]
    z = CONFIDENCE_Z
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    fourth = (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160
    return z + first / freedom + second / freedom**2 + third / freedom**3 + fourth / freedom**4


def estimate(wholes: Sequence[float], batches: Sequence[float]) -> Estimate:
    """Of a number that each seed gave (`wholes`), and each batch of each seed.

    The number is the mean over seeds; the spread of all batches around it says how sure it is
    (sectioning). A batch or seed that saw nothing is NaN and left out.
    """
    value = mean([whole for whole in wholes if not math.isnan(whole)])
    seen = [batch for batch in batches if not math.isnan(batch)]
    if len(seen) < 2 or math.isnan(value):
        return Estimate(value, math.nan, math.nan)
    spread = math.fsum((batch - value) ** 2 for batch in seen) / (len(seen) - 1)
    half = student(len(seen) - 1) * math.sqrt(spread / len(seen))
    return Estimate(value, value - half, value + half)


def paired(
    wholes: Sequence[tuple[float, float]], batches: Sequence[tuple[float, float]]
) -> Estimate:
    """How much more the second of each pair is: what the two share falls out of it."""
    return estimate([b - a for a, b in wholes], [b - a for a, b in batches])


def warm_up(values: Sequence[float]) -> int:
    """How many values at the start to leave out, by MSER-5 (White 1997).

    Of the ways to cut off groups of five, at most half of them, that which leaves the mean of the
    rest with the smallest standard error.
    """
    groups = [mean(values[i : i + 5]) for i in range(0, len(values) - 4, 5)]
    best, cut = math.inf, 0
    total = squares = 0.0
    for index in range(len(groups) - 1, -1, -1):
        total += groups[index]
        squares += groups[index] ** 2
        count = len(groups) - index
        error = (squares - total * total / count) / count**2
        if index <= len(groups) // 2 and error <= best:
            best, cut = error, index
    return 5 * cut


def fewest(share: float) -> int:
    """Values of which at least one lies above this percentile, but for a chance of `DOUBT`.

    Of fewer even the largest is no bound for it (Wilks 1941): 59 for p95, 299 for p99.
    """
    return math.ceil(math.log(DOUBT) / math.log(share))


def chance(above: int, count: int, share: float) -> float:
    """That so many of `count` values or more lie above their percentile (binomial)."""
    logs = math.log(1 - share), math.log(share)
    whole = math.lgamma(count + 1)

    def exactly(number: int) -> float:
        ways = whole - math.lgamma(number + 1) - math.lgamma(count - number + 1)
        return math.exp(ways + number * logs[0] + (count - number) * logs[1])

    return math.fsum(map(exactly, range(above, count + 1)))


def growth(times: Sequence[float], values: Sequence[float]) -> tuple[float, float]:
    """Slope of the straight line through the points (least squares), and its standard error."""
    count = len(times)
    if count < 3:
        return math.nan, math.nan
    middle, level = mean(times), mean(values)
    width = math.fsum((time - middle) ** 2 for time in times)
    if width == 0:
        return math.nan, math.nan
    pairs = list(zip(times, values, strict=True))
    slope = math.fsum((time - middle) * (value - level) for time, value in pairs) / width
    rest = math.fsum((value - level - slope * (time - middle)) ** 2 for time, value in pairs)
    return slope, math.sqrt(rest / (count - 2) / width)
