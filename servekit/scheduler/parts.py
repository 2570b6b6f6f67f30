"""What each request adds to the blocks in use at some times ahead, and what all do."""

from collections.abc import Sequence
from typing import NamedTuple

POINTS = 14
"""Times in the future for which the blocks in use are predicted; each twice as far, or so."""


class Part(NamedTuple):
    """What one request does to the blocks in use until each point, beyond what it holds now."""

    growth: list[float]
    """Expected: less than 0 where it will have given more back than it took."""
    spread: list[float]
    """Variance of that."""
    doubt: list[float]
    """Standard error of what is expected, for little may be known of lengths."""
    most: Sequence[float]
    """If it has not ended."""


def part_of(
    most: Sequence[int], held: int, own: float, likely: Sequence[float], off: Sequence[float]
) -> Part:
    """Of a request that holds `held` blocks now, of which `own` are free when it ends. `most` are
    those at each point until it reaches max_tokens; from then on it has ended. `likely` and `off`
    are the odds that it lives so long, and how wrong they may be.
    """
    shared = held - own
    wholes = [blocks - shared for blocks in most]
    growth = [stays * whole - own for stays, whole in zip(likely, wholes, strict=False)]
    spread = [p * (1.0 - p) * all * all for p, all in zip(likely, wholes, strict=False)]
    doubt = [wrong * whole for wrong, whole in zip(off, wholes, strict=False)]
    grown = [blocks - held for blocks in most]
    if ended := POINTS - len(most):
        growth += [-own] * ended
        spread += [0.0] * ended
        doubt += [0.0] * ended
        grown += [grown[-1]] * ended
    return Part(growth, spread, doubt, grown)


def added(parts: Sequence[Part]) -> Part:
    if not parts:
        return Part(*([[0.0] * POINTS] * 4))
    columns: list[list[float]] = [
        list(map(sum, zip(*lists, strict=True))) for lists in zip(*parts, strict=True)
    ]
    return Part(*columns)
