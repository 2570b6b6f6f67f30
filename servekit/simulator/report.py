"""Several seeds of one configuration in one report."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from statistics import median
from typing import Literal

from servekit.config.schema import Config
from servekit.simulator.groups import classes, latency_of, merged, tenants
from servekit.simulator.measure import Measured, is_good, measure
from servekit.simulator.record import (
    CopyRecord,
    Estimate,
    Latency,
    Report,
    Run,
    Series,
    Target,
)
from servekit.simulator.samples import PERCENTILES
from servekit.simulator.slices import edges, slices
from servekit.simulator.statistics import CONFIDENCE_Z, estimate, mean

POINTS = 120
"""Of a curve over time."""

GROWTH = 0.01
"""Of the requests that come, so many must stay in the queue before it counts as growing."""
OVERLOAD = ("queue_full", "slo_unattainable")
"""Codes of refusals that say the system is full."""


def report(name: str, runs: Sequence[Run]) -> Report:
    """Of runs of one configuration, one a seed, with as many requests each."""
    told = [runs[place] for place in telling([runs])]
    return report_of(name, told, [measure(run) for run in told], alike=len(runs) - len(told))


def telling(options: Sequence[Sequence[Run]]) -> list[int]:
    """Seeds that say something new of several configurations, one at least. A replayed trace mostly
    is the same whatever the seed, and what is seen thrice alike is not surer.
    """
    found: list[int] = []
    for place in range(len(options[0])):
        if not any(
            all(runs[place].served == runs[old].served for runs in options) for old in found
        ):
            found.append(place)
    return found


def report_of(
    name: str, runs: Sequence[Run], seeds: Sequence[Measured], *, alike: int = 0
) -> Report:
    """The same of runs that were measured already."""
    config = runs[0].config
    ends = Counter(one.end for run in runs for one in run.served)
    refused = Counter(one.code for run in runs for one in run.served if one.end == "refused")
    told = [one.retry_after_s for run in runs for one in run.served if one.retry_after_s]
    slope = queue_growth(seeds)
    each_tenant, fairness = tenants(config, runs, seeds)
    copies = [copy for run in runs for copy in run.copies]
    preempted = sum(sum(copy.steps.preempted) for copy in copies)
    swaps = sum(copy.swaps for copy in copies)
    wasted = sum(copy.wasted_tokens for copy in copies)
    numbers = {key: combined(seeds, key) for key in PLAIN}
    return Report(
        name=name,
        seeds=tuple(run.seed for run in runs),
        requests=len(runs[0].served),
        simulated_s=mean([run.seconds for run in runs]),
        wall_s=sum(run.wall_s for run in runs),
        warm_up_s=mean([seed.start for seed in seeds]),
        ttft=_latency(seeds, "ttft"),
        tpot=_latency(seeds, "tpot"),
        itl=_latency(seeds, "itl"),
        e2e=_latency(seeds, "e2e"),
        queue=_latency(seeds, "queue"),
        targets=_targets(config, seeds),
        **numbers,
        kv_max_share=max(map(_kv_max, copies)),
        misses=_misses(seeds),
        padding_share=_of_runs(runs, _padding),
        wasted_share=_of_runs(runs, _wasted),
        preemptions=preempted,
        swaps=swaps,
        preempted_tokens=wasted / max(1, preempted - swaps),
        fairness=fairness,
        tenants=each_tenant,
        classes=classes(seeds),
        saturated=_saturated(seeds, slope),
        queue_growth_per_s=slope,
        counts={end: ends[end] for end in ("finished", "refused", "left", "unfinished")},
        refused=dict(refused),
        retry_after_s=median(told) if told else None,
        series=series(runs[0]),
        times=runs[0].times,
        alike=alike,
        cut=sum(run.cut for run in runs),
    )


PLAIN = (
    *("offered_per_s", "served_per_s", "output_tokens_per_s", "total_tokens_per_s"),
    *("refused_per_s", "left_per_s", "refused_share", "left_share"),
    *("goodput_per_s", "goodput_share", "attained_share", "kv_mean_share", "hit_share"),
    *("running", "waiting", "batch_tokens", "batch_decodes", "step_s", "busy_share"),
    *("empty_seat_share", "idle_seat_share", "preempted_share"),
)
"""Numbers of a report that are measured in batches."""


def combined(seeds: Sequence[Measured], key: str) -> Estimate:
    """Of a sample that each seed has."""
    return merged([seed.samples[key] for seed in seeds])


def _latency(seeds: Sequence[Measured], name: str) -> Latency:
    keys = ("mean", *PERCENTILES)
    parts = [{key: seed.samples[f"{name}.{key}"] for key in keys} for seed in seeds]
    return latency_of(parts, sum(seed.seen[name] for seed in seeds))


def _targets(config: Config, seeds: Sequence[Measured]) -> tuple[Target, ...]:
    slo = config.slo
    names: tuple[tuple[Literal["ttft", "tpot"], float | None], ...] = (
        ("ttft", slo.ttft_ms),
        ("tpot", slo.tpot_ms),
    )
    found = []
    for name, target_ms in names:
        if target_ms is not None:
            value = combined(seeds, f"target.{name}")
            n, late = (sum(seed.promised[name][place] for seed in seeds) for place in (0, 1))
            found.append(Target(name, target_ms / 1000, slo.percentile, value, n, late))
    return tuple(found)


def _of_runs(runs: Sequence[Run], share: Callable[[Run], float]) -> Estimate:
    """Of what is only known of whole runs."""
    values = [share(run) for run in runs]
    return estimate(values, values)


def _padding(run: Run) -> float:
    rows = sum(sum(copy.steps.decodes) + sum(copy.steps.prompt_tokens) for copy in run.copies)
    padding = sum(copy.padding_tokens for copy in run.copies)
    return padding / (rows + padding) if rows else math.nan


def _wasted(run: Run) -> float:
    rows = sum(sum(copy.steps.decodes) + sum(copy.steps.prompt_tokens) for copy in run.copies)
    return sum(copy.wasted_tokens for copy in run.copies) / rows if rows else math.nan


def _kv_max(copy: CopyRecord) -> float:
    return max(copy.steps.blocks_used, default=0) / copy.blocks_total


def _misses(seeds: Sequence[Measured]) -> dict[str, float]:
    keys = {key: 0 for seed in seeds for key in seed.samples if key.startswith("miss.")}
    looked = [seed for seed in seeds if seed.samples.keys() >= keys.keys()]
    shares = {key.removeprefix("miss."): combined(looked, key).value for key in keys}
    return {why: part for why, part in shares.items() if part > 0}


def queue_growth(seeds: Sequence[Measured]) -> Estimate:
    """Requests that wait, more each second: a straight line through each seed's batches."""
    slopes = [seed.slope for seed in seeds if not math.isnan(seed.slope[0])]
    if not slopes:
        return Estimate(math.nan, math.nan, math.nan)
    value = mean([slope for slope, _ in slopes])
    half = CONFIDENCE_Z * math.sqrt(sum(error**2 for _, error in slopes)) / len(slopes)
    return Estimate(value, value - half, value + half)


