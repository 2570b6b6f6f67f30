"""Step times of an engine that ran, from the log of its steps (telemetry.step_log).

A step is a sum of a few parts, none of which takes less than no time: a constant, each decode, the
context that decodes read, each prompt token, the pairs that prompt attention computes, each prompt.
What a sum cannot say (kernels that are better at some sizes) is a factor by the step's tokens.
"""

import json
import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from servekit.errors import ConfigError
from servekit.simulator.statistics import percentile

FEATURES = ("step", "decode", "context", "prompt_token", "prompt_pair", "prompt")
LEAST_STEPS = 50
LEAST_OF_A_KIND = 10
"""Steps with prompts, and steps without."""
LEAST_SIZES = 3
"""Different numbers of decodes, and of prompt tokens."""
ROUNDS = 8
"""Of fitting again with less weight on what lay far off."""
FAR = 0.1
"""Relative error from which a step counts less (Huber)."""
LEAST_IN_BUCKET = 5
"""Steps of about one size, before they have a factor of their own."""

Prefill = Sequence[tuple[float, float]]


class Step(NamedTuple):
    decodes: float
    context: float
    """Tokens that a decode sees, on average."""
    prefill: tuple[tuple[float, float], ...]
    """Of each chunk its tokens and those before it."""
    seconds: float

    @property
    def tokens(self) -> float:
        return self.decodes + sum(new for new, _ in self.prefill)


@dataclass(frozen=True, slots=True)
class Calibration:
    """A step-time model; errors are relative, of the very steps that it was fitted to."""

    path: str
    steps: int
    coefficients: tuple[float, ...]
    """Seconds of one of each of FEATURES."""
    decode_factors: tuple[tuple[float, float], ...]
    """(log2 of the tokens in a step, factor), of steps without prompts."""
    mixed_factors: tuple[tuple[float, float], ...]
    median_error: float
    p95_error: float

    def seconds(self, decodes: float, context: float, prefill: Prefill = ()) -> float:
        tokens = decodes + sum(new for new, _ in prefill)
        if tokens <= 0:
            return 0.0
        row = features(decodes, context, prefill)
        total = sum(map(float.__mul__, self.coefficients, row))
        factors = self.mixed_factors if prefill else self.decode_factors
        return total * _factor(factors, math.log2(tokens))

    def __str__(self) -> str:
        return (
            f"measured in {self.steps:,} steps of {self.path}; half of them within "
            f"{self.median_error:.1%}, 95 % within {self.p95_error:.0%} of the fit"
        )


def features(decodes: float, context: float, prefill: Prefill) -> tuple[float, ...]:
    new = sum(new for new, _ in prefill)
    pairs = sum(new * (there + new / 2) for new, there in prefill)
    return 1.0, float(decodes), decodes * context, float(new), float(pairs), float(len(prefill))


def calibrate(path: Path) -> Calibration:
    """Raises ConfigError for a file that is no step log, or says too little."""
    steps = list(read(path))
    _check(path, steps)
    coefficients = fit(steps)
    rough = Calibration(str(path), len(steps), coefficients, (), (), 0.0, 0.0)
    alone = [step for step in steps if not step.prefill]
    mixed = [step for step in steps if step.prefill]
    better = Calibration(
        str(path), len(steps), coefficients, _factors(rough, alone), _factors(rough, mixed), 0, 0
    )
    errors = sorted(_error(better, step) for step in steps)
    return Calibration(
        path=str(path),
        steps=len(steps),
        coefficients=coefficients,
        decode_factors=better.decode_factors,
        mixed_factors=better.mixed_factors,
        median_error=percentile(errors, 0.5),
        p95_error=percentile(errors, 0.95),
    )


