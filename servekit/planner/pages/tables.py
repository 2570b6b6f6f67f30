"""The tables of a plan's page: memory, cache, latency, throughput and cost, advice."""

import math

from rich.table import Table
from rich.text import Text

from servekit.layout import grid
from servekit.planner.advice.advice import Advice
from servekit.planner.capability import cannot_run
from servekit.planner.pages.bars import FILLS, STYLES
from servekit.planner.plan import Plan
from servekit.planner.prediction.prediction import Prediction
from servekit.planner.slo import SloLine
from servekit.spec.components import Component
from servekit.spec.memory import Ledger
from servekit.spec.model import GIB

TARGET_STYLES = {"meets": "green", "misses": "red", "impossible": "red", "unsure": "yellow"}


def memory_table(book: Ledger) -> Table:
    table = grid("", "GiB", "%", "± GiB", "standing", "", left=(0, 4, 5))
    table.columns[5].no_wrap = False
    table.columns[5].style = "dim"
    for name, part in book.components.items():
        if part.bytes:
            label = Text(f"{FILLS[name]} ", style=STYLES[name]).append(name, style="default")
            table.add_row(label, *component_cells(part, book.total_bytes))
    missing = book.unused_bytes < 0
    label = Text("  missing", style="red")
    if not missing:
        label = Text(f"{FILLS['unused']} ", style=STYLES["unused"]).append("unused", "default")
    table.add_row(label, *amounts(abs(book.unused_bytes), book.total_bytes), "", "", "")
    table.add_row("  device", *amounts(book.total_bytes, book.total_bytes), "", "", "")
    return table


def component_cells(part: Component, total: int) -> tuple[str, ...]:
    band = f"{part.band_bytes / GIB:.2f}" if part.band_bytes else ""
    return (*amounts(part.bytes, total), band, part.standing, part.note)


def amounts(size: int, total: int) -> tuple[str, str]:
    return f"{size / GIB:,.2f}", f"{100 * size / total:.0f}"


def cache_line(made: Plan) -> Text:
    kv, config = made.kv, made.config
    if not kv.num_blocks:
        return Text(f"no room for it; a token takes {kv.bytes_per_token:,} bytes")
    return Text.assemble(
        (f"{kv.capacity_tokens:,}", "bold"),
        f" tokens in {kv.num_blocks:,} blocks of {kv.block_size}; a token takes "
        f"{kv.bytes_per_token:,} bytes in {config.kv.dtype}; size set by "
        f"{made.ledger.rule}={getattr(config.kv, made.ledger.rule.removeprefix('kv.'))}",
    )


def concurrency_table(made: Plan) -> Table:
    """How many requests of a length the cache holds at once; of one copy of the model."""
    table = grid("requests of", *(f"{length:,}" for length in made.concurrency), "tokens")
    table.columns[-1].justify = "left"
    table.columns[-1].header_style = "dim"
    table.add_row("at once", *(f"{count:,.2f}" for count in made.concurrency.values()), "")
    return table


def latency_table(made: Plan, prediction: Prediction) -> Table:
    """Milliseconds by percentile; target and verdict where there is one."""
    lines = {line.name: line for line in made.slo if line.name in ("ttft_ms", "tpot_ms")}
    percentile = made.config.slo.percentile
    beside = bool(lines) and percentile not in (50, 95, 99)
    headings = ["ms", "p50", "p95", "p99", *([f"p{percentile:g}"] if beside else []), "±"]
    if lines:
        headings += [f"p{percentile:g} target", "verdict"]
    table = grid(*headings, left=(0, len(headings) - 1) if lines else (0,))
    rows = {
        "time to first token": (prediction.ttft_ms, "ttft_ms"),
        "per output token": (prediction.tpot_ms, "tpot_ms"),
        "between tokens": (prediction.itl_ms, "itl_ms"),
    }
    for label, (at, name) in rows.items():
        cells: list[str | Text] = [*map(milliseconds, (at.p50, at.p95, at.p99))]
        line = lines.get(name)
        if beside:
            cells.append("" if line is None else milliseconds(line.predicted))
        cells.append(f"{100 * prediction.band:.0f} %")
        if line is not None:
            cells += [f"{line.target:,g}", verdict(line)]
        table.add_row(label, *cells)
    return table


def milliseconds(value: float | None) -> str:
    """A queue that only grows has no end."""
    return "∞" if value is None or math.isinf(value) else f"{value:,.1f}"


def verdict(line: SloLine) -> Text:
    return Text(line.verdict, style=TARGET_STYLES[line.verdict])


def service_table(made: Plan, prediction: Prediction) -> Table:
    """Throughput, goodput and price, a sentence each, with target and verdict if there is one."""
    lines = {line.name: line for line in made.slo}
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_row(
        "output",
        f"{prediction.output_tokens_per_s:,.0f} tokens/s with {prediction.seats:,} requests "
        f"running, 95 % of that with {prediction.saturation_concurrency:,}",
    )
    goodput = f"{prediction.goodput_per_s:,.2f} requests/s"
    if made.config.slo.ttft_ms or made.config.slo.tpot_ms:
        goodput += " within the targets"
    table.add_row("goodput", promised(goodput, lines.get("goodput_per_s")))
    cost = made.cost
    if cost.usd_per_hour is not None:
        table.add_row("price", f"{cost.usd_per_hour:,.2f} USD/h")
    if cost.usd_per_million_output_tokens is not None:
        rest = "" if cost.at_goodput is None else f", {price(cost.at_goodput)} at goodput"
        each = price(cost.usd_per_million_output_tokens)
        said = f"{each} USD per million output tokens at full load{rest}"
        table.add_row("cost", promised(said, lines.get("usd_per_million_output_tokens")))
    return table


def promised(said: str, line: SloLine | None) -> Text:
    if line is None:
        return Text(said)
    return Text.assemble(f"{said}; target {line.target:g}: ", verdict(line))


def price(usd: float) -> str:
    return f"{usd:,.2f}" if usd >= 0.1 else f"{usd:.4f}"


EFFECTS = (
    ("max_concurrency", "{:,.2f}", "full-length requests at once"),
    ("ttft_p95_ms", "{:,.0f}", "ms TTFT p95"),
    ("tpot_p95_ms", "{:,.1f}", "ms TPOT p95"),
    ("usd_per_hour", "{:,.2f}", "USD/h"),
)
"""Of an advice's effect: what is said of it, how, and in which unit."""


def advice_table(made: Plan) -> Table:
    """The words to paste, and what they change."""
    table = Table.grid(padding=(0, 1))
    runs = not cannot_run(made.config)
    for item in made.advice:
        words = Text(" ".join(item.overrides), style="bold cyan")
        words.append(f": {effects(item)}", style="not bold default")
        if item.planned_only and runs:  # else a warning has said so of the whole deployment
            words.append(", which this release only plans", style="not bold default")
        table.add_row("+", words)
    return table


def effects(item: Advice) -> str:
    before = item.effect["before"]
    said = [
        (f"{form.format(before[name])} -> " if name in before else "")
        + f"{form.format(item.effect[name])} {unit}"
        for name, form, unit in EFFECTS
        if name in item.effect and (name in before or name == "max_concurrency")
    ]
    return ", ".join(said)
