"""How terminal pages are laid out: sections, bullets, tables without rules."""

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

INDENT = 2


def section(title: str, *bodies: RenderableType) -> list[RenderableType]:
    return [Text(), Text(title, style="bold"), *(indent(body) for body in bodies)]


def indent(body: RenderableType) -> Padding:
    return Padding(body, (0, 0, 0, INDENT))


def bullets(lines: list[str], *, mark: str, style: str) -> Table:
    table = Table.grid(padding=(0, 1))
    for line in lines:
        table.add_row(Text(mark, style=style), line)
    return table


def grid(*headings: str, left: tuple[int, ...] = (0,)) -> Table:
    """Numbers to the right but for the columns in `left`; no rules, headings dim."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="left" if place in left else "right", no_wrap=True)
    table.show_header = any(headings)
    return table
