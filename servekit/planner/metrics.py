"""A plan in numbers that can be compared: one row each, for `servekit diff` and tables of plans.

Latency, throughput and cost are those of the declared workload; memory is that of the worst rank,
capacity that of one copy of the model, as on the page of `servekit plan`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from servekit.planner.outcome import Outcome
from servekit.planner.prediction.prediction import Prediction
from servekit.spec.model import GIB

Better = Literal["higher", "lower"]
Family = Literal["memory", "speed", "price"]


@dataclass(frozen=True, slots=True)
class Metric:
    """`band` is the half-width of the interval around `value` that the model errs by, in `unit`; 0
    where it is exact. `chance` is that of a simulated number by chance, and `parts` what it was in
    consecutive parts of the run; 0 and none of numbers that are not simulated.

    `better` is None for what is neither. `value` is None where the plan has none: a deployment that
    does not fit has no latency, one without a price no cost. `family` says whose model errs:
    `memory` is the ledger's, `speed` that of latency, `price` is a product of inputs.
    """

    name: str
    value: float | None
    band: float
    unit: str
    better: Better | None
    family: Family
    chance: float = 0.0
    parts: tuple[float | None, ...] = ()
    runs: int = 0
    """Requests of the run."""


LABELS = {
    "weights_gib": "weights",
    "kv_gib": "KV cache",
    "capacity_tokens": "capacity",
    "max_concurrency": "concurrency",
    "ttft_p50_ms": "TTFT p50",
    "ttft_p95_ms": "TTFT p95",
    "tpot_p50_ms": "TPOT p50",
    "tpot_p95_ms": "TPOT p95",
    "output_tokens_per_s": "throughput",
    "saturation_concurrency": "saturates at",
    "goodput_per_s": "goodput",
    "usd_per_hour": "price",
    "usd_per_million_output_tokens": "cost",
}
"""What people call each metric, in the order of a report."""

SPEED: dict[str, tuple[str, Better | None]] = {
    "ttft_p50_ms": ("ms", "lower"),
    "ttft_p95_ms": ("ms", "lower"),
    "tpot_p50_ms": ("ms", "lower"),
    "tpot_p95_ms": ("ms", "lower"),
    "output_tokens_per_s": ("tokens/s", "higher"),
    "saturation_concurrency": ("requests", None),
    "goodput_per_s": ("requests/s", "higher"),
}
"""What the latency model says: unit, and which way is better."""


def metrics(plan: Outcome) -> dict[str, Metric]:
    """By name, in the order of `LABELS`; always all of them."""
    found = {
        metric.name: metric for metric in (*_memory(plan), *_speed(plan.prediction), *_cost(plan))
    }
    return {name: found[name] for name in LABELS}


def _memory(plan: Outcome) -> Iterator[Metric]:
    """The pool is what the rest leaves, and as unsure as that, unless it is asked for by size."""
    weights, pool, layout = plan.ledger.weights, plan.ledger.kv, plan.kv
    band = 0 if plan.ledger.pool_is_explicit else plan.ledger.band_bytes
    doubt = min(1.0, band / pool.bytes) if pool.bytes > 0 else 0.0
    tokens = float(layout.capacity_tokens)
    requests = layout.max_concurrency(plan.config.model.max_model_len)
    yield Metric(
        "weights_gib", weights.bytes / GIB, weights.band_bytes / GIB, "GiB", "lower", "memory"
    )
    yield Metric("kv_gib", pool.bytes / GIB, band / GIB, "GiB", "higher", "memory")
    yield Metric("capacity_tokens", tokens, tokens * doubt, "tokens", "higher", "memory")
    yield Metric("max_concurrency", requests, requests * doubt, "requests", "higher", "memory")


def _speed(prediction: Prediction | None) -> Iterator[Metric]:
    values: dict[str, float | None] = dict.fromkeys(SPEED)
    if prediction is not None:
        values = {
            "ttft_p50_ms": prediction.ttft_ms.p50,
            "ttft_p95_ms": prediction.ttft_ms.p95,
            "tpot_p50_ms": prediction.tpot_ms.p50,
            "tpot_p95_ms": prediction.tpot_ms.p95,
            "output_tokens_per_s": prediction.output_tokens_per_s,
            "saturation_concurrency": prediction.saturation_concurrency,
            "goodput_per_s": prediction.goodput_per_s,
        }
    for name, (unit, better) in SPEED.items():
        value = values[name]
        band = 0.0 if prediction is None or value is None else value * prediction.band
        yield Metric(name, value, band, unit, better, "speed", *_chance(prediction, name))


def _chance(
    prediction: Prediction | None, name: str
) -> tuple[float, tuple[float | None, ...], int]:
    """Of a time of a simulated run, by its metric: the half-width, the parts, the requests."""
    sampled = prediction.sampled if prediction is not None else None
    if sampled is None or name not in sampled.batches:
        return 0.0, (), 0
    time, _, percentile = name.removesuffix("_ms").partition("_")
    half: float | None = getattr(getattr(sampled, f"{time}_ms"), percentile)
    return half or 0.0, sampled.batches[name], sampled.requests


def _cost(plan: Outcome) -> Iterator[Metric]:
    each = plan.cost.usd_per_million_output_tokens
    band = 0.0 if plan.prediction is None or each is None else each * plan.prediction.band
    yield Metric("usd_per_hour", plan.cost.usd_per_hour, 0.0, "USD/h", "lower", "price")
    yield Metric(
        "usd_per_million_output_tokens", each, band, "USD/M output tokens", "lower", "speed"
    )
