"""Step times of an engine that ran, from the log of its steps (telemetry.step_log).

A step is a sum of a few parts, none of which takes less than no time: what its tokens take together
and what the rows take that sample, of which the logits are computed (both lines with corners, as
kernels are better at some sizes), each decode, the context that decodes read, the pairs that prompt
attention computes, each prompt, and the rows that stay empty where kernels of a CPU take rows by
eights (33 tokens take as long as 40).
"""

import json
import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from servekit.errors import ConfigError
from servekit.simulator.least_squares import non_negative
from servekit.simulator.statistics import percentile

FEATURES = ("decode", "context", "prompt_pair", "prompt", "empty_row")
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
"""Steps of about one size, before the line has a corner there."""
SMALL = 16.0
"""Tokens of a step up to which each number is a size of its own: kernels take rows by fours or
eights, and the one that is too many costs."""
TILE = 8
"""Rows that are computed together, in steps of more than SMALL tokens."""
DOUBT = 1e-3
"""Weight of a step that would say that a feature takes no time."""
TYPICAL = 2.0
"""Steps within such a factor of the fit are those that it is to add up with."""

Prefill = Sequence[tuple[float, float]]


class Step(NamedTuple):
    decodes: float
    context: float
    """Tokens that a decode sees, on average."""
    prefill: tuple[tuple[float, float], ...]
    """Of each chunk its tokens and those before it."""
    seconds: float
    """With what the host took before it, where the log says so."""

    @property
    def tokens(self) -> float:
        return self.decodes + sum(new for new, _ in self.prefill)

    @property
    def samples(self) -> float:
        """Rows, if every chunk is the last of its prompt."""
        return self.decodes + len(self.prefill)


class Line(NamedTuple):
    at: tuple[float, ...]
    """Where it has a corner, rising; at least two."""
    seconds: tuple[float, ...]

    def __call__(self, size: float) -> float:
        """Beyond the ends it goes on; above, it does not fall."""
        place, share = _between(self.at, size)
        low, high = self.seconds[place : place + 2]
        return max(low + share * (high - low), high if share > 1 else 0.0)


@dataclass(frozen=True, slots=True)
class Calibration:
    """A step-time model; errors are relative, of the very steps that it was fitted to."""

    path: str
    steps: int
    coefficients: tuple[float, ...]
    """Seconds of one of each of FEATURES."""
    together: Line
    """Seconds that so many tokens take together."""
    sampled: Line
    """Seconds that logits of so many rows take; more or fewer than were seen take no more and no
    less (decodes and prompts, which have seconds of their own, do)."""
    median_error: float
    p95_error: float

    def seconds(self, decodes: float, context: float, prefill: Prefill = ()) -> float:
        tokens = decodes + sum(new for new, _ in prefill)
        if tokens <= 0:
            return 0.0
        fewest, *_, most = self.sampled.at
        rows = min(max(decodes + len(prefill), fewest), most)
        row = features(decodes, context, prefill)
        lines = self.together(tokens) + self.sampled(rows)
        return lines + sum(map(float.__mul__, self.coefficients, row))

    def __str__(self) -> str:
        return (
            f"measured in {self.steps:,} steps of {self.path}; half of them within "
            f"{self.median_error:.1%}, 95 % within {self.p95_error:.0%} of the fit"
        )


def features(decodes: float, context: float, prefill: Prefill) -> tuple[float, ...]:
    pairs = sum(new * (there + new / 2) for new, there in prefill)
    tokens = decodes + sum(new for new, _ in prefill)
    empty = -tokens % TILE if tokens > SMALL else 0.0
    return float(decodes), float(decodes * context), float(pairs), float(len(prefill)), float(empty)


def calibrate(path: Path) -> Calibration:
    """Raises ConfigError for a file that is no step log, or says too little."""
    steps = list(read(path))
    _check(path, steps)
    together, sampled = corners_of(steps)
    found = fit(steps, together, sampled)
    few, most = len(FEATURES), len(FEATURES) + len(together)
    lines = Line(together, found[few:most]), Line(sampled, found[most:])
    model = Calibration(str(path), len(steps), found[:few], *lines, 0.0, 0.0)
    errors = sorted(_error(model, step) for step in steps)
    return replace(model, median_error=percentile(errors, 0.5), p95_error=percentile(errors, 0.95))


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
            step = _step(json.loads(line, parse_int=float))  # of any number of digits
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
    seconds, between = float(entry["seconds"]), float(entry.get("between", 0.0))
    step = Step(float(entry["decodes"]), float(entry["context"]), prefill, seconds + between)
    numbers = [step.decodes, step.context, between, *(part for chunk in prefill for part in chunk)]
    if not all(math.isfinite(number) and number >= 0 for number in numbers):
        raise ValueError("a number is negative or none")
    if not (seconds > 0 and math.isfinite(seconds) and step.tokens > 0):
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


