"""A plan as a page of the terminal."""

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from servekit.planner.models import count, write_json
from servekit.planner.plan import Plan, plan
from servekit.spec.memory import Ledger
from servekit.spec.model import GIB, parameters

if TYPE_CHECKING:
    from servekit.config.compose import Composed

STYLES = {
    "weights": "blue",
    "activations": "magenta",
    "runtime": "yellow",
    "kv": "green",
    "unused": "bright_black",
}
FILLS = {"weights": "█", "activations": "▓", "runtime": "▒", "kv": "▚", "unused": "·"}
"""A glyph each, so that the bar reads without colours."""

BAR_WIDTH = 68


def main(composed: "Composed", as_json: bool) -> int:
    """`servekit plan`: print the plan; 0 if it fits, 2 if not."""
    made = plan(composed.config)
    if as_json:
        write_json(made.to_json())
    else:
        Console(highlight=False).print(render(made))
    return exit_code(made)


def sweep(jobs: Iterable[tuple[list[str], "Composed"]], as_json: bool) -> int:
    """`servekit plan -m`: a page for each list of words, or one JSON array; the worst exit code."""
    reports, worst = [], 0
    for words, composed in jobs:
        made = plan(composed.config)
        worst = max(worst, exit_code(made))
        if as_json:
            reports.append({"words": words, "plan": made.to_json()})
        else:
            sys.stdout.write(f"# {' '.join(words)}\n")
            Console(highlight=False).print(render(made))
    if as_json:
        write_json(reports)
    return worst


def exit_code(made: Plan) -> int:
    return 0 if made.verdict == "ok" else 2


def render(made: Plan) -> RenderableType:
    """Verdict, memory, cache, warnings and advice, in that order; good from 80 columns."""
    parts: list[RenderableType] = [
        headline(made),
        Text(),
        section("Memory of one device"),
        indent(memory_bar(made.ledger)),
        indent(memory_table(made.ledger)),
        Text(),
        section("KV cache"),
        indent(cache_table(made)),
    ]
    if made.warnings:
        parts += [Text(), section("Warnings"), bullets(list(made.warnings), "yellow")]
    if made.ledger.problem:
        parts += [Text(), section("What would make it fit"), indent(advice_table(made))]
    return Group(*parts)


def section(title: str) -> Text:
    return Text(title, style="bold")


def indent(body: RenderableType) -> Padding:
    return Padding(body, (0, 0, 0, 2))


def bullets(lines: list[str], style: str) -> RenderableType:
    table = Table.grid(padding=(0, 1))
    for line in lines:
        table.add_row(Text("!", style=style), line)
    return indent(table)


def headline(made: Plan) -> RenderableType:
    config = made.config
    shape, devices = config.model.shape, config.parallelism.tensor
    verdict = (
        Text("FITS", style="bold green")
        if made.verdict == "ok"
        else Text("DOES NOT FIT", style="bold red")
    )
    verdict.append(f"  {config.name}", style="bold default")
    facts = Text(
        f"{config.model.name}, {count(parameters(shape).total)} parameters in "
        f"{config.model.dtype}, on {devices} x {config.hardware.name}",
        style="dim",
    )
    problem = made.ledger.problem
    return Group(verdict, facts, *([Text(problem, style="red")] if problem else []))


def memory_bar(book: Ledger) -> Text:
    """A strip as long as the device; where more is asked for, a stroke shows where it ends."""
    parts = {name: part.bytes for name, part in book.components.items()}
    parts["unused"] = max(0, book.unused_bytes)
    whole = max(book.total_bytes, book.used_bytes)
    bar, end, drawn = Text(no_wrap=True, overflow="crop"), 0, 0
    for name, size in parts.items():
        end += size
        upto = round(BAR_WIDTH * end / whole)
        bar.append(FILLS[name] * (upto - drawn), style=STYLES[name])
        drawn = upto
    edge = round(BAR_WIDTH * book.total_bytes / whole)
    if book.unused_bytes < 0:
        return bar[:edge].append("┃", style="bold red").append_text(bar[edge:])
    return bar


def memory_table(book: Ledger) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(style="dim")
    for name, part in book.components.items():
        label = Text(f"{FILLS[name]} ", style=STYLES[name]).append(name, style="default")
        table.add_row(label, *amounts(part.bytes, book.total_bytes), part.standing, part.note)
    missing = book.unused_bytes < 0
    label = Text(f"{FILLS['unused']} ", style=STYLES["unused"])
    label.append("missing" if missing else "unused", style="red" if missing else "default")
    table.add_row(label, *amounts(abs(book.unused_bytes), book.total_bytes), "", "")
    table.add_row("  total", *amounts(book.total_bytes, book.total_bytes), "", "of the device")
    return table


def amounts(size: int, total: int) -> tuple[str, str]:
    return f"{size / GIB:.2f} GiB", f"{100 * size / total:.0f} %"


def cache_table(made: Plan) -> Table:
    kv = made.kv
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    table.add_row("capacity", f"{kv.capacity_tokens:,} tokens in {kv.usable_blocks:,} blocks")
    table.add_row(
        "a token takes",
        f"{kv.bytes_per_token:,} bytes in {made.config.kv.dtype}, {kv.block_size} tokens a block",
    )
    table.add_row("size set by", f"{made.ledger.rule}={rule_value(made)}")
    for length, requests in made.concurrency.items():
        table.add_row(f"at {length:,} tokens", f"{requests:,.2f} requests at once")
    return table


def rule_value(made: Plan) -> float:
    value: float = getattr(made.config.kv, made.ledger.rule.removeprefix("kv."))
    return value


def advice_table(made: Plan) -> RenderableType:
    if not made.advice:
        return Text("No single change does: take larger hardware or a smaller model.")
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(style="bold cyan", no_wrap=True)
    table.add_column()
    for item in made.advice:
        effect = item.effect
        table.add_row(
            " ".join(item.overrides),
            f"{effect['capacity_tokens']:,} tokens, {effect['max_concurrency']:,} requests of "
            "full length at once" + ("; this release only plans it" if item.planned_only else ""),
        )
    return table
