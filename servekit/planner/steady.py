"""The steady state of one replica: how many requests decode together, and how fast.

A step takes s(b) where b requests decode. A prompt adds e(b) to the steps that carry it, so of
each second `rate x e` is lost to prompts, and a token takes s(b) / (1 - rate x e(b)). By Little's
law `rate x tokens x that` requests decode at once: a fixed point. The least one is taken, which
makes every number here grow with the rate.
"""

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate

from servekit.config.schema import Config
from servekit.planner.traffic import Traffic, traffic
from servekit.spec.kv import KvLayout
from servekit.spec.latency import StepModel, step_model

HALVINGS = 20
"""Of an interval in which a crossing is sought: to six digits."""

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


@dataclass(frozen=True, slots=True)
class State:
    """At `rate` requests a second `running` of them decode on average, and one sees `seen`."""

    rate: float
    running: float
    seen: float
    tpot: float
    """Mean seconds for each output token after the first."""
    prefill: float
    """Share of the time of a server of prompts, were there one, that is taken."""


@dataclass(frozen=True, slots=True)
class Replica:
    """One copy of the model under its share of the traffic; seconds, and requests a second."""

    step: StepModel
    traffic: Traffic
    curves: Curves
    seats: int
    """With none there is no state to ask for, and no capacity."""
    budget: int
    row: int
    """Tokens that a decoding request takes of the budget: one, and its guesses."""
    static: bool
    prompts: dict[float, tuple[float, ...]] = field(default_factory=dict)
    """What `prompt_seconds` has worked out."""

    def seen(self, running: float) -> float:
        """A request sees itself and those an arrival would; never more than there are seats."""
        return min(float(self.seats), running + 1)

    def held(self, decodes: float) -> float:
        """Output tokens for which a seat is taken, after the first.

        A static batch ends with the longest of its answers.
        """
        output = self.traffic.longest_of(decodes) if self.static else self.traffic.output
        return max(0.0, output - 1)

    def prompt_seconds(self, decodes: float, share: float) -> float:
        """The steps that carry the prompt which a share of all is within, alone in them but for
        the decodes. Made to rise as `Curves` are.
        """
        if share not in self.prompts:
            prompt = self.traffic.prompt_quantile(share)
            past, context = self.traffic.cached(prompt), self.traffic.context
            at = (
                carry(
                    self.step,
                    batch / self.step.pipeline,
                    context,
                    chunks(prompt - past, past, self.room(batch)),
                )
                for batch in self.curves.batches
            )
            self.prompts[share] = tuple(accumulate(at, max))
        return self.curves.at(self.prompts[share], decodes)

    def room(self, decodes: float) -> float:
        """Prompt tokens that a step has room for."""
        return room(self.budget, self.row * decodes / self.step.pipeline)

    def share(self, decodes: float) -> float:
        """Seconds that a prompt takes of steps filled with prompts: its service time in a queue."""
        full = self.curves.at(self.curves.full, decodes)
        return self.traffic.new_tokens / self.room(decodes) * full / self.step.pipeline

    def tpot(self, seen: float, rate: float) -> float:
        """Mean seconds for an output token; infinite where prompts take all the time."""
        left = 1 - rate * self.curves.at(self.curves.added, seen)
        if left <= 0:
            return math.inf
        return self.curves.at(self.curves.decode, seen) / self.step.tokens_per_step / left

    def steady(self, rate: float) -> State | None:
        """None where there is no steady state: seats or time for prompts do not suffice."""

        def settled(running: float) -> bool:
            seen = self.seen(running)
            return rate * self.held(seen) * self.tpot(seen, rate) <= running

        running = first(settled, self.curves.batches)
        if running is None or rate * self.share(running) >= 1:
            return None
        return self.state(rate, running)

    def state(self, rate: float, running: float) -> State:
        seen = self.seen(running)
        return State(
            rate=rate,
            running=running,
            seen=seen,
            tpot=self.tpot(seen, rate),
            prefill=rate * self.share(running),
        )

    def served(self, running: float, seen: float) -> float:
        """Requests a second at which so many run: the least of two limits, decodes and prompts."""
        held = self.held(seen)
        each = self.curves.at(self.curves.added, seen) * running
        each += held * self.curves.at(self.curves.decode, seen) / self.step.tokens_per_step
        by_decodes = running / each if held else math.inf
        return min(by_decodes, 1 / self.share(running))

    def full(self) -> State:
        """The most requests a second: with every seat taken, or with prompts in every step."""

        def prompts_decide(running: float) -> bool:
            return self.served(running, self.seen(running)) * self.share(running) >= 1 - 1e-12

        crossing = first(prompts_decide, self.curves.batches)
        running = float(self.seats) if crossing is None else crossing
        return self.state(self.served(running, self.seen(running)), running)

    def saturation(self, capacity: float) -> int:
        """Fewest requests running all the time that give 95 % of the capacity."""

        def enough(running: float) -> bool:
            return running >= 1 and self.served(running, running) >= 0.95 * capacity

        return math.ceil((first(enough, self.curves.batches) or self.seats) - 1e-3)


def replica(config: Config, layout: KvLayout) -> Replica:
    """Seats are those of scheduler.max_num_seqs that the cache has blocks for, requests being of
    mean lengths and each at its end: fewer than there are while requests grow.
    """
    load, scheduler = traffic(config, layout), config.scheduler
    step, row = step_model(config), 1 + config.speculative.tokens
    held = layout.num_blocks // max(1, layout.blocks_for(load.request)) if load.limit > 0 else 0
    seats = min(scheduler.max_num_seqs, held)
    return Replica(
        step=step,
        traffic=load,
        curves=curves(step, load, seats=seats, budget=scheduler.max_num_batched_tokens, row=row),
        seats=seats,
        budget=scheduler.max_num_batched_tokens,
        row=row,
        static=scheduler.policy == "static",
    )


def curves(step: StepModel, load: Traffic, *, seats: int, budget: int, row: int) -> Curves:
    """Each made to rise: what is lower at more requests is an edge of a table, and would let a
    larger load look faster.

    With pipeline stages the requests are dealt into as many batches, all on their way at once; a
    prompt holds each of them up for the time that it takes one stage. Prompts add what they do
    alone or, if that is less, as parts of full steps, where they share what a step costs anyway.
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


def first(true_from: Callable[[float], bool], points: tuple[float, ...]) -> float | None:
    """Least value at which it holds, in the first interval of points that it holds at the end of;
    None where it holds at none.
    """
    low = points[0]
    if true_from(low):
        return low
    for high in points[1:]:
        if true_from(high):
            break
        low = high
    else:
        return None
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if true_from(middle) else (middle, high)
    return high
