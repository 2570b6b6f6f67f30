"""The same requests through several configurations."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from servekit.config.schema import Config
from servekit.scheduler.settings import StepTime
from servekit.simulator.measure import Measured, measure, window
from servekit.simulator.record import Comparison, Difference, Estimate, Run
from servekit.simulator.report import PLAIN, report_of, telling
from servekit.simulator.run import simulate
from servekit.simulator.samples import PERCENTILES
from servekit.simulator.statistics import mean, paired

LATENCIES = ("ttft", "tpot", "itl", "e2e", "queue")
COMPARED = (
    *(f"{name}.{part}" for name in LATENCIES for part in ("mean", *PERCENTILES)),
    *PLAIN,
)
"""Attributes of a report that differences are told of."""


class Option(NamedTuple):
    name: str
    config: Config
    step_time: StepTime | None = None
    """None: as `spec.latency` has it."""


def compare(
    key: str,
    options: Sequence[Option],
    *,
    requests: int,
    seeds: Sequence[int],
    ended: Callable[[], None] | None = None,
) -> Comparison:
    """Each option meets the same arrivals by the same seeds (common random numbers), so that what
    differs is the configuration's doing. `ended` is called at the end of each request.
    """
    runs = [
        [
            simulate(config, requests=requests, seed=seed, step_time=step_time, ended=ended)
            for seed in seeds
        ]
        for _, config, step_time in options
    ]
    simulated = len(runs[0])
    told = telling(runs)
    runs = [[each[place] for place in told] for each in runs]
    starts = [_start(same) for same in zip(*runs, strict=True)]
    measured = [
        [measure(run, start) for run, start in zip(each, starts, strict=True)] for each in runs
    ]
    names = tuple(option.name for option in options)
    shown = zip(names, runs, measured, strict=True)
    return Comparison(
        key=key,
        names=names,
        reports=tuple(
            report_of(name, each, seen, alike=simulated - len(told)) for name, each, seen in shown
        ),
        differences=((), *(_differences(measured[0], other) for other in measured[1:])),
        highest=clear_of_all(names, measured, 1),
        lowest=clear_of_all(names, measured, -1),
        runs=tuple(each[0] for each in runs),
    )


def _start(same: Sequence[Run]) -> float:
    """Where the last of them is warm. Of closed clients those of a fast system have gone by when a
    slow one is, so there each counts from its own start on.
    """
    if any(run.config.workload.arrivals == "closed" for run in same):
        return 0.0
    return max(window(run)[0] for run in same)


def _differences(first: list[Measured], other: list[Measured]) -> tuple[Difference, ...]:
    """Batch by batch of the same seeds: the same requests are in both."""
    found = []
    for key in COMPARED:
        gain, before = _gain(key, first, other), _mean(key, first)
        relative = gain.value / before if before else math.nan
        found.append(Difference(key, gain, relative, gain.low > 0 or gain.high < 0))
    return tuple(found)


def _mean(key: str, seeds: list[Measured]) -> float:
    return mean([seed.samples[key].whole for seed in seeds])


def _gain(key: str, first: list[Measured], other: list[Measured]) -> Estimate:
    pairs = [(one.samples[key], two.samples[key]) for one, two in zip(first, other, strict=True)]
    return paired(
        [(one.whole, two.whole) for one, two in pairs],
        # of what too little was seen of there are no batches
        [batch for one, two in pairs for batch in zip(one.batches, two.batches, strict=False)],
    )


def clear_of_all(
    names: Sequence[str], measured: Sequence[list[Measured]], sign: int
) -> dict[str, str]:
    """Who has clearly most of each number, or with `sign` -1 least, if somebody does.

    He is set beside each other, and not by how far both are from the first: that may be so far off
    that what lies between the two is lost in the noise of it.
    """
    found = {}
    for key in COMPARED:
        means = [sign * _mean(key, seeds) for seeds in measured]
        top = max(range(len(means)), key=means.__getitem__)
        others = [seeds for place, seeds in enumerate(measured) if place != top]
        gains = [_gain(key, other, measured[top]) for other in others]
        lows = [gain.low if sign > 0 else -gain.high for gain in gains]
        if all(low > 0 for low in lows):  # false where one is NaN
            found[key] = names[top]
    return found
