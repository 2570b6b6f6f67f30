"""What pages say of a report: each number's name, unit, and which way is better.

The terminal, the comparison, the HTML page and the JSON all read this one list.
"""

import math
from dataclasses import dataclass
from typing import Literal

from servekit.simulator.record import Estimate, Report

Better = Literal["lower", "higher", "neither"]
Section = Literal["latency", "rate", "batch", "cache"]
NONE = "–"
"""Stands for a number that does not exist."""


@dataclass(frozen=True, slots=True)
class Metric:
    """`key` is the path of an Estimate or a number in a Report; `scale` makes `unit` of it."""

    key: str
    label: str
    unit: str
    scale: float
    better: Better
    section: Section

    def of(self, report: Report) -> Estimate | None:
        """In `unit`; None where the report has none or nothing was seen."""
        found: object = report
        for name in self.key.split("."):
            found = getattr(found, name)
        if isinstance(found, float):
            found = Estimate(found, math.nan, math.nan)
        if not isinstance(found, Estimate) or not math.isfinite(found.value):
            return None
        return Estimate(*(self.scale * part for part in found))


LATENCIES = (
    ("ttft", "time to first token"),
    ("tpot", "per output token"),
    ("itl", "between tokens"),
    ("e2e", "whole answer"),
    ("queue", "until seated"),
)
"""Of a report, and what people call them."""
POINTS = ("mean", "p50", "p95", "p99")

METRICS = (
    *(
        Metric(f"{name}.{point}", f"{label}, {point}", "ms", 1000, "lower", "latency")
        for name, label in LATENCIES
        for point in POINTS
    ),
    Metric("offered_per_s", "offered", "requests/s", 1, "neither", "rate"),
    Metric("served_per_s", "served", "requests/s", 1, "higher", "rate"),
    Metric("goodput_per_s", "goodput", "requests/s", 1, "higher", "rate"),
    Metric("goodput_share", "goodput, share of all", "%", 100, "higher", "rate"),
    Metric("refused_share", "refused, share of all", "%", 100, "neither", "rate"),
    Metric("left_share", "left, share of all", "%", 100, "lower", "rate"),
    Metric("attained_share", "in time, of those accepted", "%", 100, "higher", "rate"),
    Metric("output_tokens_per_s", "output", "tokens/s", 1, "higher", "rate"),
    Metric("total_tokens_per_s", "prompts and output", "tokens/s", 1, "higher", "rate"),
    Metric("queue_growth_per_s", "the queue grows by", "requests/s", 1, "lower", "rate"),
    Metric("running", "requests running", "", 1, "neither", "batch"),
    Metric("waiting", "requests waiting", "", 1, "lower", "batch"),
    Metric("batch_decodes", "answers that go on in a step", "", 1, "neither", "batch"),
    Metric("batch_tokens", "tokens of a step", "", 1, "neither", "batch"),
    Metric("step_s", "a step takes", "ms", 1000, "neither", "batch"),
    Metric("busy_share", "time in steps", "%", 100, "neither", "batch"),
    Metric("empty_seat_share", "seats empty", "%", 100, "neither", "batch"),
    Metric("idle_seat_share", "seats empty, others waiting", "%", 100, "lower", "batch"),
    Metric("padding_share", "rows that only fill a graph", "%", 100, "lower", "batch"),
    Metric("preempted_share", "requests preempted", "%", 100, "lower", "batch"),
    Metric("wasted_share", "tokens computed twice", "%", 100, "lower", "batch"),
    Metric("fairness", "most over least served tenant", "times", 1, "lower", "batch"),
    Metric("kv_mean_share", "KV blocks held", "%", 100, "neither", "cache"),
    Metric("kv_max_share", "KV blocks held, at most", "%", 100, "neither", "cache"),
    Metric("hit_share", "prompt tokens in the cache", "%", 100, "higher", "cache"),
)
BY_KEY = {metric.key: metric for metric in METRICS}


def number(value: float | None, digits: int | None = None) -> str:
    """Three digits that count, but all before the point and at most two after it, three of what is
    small; `digits` after the point where given.
    """
    if value is None or not math.isfinite(value):
        return NONE
    return f"{value:,.{decimals(value) if digits is None else digits}f}"


def decimals(value: float) -> int:
    size = float(f"{abs(value):.2e}")  # 99.98 is written as 100
    if size == 0:
        return 0
    return min(2, max(0, 2 - math.floor(math.log10(size)))) if size >= 0.01 else 3


def half(found: Estimate) -> float | None:
    """Half the width of the interval; None where there is none."""
    width = (found.high - found.low) / 2
    return width if math.isfinite(width) else None


def with_band(found: Estimate | None) -> tuple[str, str]:
    """The number and its `±`, with as many digits after the point."""
    if found is None:
        return NONE, ""
    width = half(found)
    band = f"±{number(width, decimals(found.value))}" if width else ""
    return number(found.value), band
