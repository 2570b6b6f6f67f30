"""`servekit simulate --compare`: several configurations in one table, a column each."""

import math

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from servekit.config.schema import Config
from servekit.layout import INDENT, bullets, grid, indent, section
from servekit.simulator.pages.metrics import BY_KEY, NONE, Metric, half, number
from servekit.simulator.pages.reasons import best, by_key, reasons
from servekit.simulator.pages.tables import measured
from servekit.simulator.pages.terminal import alike, console, traffic
from servekit.simulator.pages.verdict import HEADLINES, STYLES, verdict
from servekit.simulator.record import Comparison, Difference

COMPARED = (
    *("ttft.p50", "ttft.p95", "ttft.p99", "tpot.p50", "tpot.p95", "itl.p95", "itl.p99"),
    *("e2e.p95", "queue.p95", "queue.p99"),
    *("output_tokens_per_s", "served_per_s", "goodput_per_s", "goodput_share"),
    *("refused_share", "left_share"),
    *("running", "batch_decodes", "step_s", "busy_share", "idle_seat_share", "padding_share"),
    *("preempted_share", "wasted_share", "fairness", "kv_mean_share", "hit_share"),
)
"""The numbers of the table, by key."""
BEST = "★"
SAME = "≈"
"""Beside what does not differ clearly from the first."""


def show(comparison: Comparison, config: Config) -> None:
    out = console()
    out.print(render(comparison, config, out.width))


def render(comparison: Comparison, config: Config, width: int) -> RenderableType:
    """What is compared, a verdict each, the table, and why they differ; good from 80 columns."""
    what = Text.assemble((f"{comparison.key}: ", "bold"), (", ".join(comparison.names), "bold"))
    parts: list[RenderableType] = [what, Text(effort_of(comparison), style="dim")]
    parts += section("Verdicts", verdicts(comparison))
    tables: list[RenderableType] = []
    for table in table_of(comparison, width - INDENT):
        tables += [table, Text()]
    parts += section(traffic_of(comparison, config), *tables)
    parts.append(indent(Text(legend(comparison), style="dim")))
    if why := reasons(comparison):
        parts += section("Why", bullets(why, mark="+", style="cyan"))
    return Group(*parts)


def effort_of(comparison: Comparison) -> str:
    reports, wall = comparison.reports, sum(report.wall_s for report in comparison.reports)
    seeds, counts = len(reports[0].seeds), sorted({report.requests for report in reports})
    each = f"{seeds} seeds" if seeds > 1 else "one seed"
    many = " to ".join(f"{count:,}" for count in (counts[0], *counts[1:][-1:]))
    same = "the same " if one_workload(comparison) else ""
    times = dict.fromkeys(report.times for report in reports if report.times)
    named = zip(comparison.names, reports, strict=True)
    measured = ", ".join(times if len(times) < 2 else (f"{n}: {r.times}" for n, r in named))
    return (
        f"simulated, not measured: {same}{many} requests through each, {each}"
        f"{alike(reports[0])}, in {number(wall)} s"
        + (f"; step times: {measured}" if measured else "")
    )


def one_workload(comparison: Comparison) -> bool:
    """All met the same requests."""
    first, *others = (run.config.workload for run in comparison.runs)
    return all(other == first for other in others)


def traffic_of(comparison: Comparison, config: Config) -> str:
    if one_workload(comparison):
        return traffic(config, comparison.reports[0])
    return "Latency of workloads that differ"


def legend(comparison: Comparison) -> str:
    first = comparison.names[0]
    return (
        f"{BEST} clearly best; differences are from {first}, with ± half of their 95 % interval "
        f"where there is room; {SAME} none that is clear"
    )


def verdicts(comparison: Comparison) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(overflow="fold")
    for name, report in zip(comparison.names, comparison.reports, strict=True):
        found = verdict(report)
        word = Text(HEADLINES[found.word], style=STYLES[found.word])
        table.add_row(name, word, found.why)
    return table


def table_of(comparison: Comparison, width: int) -> list[Table]:
    """One table; several, each with the first column again, where it does not fit."""
    count = len(comparison.names)
    for banded in (True, False):
        table = compared(comparison, list(range(1, count)), banded)
        if measured(table) <= width:
            return [table]
    tables, rest = [], list(range(1, count))
    while rest:
        taken = 1
        while (
            taken < len(rest)
            and measured(compared(comparison, rest[: taken + 1], banded=False)) <= width
        ):
            taken += 1
        tables.append(compared(comparison, rest[:taken], banded=False))
        rest = rest[taken:]
    return tables


def compared(comparison: Comparison, places: list[int], banded: bool) -> Table:
    """The first and those at `places`; a difference has its interval where `banded`."""
    headings = ["", comparison.names[0]]
    for place in places:
        headings += [comparison.names[place], ""]
    table = grid(*headings, left=(0, *range(3, len(headings), 2)))
    for column in table.columns[1:]:
        column.no_wrap, column.overflow = False, "fold"  # of a long name; numbers have no break
    section = None
    for metric in map(BY_KEY.__getitem__, COMPARED):
        values = [metric.of(report) for report in comparison.reports]
        always = metric.section == "rate" and metric.key not in ("refused_share", "left_share")
        if not always and not any(found and found.value for found in values):
            continue
        if section not in (None, metric.section):
            table.add_row()
        section = metric.section
        winner = best(comparison, metric.key, metric.better)
        name = Text.assemble(metric.label, (f" {metric.unit}" if metric.unit else "", "dim"))
        cells = [name, shown(comparison, 0, metric, winner)]
        for place in places:
            difference = by_key(comparison.differences[place]).get(metric.key)
            cells.append(shown(comparison, place, metric, winner))
            cells.append(apart(difference, metric, comparison, banded))
        table.add_row(*cells)
    return table


def shown(comparison: Comparison, place: int, metric: Metric, winner: str | None) -> Text:
    found = metric.of(comparison.reports[place])
    text = NONE if found is None else number(found.value)
    if comparison.names[place] == winner:
        return Text(f"{BEST}\N{NO-BREAK SPACE}{text}", style="bold green")
    return Text(text)


def apart(
    difference: Difference | None, metric: Metric, comparison: Comparison, banded: bool
) -> Text:
    """In percent of the first, shares in points; a sign where it is not clear."""
    if difference is None or not math.isfinite(difference.estimate.value):
        return Text("")
    if not difference.is_clear:
        return Text(SAME, style="dim")
    first = metric.of(comparison.reports[0])
    if metric.unit == "%":
        by, unit = metric.scale, " pt"
    elif first is None or not first.value:
        return Text("")
    else:
        by, unit = 100 * metric.scale / abs(first.value), " %"
    text = f"{by * difference.estimate.value:+,.{1 if metric.unit == '%' else 0}f}"
    width = half(difference.estimate)
    if banded and width is not None:
        text += f" ±{number(by * width, 1 if metric.unit == '%' else 0)}"
    return Text((text + unit).replace(" ", "\N{NO-BREAK SPACE}"), style="dim")
