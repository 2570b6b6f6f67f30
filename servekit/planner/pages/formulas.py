"""`servekit plan --explain`: every formula of a plan, with its numbers."""

from collections.abc import Iterator

from servekit.planner.pages.formula import Formula
from servekit.planner.pages.formulas_cache import cache_formulas
from servekit.planner.pages.formulas_memory import memory_formulas
from servekit.planner.pages.formulas_model import model_formulas
from servekit.planner.pages.formulas_speed import cost_formulas, speed_formulas
from servekit.planner.plan import Plan


def formulas(made: Plan) -> list[Formula]:
    """In the order in which one needs another; without speed where the memory does not fit."""
    return list(_all(made))


def _all(made: Plan) -> Iterator[Formula]:
    yield from model_formulas(made)
    yield from cache_formulas(made)
    yield from memory_formulas(made)
    if made.prediction is not None and made.prediction.seats:
        yield from speed_formulas(made, made.prediction)
    yield from cost_formulas(made)
