"""How long simulated steps take: a step-time model, asked a million times.

A model is asked for decode steps at few points and drawn straight in between; on GPUs such steps
are padded to the sizes of captured graphs; with pipeline stages a step is dealt into batches.
"""

import math
from collections.abc import Sequence

from servekit.config.schema import Config
from servekit.scheduler.settings import StepTime

Prefill = Sequence[tuple[float, float]]

GRAPHS_8_APART = 256
GRAPHS_16_APART = 512
"""Rows up to which decode steps are captured, 8 and 16 apart, beside 1, 2 and 4; larger ones run
as they are. What vLLM captures by default."""

FINE = 24
"""Points between a context and its double. A straight line between two is off by the square of
their distance over 8, about 0.02 %."""


def graph_rows(rows: int) -> int:
    """To which a decode step of so many rows is padded."""
    if rows <= 2:
        return rows
    if rows <= 4:
        return 4
    if rows <= GRAPHS_8_APART:
        return -(-rows // 8) * 8
    if rows <= GRAPHS_16_APART:
        return -(-rows // 16) * 16
    return rows


class Tabled:
    """A step-time model whose decode steps are looked up."""

    def __init__(self, model: StepTime) -> None:
        self.model = model
        self.points: dict[tuple[float, int, int], float] = {}
        self.pieces: dict[tuple[float, int, int], tuple[float, float]] = {}
        """Where a straight line begins, and how far it rises up to the next point."""

    def seconds(self, decodes: float, context: float, prefill: Prefill = ()) -> float:
        """As the model says it, within a thousandth."""
        if prefill or context <= 0 or decodes <= 0:
            return self.model.seconds(decodes, context, prefill)
        mantissa, exponent = math.frexp(context)
        position = mantissa * (2 * FINE)
        below = int(position)
        key = decodes, below, exponent
        piece = self.pieces.get(key)
        if piece is None:
            first, second = self._point(*key), self._point(decodes, below + 1, exponent)
            piece = self.pieces[key] = first, second - first
        return piece[0] + (position - below) * piece[1]

    def _point(self, decodes: float, place: int, exponent: int) -> float:
        key = decodes, place, exponent
        seconds = self.points.get(key)
        if seconds is None:
            context = math.ldexp(place / (2 * FINE), exponent)
            seconds = self.points[key] = self.model.seconds(decodes, context)
        return seconds


class Dealt:
    """A step of a model in `stages` pipeline stages, whose rows are dealt into as many batches.

    They follow each other through the stages, and the ring goes round as fast as its fullest
    batch: the one with an even share of the decodes, and the prompts up to the `most` tokens that
    a batch may have. Those beyond are in the others and take no time of their own. What is left
    of a bubble: fewer rows than stages, and prompts that do not fill all batches.
    """

    def __init__(self, model: StepTime, stages: int, most: int) -> None:
        self.model, self.stages, self.most = model, stages, most

    def seconds(self, decodes: float, context: float, prefill: Prefill = ()) -> float:
        """Until every row of the step has gone on."""
        share = math.ceil(decodes / self.stages)
        room = max(1.0, self.most - share)
        fullest = []
        for new, there in prefill:
            if room <= 0:
                break
            fullest.append((min(new, room), there))
            room -= new
        return self.model.seconds(share, context, fullest)


def timing(config: Config, model: StepTime) -> StepTime:
    """Of a copy of the model, for its scheduler and for its executor alike."""
    stages = config.parallelism.pipeline
    if stages > 1:
        model = Dealt(model, stages, config.scheduler.max_num_batched_tokens)
    return Tabled(model)
