"""Numbers of one run, each over all of it that counts and over each of ten batches of that."""

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from servekit.simulator.statistics import BATCHES, mean, percentile

PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


class Sample(NamedTuple):
    """A number of one run, and of each of its batches; NaN where nothing was seen."""

    whole: float
    batches: list[float]


def in_batches(values: list[float]) -> list[list[float]]:
    """In the order in which they came."""
    bounds = [len(values) * index // BATCHES for index in range(BATCHES + 1)]
    return [values[low:high] for low, high in pairwise(bounds)]


def sample(values: list[float], summary: Callable[[Sequence[float]], float] = mean) -> Sample:
    return Sample(summary(values), [summary(part) for part in in_batches(values)])


def latency(values: list[float]) -> dict[str, Sample]:
    """Their mean, and the PERCENTILES."""
    parts = [sorted(values), *map(sorted, in_batches(values))]
    found = {"mean": [mean(part) for part in parts]}
    for key, part_of in PERCENTILES.items():
        found[key] = [percentile(part, part_of) for part in parts]
    return {key: Sample(whole, batches) for key, (whole, *batches) in found.items()}


def rate(events: Iterable[tuple[float, float]], start: float, end: float) -> Sample:
    """Of events, each with a time in between and how much it counts: the sum a second."""
    width = (end - start) / BATCHES
    if width <= 0:
        return Sample(math.nan, [])
    sums = [0.0] * BATCHES
    for at, amount in events:
        sums[min(BATCHES - 1, int((at - start) / width))] += amount
    return Sample(sum(sums) / (end - start), [total / width for total in sums])


def share(part: float, whole: float) -> float:
    """NaN of nothing."""
    return part / whole if whole else math.nan