def read(path: Path) -> Iterator[Step]:
    """The steps of a log; the last line may be cut off, as of an engine that was killed."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"calibration={path} cannot be read: {error}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            step = _step(json.loads(line))
        except (ValueError, KeyError, TypeError) as error:
            if number == len(lines):
                return
            raise ConfigError(
                f"{path}, line {number} is not a step: {line[:80]!r} ({error}); a step log is "
                "written with telemetry.step_log=FILE"
            ) from error
        yield step


def _step(entry: dict[str, Any]) -> Step:
    prefill = tuple((float(new), float(there)) for new, there in entry["prefill"])
    step = Step(float(entry["decodes"]), float(entry["context"]), prefill, float(entry["seconds"]))
    numbers = [step.decodes, step.context, *(part for chunk in prefill for part in chunk)]
    if not all(math.isfinite(number) and number >= 0 for number in numbers):
        raise ValueError("a number is negative or none")
    if not (step.seconds > 0 and math.isfinite(step.seconds) and step.tokens > 0):
        raise ValueError("no time, or no tokens")
    return step


def _check(path: Path, steps: list[Step]) -> None:
    mixed = [step for step in steps if step.prefill]
    decodes = {step.decodes for step in steps if not step.prefill}
    prompts = {step.tokens - step.decodes for step in mixed}
    there_are = {
        f"{LEAST_STEPS} steps": (len(steps), LEAST_STEPS),
        f"{LEAST_OF_A_KIND} steps with prompts": (len(mixed), LEAST_OF_A_KIND),
        f"{LEAST_OF_A_KIND} steps of decodes alone": (len(steps) - len(mixed), LEAST_OF_A_KIND),
        f"{LEAST_SIZES} different numbers of decodes": (len(decodes), LEAST_SIZES),
        f"{LEAST_SIZES} different sizes of prompts": (len(prompts), LEAST_SIZES),
    }
    for what, (has, least) in there_are.items():
        if has < least:
            raise ConfigError(
                f"calibration={path} has too little to tell step times from: at least {what} are "
                f"needed, it has {has}; log a run with more and more varied requests"
            )


def fit(steps: Sequence[Step]) -> tuple[float, ...]:
    """Seconds of each feature, none negative, with the least squares of relative errors; steps
    that lie far off count less and less (Huber), such as the first ones of an engine.
    """
    rows = [features(*step[:3]) for step in steps]
    weights = [1.0] * len(steps)
    found = (0.0,) * len(FEATURES)
    for _ in range(ROUNDS):
        scales = [weight / step.seconds**2 for weight, step in zip(weights, steps, strict=True)]
        found = non_negative(rows, [step.seconds for step in steps], scales)
        fitted = [sum(map(float.__mul__, found, row)) for row in rows]
        errors = [abs(f / step.seconds - 1) for f, step in zip(fitted, steps, strict=True)]
        weights = [1.0 if error <= FAR else FAR / error for error in errors]
    return found


def non_negative(
    rows: Sequence[Sequence[float]], targets: Sequence[float], weights: Sequence[float]
) -> tuple[float, ...]:
    """Weighted least squares without negative numbers.

    The best one is the plain solution over those columns that it does not leave at 0; with so few
    columns every choice of them is tried.
    """
    count = len(rows[0])
    columns = list(zip(*rows, strict=True))
    scales = [max(map(abs, column)) or 1.0 for column in columns]
    weighed = [[w * x for w, x in zip(weights, column, strict=True)] for column in columns]
    gram = [
        [_dot(weighed[i], columns[j]) / scales[i] / scales[j] for j in range(count)]
        for i in range(count)
    ]
    right = [_dot(weighed[i], targets) / scales[i] for i in range(count)]
    best, least = (0.0,) * count, 0.0
    for size in range(1, count + 1):
        for chosen in combinations(range(count), size):
            part = solve([[gram[i][j] for j in chosen] for i in chosen], [right[i] for i in chosen])
            if part is None or min(part) < 0:
                continue
            gain = -sum(value * right[i] for value, i in zip(part, chosen, strict=True))
            if gain < least:
                least = gain
                whole = dict(zip(chosen, part, strict=True))
                best = tuple(whole.get(i, 0.0) / scales[i] for i in range(count))
    return best


def _dot(first: Sequence[float], second: Sequence[float]) -> float:
    return math.fsum(map(float.__mul__, first, second))


def solve(matrix: list[list[float]], right: list[float]) -> list[float] | None:
    """Gaussian elimination with pivots; None if columns say the same."""
    size = len(right)
    table = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for column in range(size):
        pivot = max(range(column, size), key=lambda row: abs(table[row][column]))
        if abs(table[pivot][column]) < 1e-12 * max(1e-300, abs(matrix[column][column])):
            return None
        table[column], table[pivot] = table[pivot], table[column]
        for row in range(column + 1, size):
            factor = table[row][column] / table[column][column]
            for place in range(column, size + 1):
                table[row][place] -= factor * table[column][place]
    found = [0.0] * size
    for row in range(size - 1, -1, -1):
        rest = sum(table[row][place] * found[place] for place in range(row + 1, size))
        found[row] = (table[row][size] - rest) / table[row][row]
    return found


def _factors(rough: Calibration, steps: Sequence[Step]) -> tuple[tuple[float, float], ...]:
    """Measured over fitted, the median of each half octave of tokens."""
    buckets: dict[int, list[tuple[float, float]]] = {}
    for step in steps:
        size = math.log2(step.tokens)
        ratio = step.seconds / max(1e-12, rough.seconds(*step[:3]))
        buckets.setdefault(round(2 * size), []).append((size, ratio))
    return tuple(
        (median(size for size, _ in bucket), median(ratio for _, ratio in bucket))
        for _, bucket in sorted(buckets.items())
        if len(bucket) >= LEAST_IN_BUCKET
    )


def _factor(factors: Sequence[tuple[float, float]], size: float) -> float:
    """Straight between two sizes that were seen, as the nearest one beyond them."""
    if not factors:
        return 1.0
    place = bisect_right(factors, (size, math.inf))
    if place in (0, len(factors)):
        return factors[min(place, len(factors) - 1)][1]
    (low, first), (high, second) = factors[place - 1 : place + 1]
    return first + (second - first) * (size - low) / (high - low)


def _error(model: Calibration, step: Step) -> float:
    return abs(model.seconds(*step[:3]) / step.seconds - 1)
