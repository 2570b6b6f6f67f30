"""The step-time model where it is asked a million times: parts of a step are looked up.

A step is a sum of parts (`StepModel`), each a smooth function of one number, or of two where
requests decode. Each is asked of the model at few points and drawn straight in between.
"""

from collections.abc import Callable
from math import frexp, ldexp

from servekit.spec.latency import Prefill, StepModel, pairs

FINE = 24
"""Points between a number and its double. A straight line between two is off by the square of
their distance over 8, about 0.02 %."""
MOST = 100_000
"""Pieces that are remembered at once."""

Piece = tuple[float, float]
"""Where a straight line begins, and how far it rises up to the next point."""


class Line:
    """A function of one positive number."""

    def __init__(self, function: Callable[[float], float]) -> None:
        self.function = function
        self.pieces: dict[tuple[int, int], Piece] = {}

    def __call__(self, x: float) -> float:
        if x <= 0:
            return 0.0
        mantissa, exponent = frexp(x)
        position = mantissa * (2 * FINE)
        below = int(position)
        piece = self.pieces.get((below, exponent))
        if piece is None:
            first = self.function(ldexp(below / (2 * FINE), exponent))
            rise = self.function(ldexp((below + 1) / (2 * FINE), exponent)) - first
            if len(self.pieces) >= MOST:
                self.pieces.clear()
            piece = self.pieces[below, exponent] = first, rise
        return piece[0] + (position - below) * piece[1]


class Tabled:
    """Seconds of a step as the model says them, within a thousandth."""

    def __init__(self, model: StepModel) -> None:
        self.model = model
        self.queries = 1 + model.guesses
        self.tokens = Line(model.of_tokens)
        self.rows: dict[float, float] = {}
        self.decodes: dict[float, Line] = {}
        """Of decodes, attention and guesses, over their context."""
        self.steps: dict[float, Line] = {}
        """Of as many decodes, whole steps without prompts."""
        self.prompts = [(window, Line(self._of_pairs(window))) for window in model.windows]

    def _of_pairs(self, window: float) -> Callable[[float], float]:
        return lambda seen: self.model.of_pairs(window, seen)

    def seconds(self, decodes: float, context: float, prefill: Prefill = ()) -> float:
        if not prefill:
            steps = self.steps.get(decodes)
            if steps is None:
                steps = _line(self.steps, decodes, lambda x: self.model.seconds(decodes, x))
            return steps(context) if context > 0 else self.model.seconds(decodes, context)
        rows = tokens = decodes * self.queries
        total = self.model.host_s
        for new, there in prefill:
            rows += 1
            tokens += new
            for window, line in self.prompts:
                total += line(pairs(new, there, window))
        if tokens <= 0:
            return 0.0
        sampled = self.rows.get(rows)
        if sampled is None:
            if len(self.rows) >= MOST:
                self.rows.clear()
            sampled = self.rows[rows] = self.model.of_rows(rows)
        total += sampled + self.tokens(tokens)
        if decodes <= 0 or context <= 0:
            return total
        attended = self.decodes.get(decodes)
        if attended is None:
            attended = _line(self.decodes, decodes, lambda x: self.model.of_decodes(decodes, x))
        return total + attended(context)


def _line(known: dict[float, Line], key: float, function: Callable[[float], float]) -> Line:
    if len(known) >= MOST:
        known.clear()
    line = known[key] = Line(function)
    return line
