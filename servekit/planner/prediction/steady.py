"""The steady state of one copy of the model: how many requests decode together, and how fast.

A step takes s(b) where b requests decode. A prompt adds e(b) to the steps that carry it, so of
each second `rate x e` is lost to prompts, and a token takes s(b) / (1 - rate x e(b)). By Little's
law `rate x tokens x that` requests decode at once: a fixed point. The least one is taken, which
makes every number here grow with the rate.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate

from servekit.config.schema import Config
from servekit.planner.prediction.curves import Curves, carry, chunks, curves, room
from servekit.planner.prediction.traffic import Traffic, moments_of, traffic
from servekit.spec.kv import KvLayout
from servekit.spec.latency import StepModel, step_model

HALVINGS = 20
"""Of an interval in which a crossing is sought: to six digits."""

MOST_SLOWING = 0.9
"""Beyond it the batch is not in balance, and no closed form holds."""


@dataclass(frozen=True, slots=True)
class State:
    """At `rate` requests a second `running` of them decode on average, and one sees `seen`."""

    rate: float
    running: float
    seen: float
    tpot: float
    """Mean seconds for each output token after the first."""
    step: float
    """Mean seconds from one step of a request to its next."""
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
    heavy: float
    """Seats are room in the cache for requests of unlike sizes: as good as so many times fewer,
    with so many times fewer requests (Hayward); 1 where the scheduler counts them.
    """
    budget: int
    row: int
    """Tokens that a decoding request takes of the budget: one, and its guesses."""
    static: bool
    clients: float = 0.0
    """Who ask again once they are answered, each copy's share of them; 0: requests come anyway."""
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
        """Mean seconds for an output token; infinite where prompts take all the time.

        A step C is a decode step D and what its prompts add. Of p pipeline batches the fullest
        decides: with `rate x C / p` prompts in each, C = D + e (rate C / p + the excess of the
        fullest), a quadratic in the root of C; never more than if all prompts were in one batch.
        """
        pipeline, each = self.step.pipeline, self.curves.at(self.curves.added, seen)
        decode = self.curves.at(self.curves.decode, seen)
        left, excess = 1 - rate * each, pipeline * each * math.sqrt(rate) * fullest(pipeline)
        if left <= 0:
            return math.inf
        root = (excess + math.sqrt(excess * excess + 4 * left * decode)) / (2 * left)
        alone = 1 - rate * each * pipeline
        step = min(root * root, decode / alone) if alone > 0 else root * root
        return step / self.step.tokens_per_step

    def added(self, state: State) -> float:
        """Seconds that one prompt adds to steps in this state; with pipeline batches of which not
        all carry prompts, more than in `curves`.
        """
        decode = self.curves.at(self.curves.decode, state.seen)
        return max(0.0, 1 - decode / state.step) / state.rate

    def slowing(self, state: State) -> float:
        """By what share a token takes longer for each share that more requests run, below 1.

        A batch that slows itself so is left more slowly, and varies more by 1 / (1 - this).
        """
        more = min(state.seen * 1.1, float(self.seats))
        if more <= state.seen:
            return 0.0
        longer = self.tpot(more, state.rate) / state.tpot - 1
        return max(0.0, min(MOST_SLOWING, longer / (more / state.seen - 1)))

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
            step=self.tpot(seen, rate) * self.step.tokens_per_step,
            prefill=rate * self.share(running),
        )

    def served(self, running: float, seen: float) -> float:
        """Requests a second at which so many run: the least of two limits, decodes and prompts."""
        held, pipeline = self.held(seen), self.step.pipeline
        if not held:
            return 1 / self.share(running)
        prompts = running * self.step.tokens_per_step / held  # of a step, by Little's law
        most = prompts + min(
            pipeline * math.sqrt(prompts) * fullest(pipeline), (pipeline - 1) * prompts
        )
        step = self.curves.at(self.curves.decode, seen)
        step += self.curves.at(self.curves.added, seen) * most
        return min(prompts / step, 1 / self.share(running))

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
        heavy=load.unevenness if held < scheduler.max_num_seqs else 1.0,
        budget=scheduler.max_num_batched_tokens,
        row=row,
        static=scheduler.policy == "static",
        clients=clients(config),
    )


def clients(config: Config) -> float:
    """Each copy's share, at least one of them; 0 where requests come by themselves."""
    closed = config.workload.arrivals == "closed" and moments_of(config.workload).requests is None
    return max(1.0, config.workload.concurrency / config.parallelism.data) if closed else 0.0


def fullest(pipeline: int) -> float:
    """Of counts in so many batches, how far the largest is above the mean, over the root of all of
    them: of p Poisson counts of mean m it is about `sqrt(2 m ln p)`.
    """
    return math.sqrt(2 * math.log(pipeline) / pipeline)


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
