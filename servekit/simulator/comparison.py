"""What is said about several configurations beside each other."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from servekit.simulator.record import Estimate, Report, Run


class Difference(NamedTuple):
    """Of one number of a report from the first one's, seed by seed."""

    key: str
    estimate: Estimate
    relative: float
    is_clear: bool
    """The interval leaves 0 out."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The same arrivals through several configurations, common random numbers."""

    key: str
    """What varies, such as `scheduler`."""
    names: tuple[str, ...]
    reports: tuple[Report, ...]
    differences: tuple[tuple[Difference, ...], ...]
    """Of each report from the first; the first has none."""
    highest: Mapping[str, str]
    """Who is clearly above every other in a number, by the number."""
    lowest: Mapping[str, str]
    runs: tuple[Run, ...]
    """Of the first seed, for pictures."""
