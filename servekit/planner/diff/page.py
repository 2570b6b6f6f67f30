"""`servekit diff` as a page of the terminal; good from 80 columns."""

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from servekit.planner.diff.difference import Pair
from servekit.planner.diff.report import Report
from servekit.planner.diff.text import (
    Row,
    changed,
    headline,
    label_of,
    reasons,
    rows,
    shares,
    single_cause,
    unmoved,
    verdict_now,
)
from servekit.planner.pages.reasons import VERDICT_STYLES

JUDGEMENT_STYLES = {"better": "green", "worse": "red", "changed": "yellow"}


def page(report: Report) -> RenderableType:
    """Deployments that differ, those that do not in a line, and what fails."""
    same = [pair for pair in report.pairs if pair.status == "unchanged"]
    parts: list[RenderableType] = [
        Text(f"{label_of(report.before)}  ->  {label_of(report.after)}", style="dim")
    ]
    for pair in report.pairs:
        if pair not in same:
            parts += [Text(), *_pair(pair)]
    if same:
        line = ", ".join(f"{pair.name} ({verdict_now(pair)})" for pair in same)
        parts += [Text(), Text(f"No change: {line}", style="dim")]
    broken = [
        Text(f"{name}: {policy}, {reason}", style="red")
        for name, found in report.broken.items()
        for policy, reason in found
    ]
    if broken:
        parts += [Text(), Text("Refused", style="bold red"), *map(_indent, broken)]
    return Group(*parts)


def _pair(pair: Pair) -> list[RenderableType]:
    verdict = pair.verdicts[1]
    style = f"bold {VERDICT_STYLES[verdict]}" if verdict else "bold"
    title = Text(pair.name, style="bold").append("  ").append(headline(pair), style=style)
    parts: list[RenderableType] = [title, *(_indent(Text(line)) for line in reasons(pair))]
    if pair.leaves:
        parts += [Text(), _section("Changed"), _indent(_changed(pair))]
    if table := rows(pair):
        parts += [Text(), _section("Effect"), _indent(_effect(table))]
    if same := unmoved(pair):
        parts += [_indent(Text(f"The same: {same}.", style="dim"))]
    if effects := shares(pair):
        parts += [Text(), _section("Where it comes from"), _indent(_shares(effects))]
    elif (cause := single_cause(pair)) is not None:
        parts += [_indent(Text(f"All of it comes from {cause}.", style="dim"))]
    if pair.idle:
        parts += [_indent(Text(f"No effect on the plan: {', '.join(pair.idle)}.", style="dim"))]
    if pair.notes:
        parts += [Text(), _section("Take care"), _indent(_notes(pair))]
    return parts


def _section(title: str) -> RenderableType:
    return _indent(Text(title, style="bold"))


def _indent(body: RenderableType) -> Padding:
    return Padding(body, (0, 0, 0, 2))


def _plain(*justify: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for side in justify:
        table.add_column(justify="right" if side == "right" else "left")
    return table


def _changed(pair: Pair) -> Table:
    table = _plain("left", "left", "left")
    table.columns[0].no_wrap = True
    table.columns[2].style = "dim"
    for key, values, origin in changed(pair):
        table.add_row(Text(key), Text(values), Text(origin, overflow="fold"))
    return table


def _effect(rows: list[Row]) -> Table:
    table = _plain("left", "right", "right", "right", "right", "left")
    for row in rows:
        style = JUDGEMENT_STYLES.get(row.judgement, "dim")
        numbers = (row.before, row.after, row.change, row.band)
        table.add_row(Text(row.label), *map(Text, numbers), Text(row.judgement, style=style))
    return table


def _shares(effects: list[tuple[str, str]]) -> Table:
    table = _plain("left", "left")
    for cause, effect in effects:
        table.add_row(Text(cause), Text(effect))
    return table


def _notes(pair: Pair) -> Table:
    table = _plain("left", "left")
    for note in pair.notes:
        table.add_row(Text("!", style="yellow"), Text(note))
    return table
