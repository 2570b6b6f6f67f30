"""One formula with its numbers in it, and a page of them."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from servekit.spec.model import GIB


@dataclass(frozen=True, slots=True)
class Formula:
    """`formula` is in words; `numbers` is the same with numbers, and comes to `value` in `unit`.

    `numbers` is arithmetic: + - x / ^, parentheses, floor, ceil, max and min; a word after a number
    only says what it counts.
    """

    section: str
    name: str
    formula: str
    numbers: str
    value: float
    unit: str
    standing: str

    def to_json(self) -> dict[str, Any]:
        return {
            "section": self.section,
            "name": self.name,
            "formula": self.formula,
            "numbers": self.numbers,
            "value": self.value,
            "unit": self.unit,
            "standing": self.standing,
        }


def exact(number: float) -> str:
    """All digits, in groups of three."""
    return f"{number:,}"


def short(number: float) -> str:
    """Six digits, never as a power of ten."""
    text = f"{number:.6g}"
    return text if "e" not in text else f"{number:.12f}".rstrip("0").rstrip(".")


def said(formula: Formula) -> str:
    """The value with its unit; bytes that are many also in GiB."""
    value = formula.value
    text = exact(int(value)) if float(value).is_integer() else f"{value:,.4g}"
    if formula.unit == "bytes" and value >= GIB / 100:
        return f"{text} bytes, {value / GIB:,.2f} GiB"
    return f"{text} {formula.unit}"


def formulas_page(found: Iterable[Formula]) -> RenderableType:
    parts: list[RenderableType] = []
    for section, members in groupby(found, key=lambda formula: formula.section):
        parts += [Text(section, style="bold")] if not parts else [Text(), Text(section, "bold")]
        for formula in members:
            name = Text.assemble((formula.name, "cyan"), (f"  {formula.formula}", "dim"))
            parts.append(Padding(name, (0, 0, 0, 2)))
            result = Text.assemble(f"{formula.numbers} = ", (said(formula), "bold"))
            result.append(f"  {formula.standing}", style="dim")
            parts.append(Padding(result, (0, 0, 0, 4)))
    return Group(*parts)
