"""A curve as one line of characters."""

import itertools
import math
from collections.abc import Sequence

LEVELS = "▁▂▃▄▅▆▇"
"""Without the full block: curves below each other would touch."""
GAP = " "
"""Where there is no number."""


def sparkline(values: Sequence[float], width: int, top: float | None = None) -> str:
    """At most `width` characters from 0 to `top`, or to the largest value; each is a mean."""
    means = squeezed(values, width)
    ceiling = top if top is not None else max((x for x in means if math.isfinite(x)), default=0.0)
    return "".join(character(mean, ceiling) for mean in means)


def character(value: float, ceiling: float) -> str:
    if not math.isfinite(value):
        return GAP
    if ceiling <= 0:
        return LEVELS[0]
    place = math.ceil(len(LEVELS) * value / ceiling) - 1
    return LEVELS[min(len(LEVELS) - 1, max(0, place))]


def squeezed(values: Sequence[float], width: int) -> list[float]:
    """As many means as there is room for, each over equally many values (but for rounding)."""
    count = min(width, len(values))
    edges = [round(place * len(values) / count) for place in range(count + 1)] if count else []
    return [mean(values[start:end]) for start, end in itertools.pairwise(edges)]


def mean(values: Sequence[float]) -> float:
    known = [value for value in values if math.isfinite(value)]
    return sum(known) / len(known) if known else math.nan
