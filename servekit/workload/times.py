"""When conversations begin."""

from collections.abc import Iterator
from itertools import repeat
from random import Random

from servekit.config.targets import WorkloadConfig
from servekit.workload.draws import SMALLEST_CV


def starts(work: WorkloadConfig, *, turns: float, seed: int) -> Iterator[float]:
    """Seconds at which conversations begin, without end but for a closed workload.

    So that `request_rate` requests come a second, later turns among them, a conversation begins
    every `turns` / `request_rate` seconds.
    """
    if work.arrivals == "closed":
        yield from repeat(0.0, work.concurrency)
        return
    together = work.burst_size if work.arrivals == "bursts" else 1
    now = 0.0
    for gap in gaps(together * turns / work.request_rate, work.arrival_cv, seed=seed):
        now += gap
        yield from repeat(now, together)


def gaps(mean: float, cv: float, *, seed: int) -> Iterator[float]:
    """Gamma distributed, so that a `cv` of 1 makes a Poisson process, and 0 a clock."""
    if cv < SMALLEST_CV:
        yield from repeat(mean)
    draw = Random(f"{seed} gaps").gammavariate
    while True:
        yield draw(1 / cv**2, mean * cv**2)
