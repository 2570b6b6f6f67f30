"""`servekit simulate --json`: fixed keys with units in their names; docs/simulate.md lists them."""

import math
from dataclasses import fields
from typing import Any

from servekit.config.schema import Config
from servekit.simulator.pages.metrics import BY_KEY, LATENCIES, METRICS, POINTS
from servekit.simulator.pages.reasons import best, by_key, reasons
from servekit.simulator.pages.verdict import advice, of_target, verdict
from servekit.simulator.record import (
    Class,
    Comparison,
    Estimate,
    Latency,
    Report,
    Series,
    Target,
    Tenant,
)

RATES = (
    *("offered_per_s", "served_per_s", "refused_per_s", "left_per_s", "goodput_per_s"),
    *("goodput_share", "refused_share", "left_share", "attained_share"),
    *("output_tokens_per_s", "total_tokens_per_s"),
)
BATCH = (
    *("running", "waiting", "batch_decodes", "batch_tokens", "busy_share", "empty_seat_share"),
    *("idle_seat_share", "padding_share", "preempted_share", "wasted_share"),
)
ENDS = ("finished", "refused", "left", "unfinished")


def report_json(report: Report, config: Config) -> dict[str, Any]:
    """Strict JSON: what does not exist is null."""
    found = verdict(report)
    return {
        "verdict": found.word,
        "why": found.why,
        "name": report.name,
        "run": run_json(report),
        "latency": {f"{name}_ms": latency(getattr(report, name)) for name, _ in LATENCIES},
        "slo": [target_json(target) for target in report.targets],
        "throughput": {name: estimate(getattr(report, name)) for name in RATES},
        "batch": {
            **{name: estimate(getattr(report, name)) for name in BATCH},
            "step_ms": estimate(report.step_s, 1000),
            "preemptions": report.preemptions,
            "swaps": report.swaps,
        },
        "kv": {
            "mean_share": estimate(report.kv_mean_share),
            "max_share": plain(report.kv_max_share),
            "hit_share": estimate(report.hit_share),
            "miss_shares": {why: plain(part) for why, part in report.misses.items()},
        },
        "fairness": None if report.fairness is None else estimate(report.fairness),
        "tenants": [tenant_json(tenant) for tenant in report.tenants],
        "classes": [class_json(one) for one in report.classes],
        "saturation": {
            "saturated": report.saturated,
            "queue_growth_per_s": estimate(report.queue_growth_per_s),
        },
        "requests": {
            **{end: report.counts.get(end, 0) for end in ENDS},
            "cut": report.cut,
            "refused_by_code": dict(report.refused),
            "retry_after_s": plain(report.retry_after_s),
        },
        "series": series_json(report.series),
        "advice": advice(report, config),
    }


def run_json(report: Report) -> dict[str, Any]:
    return {
        "seeds": list(report.seeds),
        "seeds_alike": report.alike,
        "requests_per_seed": report.requests,
        "simulated_s": plain(report.simulated_s),
        "warm_up_s": plain(report.warm_up_s),
        "wall_s": plain(report.wall_s),
        "step_times": report.times,
    }


def target_json(target: Target) -> dict[str, Any]:
    return {
        "name": f"{target.name}_ms",
        "target": 1000 * target.target_s,
        "percentile": target.percentile,
        "simulated": estimate(target.value, 1000),
        "n": target.n,
        "late": target.late,
        "verdict": of_target(target),
    }


def latency(found: Latency) -> dict[str, Any]:
    """Milliseconds."""
    points = {point: estimate(getattr(found, point), 1000) for point in POINTS}
    return {**points, "n": found.n}


def estimate(found: Estimate, scale: float = 1) -> dict[str, float | None]:
    return {key: plain(value, scale) for key, value in found._asdict().items()}


def plain(value: float | None, scale: float = 1) -> float | None:
    """JSON has no NaN and no infinity."""
    return scale * value if value is not None and math.isfinite(value) else None


def tenant_json(tenant: Tenant) -> dict[str, Any]:
    return {
        "name": tenant.name,
        "weight": tenant.weight,
        "requests": tenant.requests,
        "output_tokens_per_s": plain(tenant.output_tokens_per_s),
        "total_tokens_per_s": plain(tenant.served_per_s),
        "ttft_p95_ms": plain(tenant.p95_ttft_s, 1000),
    }


def class_json(one: Class) -> dict[str, Any]:
    return {
        "priority": one.priority,
        "slo_class": one.slo_class,
        "requests": one.requests,
        "finished": one.finished,
        "refused": one.refused,
        "left": one.left,
        "queue_ms": latency(one.queue),
        "ttft_ms": latency(one.ttft),
    }


def series_json(series: Series) -> dict[str, list[float | None]]:
    """Columns of equal length, by where an interval ends."""
    return {
        "at_s" if name == "at" else name: [plain(value) for value in getattr(series, name)]
        for name in (field.name for field in fields(series))
    }


def comparison_json(comparison: Comparison, config: Config) -> dict[str, Any]:
    """A report each, what differs from the first, who is clearly best in what, and why."""
    options = []
    for place, name in enumerate(comparison.names):
        report, run = comparison.reports[place], comparison.runs[place]
        options.append(
            {
                "name": name,
                "report": report_json(report, run.config),
                "differences": differences(comparison, place),
            }
        )
    winners = {m.key: best(comparison, m.key, m.better) for m in METRICS}
    return {
        "key": comparison.key,
        "name": config.name,
        "options": options,
        "best": {key: name for key, name in winners.items() if name is not None},
        "why": reasons(comparison),
    }


def differences(comparison: Comparison, place: int) -> dict[str, Any]:
    """By the key of the number, in the units of `docs/simulate.md`; none of the first."""
    return {
        key: {
            "unit": BY_KEY[key].unit,
            "difference": estimate(found.estimate, BY_KEY[key].scale),
            "relative": plain(found.relative),
            "is_clear": found.is_clear,
        }
        for key, found in by_key(comparison.differences[place]).items()
        if key in BY_KEY
    }