def _saturated(seeds: Sequence[Measured], slope: Estimate) -> bool:
    """The queue grew by more than noise, or requests were refused so that it would not."""
    came = [one for seed in seeds for one in seed.counted]
    offered = mean([seed.samples["offered_per_s"].whole for seed in seeds])
    turned_away = sum(one.code in OVERLOAD for one in came)
    return (slope.low > 0 and slope.value > GROWTH * offered) or turned_away > GROWTH * len(came)


def series(run: Run) -> Series:
    """Curves over the whole run."""
    limits = edges(0.0, run.seconds, POINTS)
    parts = slices(run, limits)
    ended = [(one.finished_at or 0.0, 1.0) for one in run.served if is_good(one, run.config.slo)]
    width = run.seconds / POINTS
    good = [0.0] * len(parts)
    for at, _ in ended:
        good[min(POINTS - 1, int(at / width))] += 1 / width
    return Series(
        at=tuple(limits[1:]),
        running=tuple(part.running_s / part.wall_s for part in parts),
        waiting=tuple(part.waiting_s / part.wall_s for part in parts),
        kv_share=tuple(part.blocks_s / part.block_capacity_s for part in parts),
        batch_tokens=tuple(
            (part.decodes + part.prompt_tokens) / part.steps if part.steps else 0.0
            for part in parts
        ),
        output_tokens_per_s=tuple(part.output_tokens / part.wall_s for part in parts),
        goodput_per_s=tuple(good),
    )
