"""One self-contained HTML page: figures with plotly's own script in it, tables without any.

It opens without a network, from a file, for years: nothing is fetched, and the page's own policy
forbids it. The tables are plain HTML, so that they are there without scripts too.
"""

import json
from collections.abc import Iterator
from html import escape
from pathlib import Path

from rich.table import Table

from servekit.errors import ServekitError
from servekit.simulator.pages.compare_page import BEST, COMPARED, apart, effort_of, traffic_of
from servekit.simulator.pages.figures import Shown, distributions, endings, over_time, rates
from servekit.simulator.pages.metrics import BY_KEY, METRICS, Metric, with_band
from servekit.simulator.pages.reasons import best, by_key, reasons
from servekit.simulator.pages.style import PAGE
from servekit.simulator.pages.tables import classes_table, classes_title, tenants_table
from servekit.simulator.pages.terminal import effort, subject, traffic
from servekit.simulator.pages.timeline import (
    Figure,
    timeline,
    together,
    window_empty_share,
    window_seats,
)
from servekit.simulator.pages.verdict import HEADLINES, STYLES, advice, ends, verdict
from servekit.simulator.record import Comparison, Report, Run

WIDE = 1000
"""Columns that the terminal does not have."""


class PageUnwritable(ServekitError):
    """The file of a page cannot be written."""


def write(path: Path, shown: Shown, comparison: Comparison | None = None) -> None:
    """Raises PageUnwritable."""
    text = page(shown, comparison)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise PageUnwritable(f"{path} cannot be written: {error.strerror}") from error


def page(shown: Shown, comparison: Comparison | None = None) -> str:
    """`shown` has one configuration, or the options of `comparison`."""
    figures: list[Figure] = []
    body = "\n".join(sections(shown, comparison, figures))
    title = shown[0][2].name if comparison is None else comparison.key
    return (
        PAGE.replace("{{title}}", escape(f"servekit simulate: {title}"))
        .replace("{{body}}", body)
        .replace("{{figures}}", embedded(figures))
        .replace("{{plotly}}", plotly_script())
    )


def plotly_script() -> str:
    """The library as plotly's package brings it; imported here, for this is all that needs it."""
    from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]

    return str(get_plotlyjs())


def embedded(figures: list[Figure]) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(figures, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def sections(shown: Shown, comparison: Comparison | None, figures: list[Figure]) -> Iterator[str]:
    """Parts of the body; figures are collected on the way, in order."""
    yield from head(shown, comparison)
    if comparison is not None and (why := reasons(comparison)):
        yield heading("Why") + bullets(why)
    yield heading("Seats over steps") + paragraph(SEATS)
    last = together([run for _, run, _ in shown]) if len(shown) > 1 else None
    for name, run, _ in shown:
        if run.seats.at:
            yield f"<h3>{escape(name)} <small>{escape(caption(run))}</small></h3>"
            yield figure(figures, timeline(run, last=last))
    yield heading("Latency") + figure(figures, distributions(shown))
    yield heading("Goodput") + '<div class="two">'
    yield figure(figures, rates(shown)) + figure(figures, endings(shown)) + "</div>"
    yield heading("Over time") + figure(figures, over_time(shown))
    yield heading("All numbers")
    yield compared(comparison) if comparison is not None else numbers(shown)
    for name, _, report in shown:
        if len(report.classes) > 1:
            title = classes_title(report)
            yield heading(f"{name}: {title}" if comparison is not None else title)
            yield classes(report)
        if len(report.tenants) > 1 and comparison is None:
            yield heading("Tenants") + cells(tenants_table(report))
    if comparison is None and (said := advice(shown[0][2], shown[0][1].config)):
        yield heading("What to try") + bullets(said)


def caption(run: Run) -> str:
    shown, all_seats = window_seats(run), run.seats.capacity
    of = f"{shown:,} of {all_seats:,} seats, the others empty; " if shown < all_seats else ""
    return f"{of}{100 * window_empty_share(run):.0f} % of what is shown is empty"


SEATS = (
    "Each row is a seat, each column a step: a request takes a seat, its prompt is computed, then "
    "each step adds to its answer, in turn in one green and the other. Grey seats over a queue "
    "(below) are room that nobody may take: a static batch has not ended, or the cache is full. "
    "Point at a cell to see whose it is."
)


def head(shown: Shown, comparison: Comparison | None) -> Iterator[str]:
    name, run, report = shown[0]
    config = run.config
    if comparison is None:
        what, how = traffic(config, report), effort(report)
        yield f"<h1>{escape(subject(report, config))}</h1>"
    else:
        what, how = traffic_of(comparison, config), effort_of(comparison)
        yield f"<h1>{escape(config.name)}: {escape(comparison.key)} compared</h1>"
    yield paragraph(f"{what}; {how}.")
    for name, _, report in shown:
        found = verdict(report)
        label = f"<b>{escape(name)}</b> " if comparison is not None else ""
        word = f'<span class="{STYLES[found.word]}">{HEADLINES[found.word]}</span>'
        yield f'<p class="verdict">{label}{word} {escape(found.why)}'
        yield f"<br><small>{escape(ends(report))}</small></p>"


def heading(text: str) -> str:
    return f"<h2>{escape(text)}</h2>"


def paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def bullets(lines: list[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"


def figure(figures: list[Figure], made: Figure) -> str:
    """Its place on the page; the script draws the n-th figure there."""
    figures.append(made)
    return f'<div class="figure" id="figure-{len(figures) - 1}"></div>'


def numbers(shown: Shown) -> str:
    report = shown[0][2]
    rows = []
    for metric in METRICS:
        found = metric.of(report)
        if found is not None:
            rows.append([named(metric), *with_band(found)])
    return table(["", "", "±"], rows)


def classes(report: Report) -> str:
    return cells(classes_table(report, WIDE))


def cells(shown: Table) -> str:
    """A table of the terminal's page, as it is without a limit of width."""
    columns = [[str(cell) for cell in column.cells] for column in shown.columns]
    headings = [str(column.header) for column in shown.columns]
    return table(headings, [list(row) for row in zip(*columns, strict=True)])


def named(metric: Metric) -> str:
    return f"{metric.label}, {metric.unit}" if metric.unit else metric.label


def compared(comparison: Comparison) -> str:
    first, *others = comparison.names
    headings = ["", first]
    for name in others:
        headings += [name, "difference"]
    metrics = [BY_KEY[key] for key in COMPARED]
    return table(headings, [row(comparison, metric) for metric in metrics])


def row(comparison: Comparison, metric: Metric) -> list[str]:
    winner = best(comparison, metric.key, metric.better)
    cells = [named(metric)]
    for place, (name, report) in enumerate(zip(comparison.names, comparison.reports, strict=True)):
        value, band = with_band(metric.of(report))
        cells.append(f"{BEST if name == winner else ''} {value} {band}".strip())
        if place:
            difference = by_key(comparison.differences[place]).get(metric.key)
            cells.append(apart(difference, metric, comparison, banded=True).plain)
    return cells


def table(headings: list[str], rows: list[list[str]]) -> str:
    top = "".join(f"<th>{escape(cell)}</th>" for cell in headings)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>" for cells in rows
    )
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
