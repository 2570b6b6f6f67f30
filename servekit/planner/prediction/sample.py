"""A short run of the scheduler that serves, and its times. Imported only where one is made."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise

from servekit.config.schema import Config
from servekit.planner.prediction.prediction import Latencies, Percentiles, Sampled
from servekit.simulator.measure import TIMES, Measured, measure
from servekit.simulator.record import Estimate
from servekit.simulator.report import OVERLOAD, queue_growth
from servekit.simulator.run import simulate
from servekit.simulator.samples import PERCENTILES, Sample
from servekit.simulator.statistics import BATCHES, estimate, mean, percentile

SEED = 1
"""Everywhere, so that two deployments see the same requests and differ by what they are."""

GROWTH = 0.05
"""Of the requests that come, so many must stay in the queue, or be refused, before so short a run
counts as one without end: by a percent or two a queue grows by chance alone."""

UNSEEN = {"name", "server", "telemetry"}
"""Groups that no simulation looks at."""


@dataclass(frozen=True, slots=True)
class Times:
    """Milliseconds; None where nothing was seen, as no answer had a second token."""

    ttft_ms: Percentiles
    tpot_ms: Percentiles
    itl_ms: Percentiles
    at_slo: Latencies
    """Of those who wait: requests of class batch are promised nothing."""
    sampled: Sampled
    is_endless: bool
    """The queue grew to the end."""


@dataclass(frozen=True, slots=True)
class _Case:
    """A run, by all that it depends on."""

    key: str
    requests: int
    config: Config = field(compare=False)


def sample(config: Config, requests: int) -> Times:
    """Made once for configurations that differ in nothing that counts. Raises what `simulate` does:
    NotBuilt for layers that are not scheduled, DoesNotFit without a block, ConfigError of traces.
    """
    return _sample(_Case(config.model_dump_json(exclude=UNSEEN), requests, config))


@lru_cache(maxsize=64)
def _sample(case: _Case) -> Times:
    run = simulate(case.config, requests=case.requests, seed=SEED)
    measured = measure(run)
    samples = dict(measured.samples)
    share = case.config.slo.percentile / 100
    samples |= {f"{name}.slo": _at(measured, name, share) for name in ("ttft", "tpot")}
    found = {key: estimate([one.whole], one.batches) for key, one in samples.items() if "." in key}
    sampled = Sampled(
        requests=len(run.served),
        seconds=run.seconds,
        cut=run.cut,
        ttft_ms=_percentiles("ttft", found, _half),
        tpot_ms=_percentiles("tpot", found, _half),
        itl_ms=_percentiles("itl", found, _half),
        at_slo=Latencies(_half(found["ttft.slo"]), _half(found["tpot.slo"])),
        batches={
            f"{name}_{key}_ms": tuple(map(_ms, samples[f"{name}.{key}"].batches))
            for name in ("ttft", "tpot")
            for key in ("p50", "p95")
        },
    )
    return Times(
        ttft_ms=_percentiles("ttft", found, _value),
        tpot_ms=_percentiles("tpot", found, _value),
        itl_ms=_percentiles("itl", found, _value),
        at_slo=Latencies(_value(found["ttft.slo"]), _value(found["tpot.slo"])),
        sampled=sampled,
        is_endless=_grows(measured),
    )


def _at(measured: Measured, name: str, share: float) -> Sample:
    """The percentile of the slo, in the whole run and in parts of it."""
    waiting = [one for one in measured.counted if one.slo_class == "interactive"]
    times = map(TIMES[name], waiting or measured.counted)
    values = [time for time in times if time is not None]
    limits = [len(values) * part // BATCHES for part in range(BATCHES + 1)]
    parts = [values[low:high] for low, high in pairwise(limits)]
    whole, *batches = (percentile(sorted(part), share) for part in (values, *parts))
    return Sample(whole, batches)


def _percentiles(
    name: str, found: dict[str, Estimate], number: Callable[[Estimate], float | None]
) -> Percentiles:
    return Percentiles(*(number(found[f"{name}.{key}"]) for key in PERCENTILES))


def _value(found: Estimate) -> float | None:
    return _ms(found.value)


def _half(found: Estimate) -> float | None:
    return _ms(found.high - found.value)


def _ms(seconds: float) -> float | None:
    return None if math.isnan(seconds) else seconds * 1000


def _grows(measured: Measured) -> bool:
    """By more than chance, or it would have, had nobody been refused."""
    slope, came = queue_growth([measured]), measured.samples["offered_per_s"].whole
    refused = mean([float(one.code in OVERLOAD) for one in measured.counted])
    return (slope.low > 0 and slope.value > GROWTH * came) or refused > GROWTH
