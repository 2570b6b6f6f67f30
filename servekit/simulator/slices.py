"""Steps of all copies, summed over slices of time."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from itertools import pairwise
from operator import mul

from servekit.simulator.record import CopyRecord, Run


@dataclass(slots=True)
class Slice:
    """Sums over the steps that ended in it; `..._s` are multiplied with the seconds that steps
    lasted, of each as much as lies in the slice.
    """

    wall_s: float = 0.0
    """How long it is."""
    copy_s: float = 0.0
    """The same for each copy, summed."""
    busy_s: float = 0.0
    steps: int = 0
    steps_s: float = 0.0
    """How long those took that ended in it, whenever they began."""
    decodes: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    preempted: int = 0
    running_s: float = 0.0
    waiting_s: float = 0.0
    blocks_s: float = 0.0
    block_capacity_s: float = 0.0
    seats_s: float = 0.0
    """Seats there are, while a step is under way."""
    idle_seats_s: float = 0.0
    """Those of them that are empty while somebody waits."""

    def __add__(self, other: "Slice") -> "Slice":
        return Slice(*map(sum, zip(astuple(self), astuple(other), strict=True)))


def edges(start: float, end: float, count: int) -> list[float]:
    """Of so many slices of equal length; none if there is no time between."""
    if end <= start:
        return []
    return [start + (end - start) * index / count for index in range(count + 1)]


def slices(run: Run, limits: Sequence[float]) -> list[Slice]:
    """One for each two neighbours of `limits`, all copies together."""
    seats = run.config.scheduler.max_num_seqs
    found = []
    for low, high in pairwise(limits):
        total = Slice(wall_s=high - low)
        for copy in run.copies:
            total += _slice(copy, low, high, seats)
        found.append(total)
    return found


def _slice(copy: CopyRecord, low: float, high: float, seats: int) -> Slice:
    steps = copy.steps
    first, last = bisect_right(steps.at, low), bisect_right(steps.at, high)
    ended, reached = slice(first, last), slice(first, last + 1)  # one may go on beyond `high`
    seconds = _inside(steps.at[reached], steps.seconds[reached], low, high)
    running, waiting = steps.running[reached], steps.waiting[reached]
    empty = zip(running, waiting, seconds, strict=True)
    busy = sum(seconds)
    return Slice(
        copy_s=high - low,
        busy_s=busy,
        steps=last - first,
        steps_s=sum(steps.seconds[ended]),
        decodes=sum(steps.decodes[ended]),
        prompt_tokens=sum(steps.prompt_tokens[ended]),
        output_tokens=sum(steps.output_tokens[ended]),
        preempted=sum(steps.preempted[ended]),
        running_s=sum(map(mul, running, seconds)),
        waiting_s=sum(map(mul, waiting, seconds)),
        blocks_s=sum(map(mul, steps.blocks_used[reached], seconds)),
        block_capacity_s=copy.blocks_total * (high - low),
        seats_s=seats * busy,
        idle_seats_s=sum((seats - sat) * lasted for sat, waits, lasted in empty if waits),
    )


def _inside(
    ends: Sequence[float], seconds: Sequence[float], low: float, high: float
) -> list[float]:
    """How much of each step lies between; only the first may begin before, the last end after."""
    found = list(seconds)
    for place in {0, len(found) - 1} if found else ():
        began = ends[place] - seconds[place]
        found[place] = max(0.0, min(ends[place], high) - max(began, low))
    return found
