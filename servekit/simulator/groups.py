"""Who got what: tenants, and classes by priority and SLO class, of the time that counts."""

import math
from collections import defaultdict
from collections.abc import Sequence

from servekit.config.schema import Config
from servekit.simulator.measure import TIMES, Measured
from servekit.simulator.record import Class, Estimate, Latency, Run, Served, Tenant
from servekit.simulator.samples import PERCENTILES, Sample, latency, rate, share
from servekit.simulator.statistics import estimate, mean, percentile


def merged(samples: Sequence[Sample]) -> Estimate:
    """One a seed."""
    batches = [value for sample in samples for value in sample.batches]
    return estimate([sample.whole for sample in samples], batches)


def latency_of(seeds: Sequence[dict[str, Sample]], n: int) -> Latency:
    parts = {key: merged([seed[key] for seed in seeds]) for key in ("mean", *PERCENTILES)}
    return Latency(**parts, n=n)


def classes(seeds: Sequence[Measured]) -> tuple[Class, ...]:
    """By priority, those that go first first; then interactive before batch."""
    found: dict[tuple[int, str], list[list[Served]]] = {}
    for place, seed in enumerate(seeds):
        for one in seed.counted:
            key = one.priority, one.slo_class
            found.setdefault(key, [[] for _ in seeds])[place].append(one)
    order = sorted(found, key=lambda key: (key[0], key[1] == "batch"))
    return tuple(_class(*key, found[key]) for key in order)


def _class(priority: int, slo_class: str, seeds: list[list[Served]]) -> Class:
    ends = [one.end for seed in seeds for one in seed]
    return Class(
        priority=priority,
        slo_class=slo_class,
        requests=len(ends),
        finished=ends.count("finished"),
        refused=ends.count("refused"),
        left=ends.count("left"),
        queue=_times("queue", seeds),
        ttft=_times("ttft", seeds),
    )


def _times(name: str, seeds: list[list[Served]]) -> Latency:
    each = [[time for one in seed if (time := TIMES[name](one)) is not None] for seed in seeds]
    return latency_of([latency(values) for values in each], sum(map(len, each)))


def tenants(
    config: Config, runs: Sequence[Run], seeds: Sequence[Measured]
) -> tuple[tuple[Tenant, ...], Estimate | None]:
    """Each tenant, and the most over the least that any got, over its weight."""
    pairs = list(zip(runs, seeds, strict=True))
    names = sorted({one.tenant for seed in seeds for one in seed.counted})
    weights = config.scheduler.tenant_weights
    output = [output_rates(run, seed) for run, seed in pairs]
    served = [served_rates(run, seed) for run, seed in pairs]
    counted: dict[str, list[Served]] = defaultdict(list)
    for seed in seeds:
        for one in seed.counted:
            counted[one.tenant].append(one)
    found = []
    for name in names:
        waits = [one.ttft_s for one in counted[name] if one.ttft_s is not None]
        found.append(
            Tenant(
                name=name,
                weight=weights.get(name, 1.0),
                output_tokens_per_s=mean([seed.get(name, 0.0) for seed in output]),
                served_per_s=mean([seed.get(name, 0.0) for seed in served]),
                p95_ttft_s=percentile(sorted(waits), PERCENTILES["p95"]),
                requests=len(counted[name]),
            )
        )
    if len(names) < 2:
        return tuple(found), None
    ratios = [_ratio([seed.get(one.name, 0.0) / one.weight for one in found]) for seed in served]
    return tuple(found), estimate(ratios, ratios)


def _ratio(rates: Sequence[float]) -> float:
    return max(rates) / min(rates) if min(rates) > 0 else math.nan


def served_rates(run: Run, seed: Measured) -> dict[str, float]:
    """Prompt and output tokens of what was served, a second, of each tenant."""
    events: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for one in run.served:
        at = one.finished_at
        if one.end == "finished" and at is not None and seed.start <= at <= seed.end:
            events[one.tenant].append((at, one.prompt_tokens + one.output_tokens))
    return {name: rate(own, seed.start, seed.end).whole for name, own in events.items()}


def output_rates(run: Run, seed: Measured) -> dict[str, float]:
    """Output tokens a second of each tenant: those of all steps, shared out by what each had.

    A step does not say whose its tokens are, but a request's come at an even pace, nearly.
    """
    made: dict[str, float] = defaultdict(float)
    for one in run.served:
        made[one.tenant] += tokens_between(one, seed.start, seed.end)
    rate_of_all, whole = seed.samples["output_tokens_per_s"].whole, math.fsum(made.values())
    return {name: rate_of_all * share(tokens, whole) for name, tokens in made.items()}


def tokens_between(one: Served, start: float, end: float) -> float:
    """Of its answer: the first when it came, the others evenly from there to the last."""
    first, last = one.first_token_at, one.finished_at
    if first is None or last is None:
        return 0.0
    there = float(start <= first <= end)
    if last <= first:
        return there * one.output_tokens
    inside = max(0.0, min(end, last) - max(start, first)) / (last - first)
    return there + (one.output_tokens - 1) * inside
