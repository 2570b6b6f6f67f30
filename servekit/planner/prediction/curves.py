"""Seconds of steps against the requests that decode together; how prompts are cut into steps."""

import math
from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate

from servekit.planner.prediction.traffic import Traffic
from servekit.spec.latency import StepModel

MOST_PARTS = 16
"""Prompts of a step that are told apart: of more, each is so short that its attention is little."""


@dataclass(frozen=True, slots=True)
class Curves:
    """Seconds against the requests that decode together, at the points `batches`, from 0 on.

    `decode`: a step without a prompt. `added`: what one prompt adds to steps, on average.
    `full`: a step filled up with prompt tokens.
    """

    batches: tuple[float, ...]
    decode: tuple[float, ...]
    added: tuple[float, ...]
    full: tuple[float, ...]

    def at(self, values: tuple[float, ...], batch: float) -> float:
        """Values that belong to the points, in between: on a straight line."""
        right = min(bisect_right(self.batches, batch), len(self.batches) - 1)
        if right == 0:
            return values[0]
        low, high = self.batches[right - 1], self.batches[right]
        share = (batch - low) / (high - low)
        return values[right - 1] + share * (values[right] - values[right - 1])


def curves(step: StepModel, load: Traffic, *, seats: int, budget: int, row: int) -> Curves:
    """Each made to rise: what is lower at more requests is an edge of a table, and would let a
    larger load look faster.

    With pipeline stages the requests are dealt into as many batches, all on their way at once; if
    each carries prompts, one more holds them up for the time that it takes one stage. Prompts add
    what they do alone or, if that is less, as parts of full steps, where they share what a step
    costs anyway.
    """
    batches, context, pipeline = batch_points(seats), load.context, step.pipeline
    decode, added, full = [], [], []
    for running in batches:
        batch = running / pipeline
        fits = room(budget, row * batch)
        decode.append(step.seconds(max(1.0, batch), context))
        full.append(step.seconds(batch, context, filled(load, fits)))
        alone = interruption(step, load, max(1.0, batch), fits)
        together = load.new_tokens / fits * max(0.0, full[-1] - decode[-1])
        added.append(min(alone, together) / pipeline)
    rising = [tuple(accumulate(values, max)) for values in (decode, added, full)]
    return Curves(batches, *rising)


def interruption(step: StepModel, load: Traffic, batch: float, fits: float) -> float:
    """What a prompt adds to the steps that carry it, if it is alone in them; the mean over all."""
    without, extra = step.seconds(batch, load.context), 0.0
    for prompt, weight in load.prompts:
        past = load.cached(prompt)
        parts = chunks(prompt - past, past, fits)
        steps = sum(count for count, _, _ in parts)
        extra += weight * (carry(step, batch, load.context, parts) - steps * without)
    return max(0.0, extra)


def filled(load: Traffic, fits: float) -> list[tuple[float, float]]:
    """A step's room filled with prompts, in no more parts than MOST_PARTS; tokens are as far into
    their prompts as those of all prompts are on average.
    """
    count = min(MOST_PARTS, math.ceil(fits / load.new_tokens))
    each = fits / count
    return [(each, max(0.0, load.depth - each / 2))] * count


def batch_points(seats: int) -> tuple[float, ...]:
    """0, then 1, 1.5, 2, 3, 4, 6 ... up to the seats."""
    points = [0.0]
    power = 1.0
    while power < seats:
        points += [point for point in (power, 1.5 * power) if point < seats]
        power *= 2
    return (*points, float(seats)) if seats else (0.0,)


def room(budget: int, taken: float) -> float:
    return max(1.0, budget - taken)


def chunks(tokens: float, past: float, most: float) -> list[tuple[float, float, float]]:
    """(steps, tokens of each, tokens before each): as many full ones as there are, then the rest.

    Full ones are said as one, halfway: attention costs grow in proportion to what is before.
    """
    whole = tokens // most
    rest = tokens - whole * most
    parts = [(whole, most, past + (whole - 1) * most / 2)] if whole else []
    return [*parts, (1.0, rest, past + whole * most)] if rest > 0 else parts


def carry(
    step: StepModel, decodes: float, context: float, parts: list[tuple[float, float, float]]
) -> float:
    """Seconds of the steps that carry these chunks."""
    return sum(
        count * step.seconds(decodes, context, [(tokens, past)]) for count, tokens, past in parts
    )