def corners_of(steps: Sequence[Step]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Of the lines for tokens and for rows that sample. In a step of decodes alone both are the
    same number, so it is steps with prompts that must be enough to tell the second.
    """
    mixed = [step.samples for step in steps if step.prefill]
    tokens, rows = [step.tokens for step in steps], [step.samples for step in steps]
    return _corners(tokens, tokens), _corners(mixed, rows)


def _corners(sizes: Sequence[float], all_sizes: Sequence[float]) -> tuple[float, ...]:
    """Each small size, and the median of each half octave, of which there are enough, and both
    ends of all of them.
    """
    buckets: dict[int, list[float]] = {}
    for size in sizes:
        octaves = math.log2(size / SMALL)
        key = int(size) if octaves <= 0 else int(SMALL) + math.ceil(2 * octaves)
        buckets.setdefault(key, []).append(size)
    often = {median(bucket) for bucket in buckets.values() if len(bucket) >= LEAST_IN_BUCKET}
    return tuple(sorted(often | {min(all_sizes), max(all_sizes)}))


def _between(sizes: Sequence[float], tokens: float) -> tuple[int, float]:
    """The corner before, and how far it is to the next; beyond the ends the line goes on."""
    place = min(max(bisect_right(sizes, tokens) - 1, 0), len(sizes) - 2)
    return place, (tokens - sizes[place]) / (sizes[place + 1] - sizes[place])


def _shares(corners: Sequence[float], size: float) -> list[float]:
    """Of each corner."""
    place, share = _between(corners, size)
    shares = [0.0] * len(corners)
    shares[place], shares[place + 1] = 1 - share, share
    return shares


def _row(step: Step, together: Sequence[float], sampled: Sequence[float]) -> tuple[float, ...]:
    """What a step has of each feature, and of each corner."""
    corners = _shares(together, step.tokens) + _shares(sampled, step.samples)
    return (*features(*step[:3]), *corners)


def fit(
    steps: Sequence[Step], together: Sequence[float], sampled: Sequence[float]
) -> tuple[float, ...]:
    """Seconds of each feature and at each corner of both lines, none negative, with the least
    squares of relative errors; steps that lie far off count less and less (Huber), such as the
    first ones of an engine.

    All of it is then stretched so that the steps that are not far off take, added up, as long as
    they took: pauses make steps longer and never shorter, and the best fit of each does not know
    them.
    """
    rows = [_row(step, together, sampled) for step in steps]
    doubts = _doubts(rows, steps)
    targets = [step.seconds for step in steps]
    weights = [1.0] * len(steps)
    found: tuple[float, ...] = ()
    fitted: list[float] = []
    for _ in range(ROUNDS):
        scales = [weight / seconds**2 for weight, seconds in zip(weights, targets, strict=True)]
        more = len(doubts)
        found = non_negative(rows + doubts, targets + [0.0] * more, scales + [DOUBT] * more)
        fitted = [sum(map(float.__mul__, found, row)) for row in rows]
        errors = [abs(f / seconds - 1) for f, seconds in zip(fitted, targets, strict=True)]
        weights = [1.0 if error <= FAR else FAR / error for error in errors]
    both = zip(fitted, targets, strict=True)
    typical = [(f, s) for f, s in both if 1 / TYPICAL < s / max(f, 1e-12) < TYPICAL]
    stretch = sum(s for _, s in typical) / sum(f for f, _ in typical) if typical else 1.0
    return tuple(stretch * value for value in found)


def _doubts(rows: Sequence[Sequence[float]], steps: Sequence[Step]) -> list[tuple[float, ...]]:
    """A row for each feature that wants it to take no time: where a few steps alone could tell a
    feature from the number of tokens, it is the tokens.
    """
    found = []
    for feature in range(len(FEATURES)):
        most = max(row[feature] / step.seconds for row, step in zip(rows, steps, strict=True))
        found.append(tuple(most if at == feature else 0.0 for at in range(len(rows[0]))))
    return found


def _error(model: Calibration, step: Step) -> float:
    return abs(model.seconds(*step[:3]) / step.seconds - 1)
