"""Deployments to compare, with words alone and with numbers that no model moves."""

from fractions import Fraction
from typing import Any

from servekit.config.library import Library
from servekit.planner.diff.difference import Change, Leaf, Pair, compare
from servekit.planner.diff.sides import Side, Source, side
from servekit.planner.metrics import Better

BASE = "+recipe=chat_llama8b"


def sides(before: str, after: str) -> tuple[Side, Side]:
    library = Library(None)
    one, two = (side(Source(text, library), text.split()) for text in (before, after))
    return one, two


def pair(before: str, after: str) -> Pair:
    return compare("pair", *sides(before, after))


def change(name: str, before: float | None, after: float | None, **given: Any) -> Change:
    """In GiB, exact, and better if higher, unless given otherwise."""
    better: Better | None = given.get("better", "higher")
    return Change(
        name=name,
        before=before,
        after=after,
        band=given.get("band", 0.0),
        unit=given.get("unit", "GiB"),
        better=better,
        by={cause: Fraction(share) for cause, share in given.get("by", {}).items()},
    )


def made(*changes: Change, **given: Any) -> Pair:
    """A pair of two valid sides with these numbers."""
    one, two = sides(BASE, BASE)
    return Pair(
        name=given.get("name", "chat"),
        before=given.get("before", one),
        after=given.get("after", two),
        leaves=given.get("leaves", (Leaf("kv.dtype", "bfloat16", "fp8", "a.yaml:3", "kv.dtype"),)),
        changes=changes,
        notes=given.get("notes", ()),
        idle=given.get("idle", ()),
        because=given.get("because", ()),
    )
