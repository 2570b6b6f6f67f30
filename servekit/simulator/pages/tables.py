"""The tables of a simulation's page: latencies, rates, the batch, the cache, tenants, curves."""

from collections.abc import Sequence

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from servekit.layout import grid
from servekit.simulator.pages.metrics import (
    BY_KEY,
    LATENCIES,
    METRICS,
    NONE,
    POINTS,
    Metric,
    Section,
    number,
    with_band,
)
from servekit.simulator.pages.sparkline import sparkline
from servekit.simulator.pages.verdict import of_target
from servekit.simulator.record import Estimate, Report, Series, Target

TARGET_STYLES = {"meets": "green", "misses": "red", "unsure": "yellow", "too_few": "yellow"}
LAYOUTS = ((POINTS, POINTS), (POINTS[1:], POINTS[1:]), (POINTS[1:], ("p95",)), (POINTS[1:], ()))
"""Columns of the latency table, and those with an interval; the first that there is room for."""
LONGEST_CURVE = 80

CURVES = (
    ("running", "requests running", "{:,.0f}", 1),
    ("waiting", "requests waiting", "{:,.0f}", 1),
    ("kv_share", "KV blocks held", "{:.0f} %", 100),
    ("batch_tokens", "tokens of a step", "{:,.0f}", 1),
    ("output_tokens_per_s", "output tokens/s", "{:,.0f}", 1),
    ("goodput_per_s", "goodput requests/s", "{:,.2f}", 1),
)
"""Of a Series: which, what people call it, how its peak is written and what makes that of it."""


def latency_table(report: Report, width: int) -> Table:
    """Milliseconds with half of their interval; target and verdict where the slo has one.

    As many percentiles and intervals as `width` has room for.
    """
    for points, banded in LAYOUTS:
        table = latencies(report, points, banded)
        if measured(table) <= width:
            break
    return table


def latencies(report: Report, points: Sequence[str], banded: Sequence[str]) -> Table:
    """The table with these columns; `banded` are those that have their interval beside them."""
    targets = {str(target.name): target for target in report.targets}
    headings = ["ms"]
    for point in points:
        headings += [point, ""] if point in banded else [point]
    if targets:
        headings += ["target", f"at p{report.targets[0].percentile:g}"]
    table = grid(*headings, left=(0, len(headings) - 1) if targets else (0,))
    for name, label in LATENCIES:
        cells: list[str | Text] = []
        for point in points:
            value, band = with_band(BY_KEY[f"{name}.{point}"].of(report))
            cells += [value, Text(band, style="dim")] if point in banded else [value]
        if name in targets:
            cells += target_cells(targets[name])
        table.add_row(label, *cells)
    return table


def measured(table: Table) -> int:
    """Columns that it needs, so that nothing is cut."""
    console = Console(width=10_000)
    return Measurement.get(console, console.options, table).maximum


def target_cells(target: Target) -> list[str | Text]:
    said = of_target(target)
    return [f"{1000 * target.target_s:,g}", Text(said.replace("_", " "), style=TARGET_STYLES[said])]


def promised_line(report: Report) -> str:
    """What targets are compared with, where that is not in the table; else empty.

    They are for class interactive: nobody waits for class batch. The table has no time to first
    token of who left.
    """
    said = []
    for target in report.targets:
        point = f"p{target.percentile:g}"
        shown = BY_KEY.get(f"{target.name}.{point}")
        of_all = shown.of(report) if shown else None
        value, _ = with_band(Estimate(*(1000 * part for part in target.value)))
        if of_all is None or value != with_band(of_all)[0]:
            said.append(f"{dict(LATENCIES)[target.name]} {point} {value} ms")
    if not said:
        return ""
    left = ", with who left as having waited so long" if report.counts.get("left") else ""
    return f"targets are for class interactive{left}: its {', '.join(said)}"


def metric_table(report: Report, *sections: Section) -> Table:
    """A number a row with its interval, of those that the report has."""
    table = grid("", "", "", "", left=(0, 3))
    for metric in METRICS:
        if metric.section in sections and worth_a_row(metric, report):
            value, band = with_band(metric.of(report))
            table.add_row(metric.label, value, Text(band, style="dim"), metric.unit)
    return table


def worth_a_row(metric: Metric, report: Report) -> bool:
    """Growth and fairness are told where the system is full: else each gets what it asks for."""
    found = metric.of(report)
    if found is None:
        return False
    if metric.key == "queue_growth_per_s":
        return report.saturated and found.value > 0
    if metric.key == "fairness":
        return report.saturated
    return metric.key not in ("padding_share", "refused_share", "left_share") or found.value > 0


def misses_line(report: Report) -> str:
    """Why prompt tokens were not in the cache; empty where nothing says so."""
    found = [(why, part) for why, part in report.misses.items() if part > 0]
    found.sort(key=lambda pair: -pair[1])
    said = [f"{number(100 * part)} % {why.replace('_', ' ')}" for why, part in found]
    return f"not found: {', '.join(said)}" if said else ""


def tenants_table(report: Report) -> Table:
    headings = ("tenant", "weight", "requests", "output/s", "tokens/s", "TTFT p95 ms")
    table = grid(*headings)
    for tenant in report.tenants:
        table.add_row(
            tenant.name or "(none)",
            f"{tenant.weight:g}",
            f"{tenant.requests:,}",
            number(tenant.output_tokens_per_s),
            number(tenant.served_per_s),
            number(1000 * tenant.p95_ttft_s),
        )
    return table


MOST_CLASSES = 12
"""That a page shows; a trace may have a priority for each request."""


def classes_table(report: Report, width: int) -> Table:
    """Milliseconds; with narrow pages only p95 of each."""
    for points in (POINTS[1:], ("p95", "p99"), ("p95",)):
        table = _classes(report, points)
        if measured(table) <= width:
            break
    return table


def _classes(report: Report, points: Sequence[str]) -> Table:
    has_left = any(one.left for one in report.classes)
    headings = ["priority", "class", "requests", "finished", "refused", *(["left"] * has_left)]
    headings += [f"{name} {point}" for name in ("queue", "TTFT") for point in points]
    table = grid(*headings, left=(1,))
    for one in report.classes[:MOST_CLASSES]:
        counts = (one.requests, one.finished, one.refused, *([one.left] * has_left))
        times = [getattr(each, point) for each in (one.queue, one.ttft) for point in points]
        table.add_row(
            str(one.priority),
            one.slo_class,
            *(f"{count:,}" for count in counts),
            *(number(1000 * time.value) for time in times),
        )
    return table


def classes_title(report: Report) -> str:
    rest = len(report.classes) - MOST_CLASSES
    more = f"; {rest:,} more in --json" if rest > 0 else ""
    return f"Classes, a lower priority goes first; ms{more}"


def curves_table(series: Series, width: int) -> Table:
    """The first seed from left to right, each curve from 0 to its peak."""
    rows = [(label, form, scale, getattr(series, name)) for name, label, form, scale in CURVES]
    peaks = [peak(form, scale, values) for _, form, scale, values in rows]
    labels = max(len(label) for label, *_ in rows)
    room = min(LONGEST_CURVE, width - labels - max(map(len, peaks)) - 4)
    table = grid("", "", "", left=(0, 1))
    for (label, _, _, values), most in zip(rows, peaks, strict=True):
        line = Text(sparkline(values, max(1, room)), style="cyan")
        table.add_row(label, line, Text(most, style="dim"))
    return table


def peak(form: str, scale: float, values: Sequence[float]) -> str:
    known = [value for value in values if value == value]
    return f"peak {form.format(scale * max(known))}" if known else NONE
