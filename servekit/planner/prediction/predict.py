"""Latency, throughput and goodput of a configuration under its declared workload.

Closed forms, not a simulation. Waits for prompts are exact for Poisson arrivals and for long waits;
every percentile of a sum is the sum of percentiles, as though a long prompt came in the worst
moment. Approximations: Allen and Cunneen's wait for seats, exponential tails, a batch that varies
as a slowed Poisson count does, seats taken at the length that requests have at their end.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from servekit.config.schema import Config
from servekit.planner.prediction import queueing
from servekit.planner.prediction.curves import carry, chunks
from servekit.planner.prediction.steady import HALVINGS, Replica, State, replica
from servekit.spec.kv import KvLayout
from servekit.spec.latency import roofline

METHOD = (
    "queueing bounds: Little's law for the batch, GI/M/1 and Kingman for prompts, Allen and "
    "Cunneen for seats; not simulated"
)


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Milliseconds over requests; None where there is no end to it, as the queue only grows."""

    p50: float | None
    p95: float | None
    p99: float | None


@dataclass(frozen=True, slots=True)
class Latencies:
    """Milliseconds at slo.percentile; None as in `Percentiles`."""

    ttft_ms: float | None
    tpot_ms: float | None


@dataclass(frozen=True, slots=True)
class Bounds:
    """Milliseconds that no engine on this hardware can be below at slo.percentile."""

    ttft_ms: float
    tpot_ms: float
    prompt_tokens: float
    """of the prompt at that percentile"""
    new_tokens: float
    """of them, those that are not found in the cache"""


@dataclass(frozen=True, slots=True)
class Prediction:
    """Rates and counts are of the whole deployment, over all copies of the model.

    TTFT is from arrival to the first token; TPOT is (last - first token) / (tokens - 1) of a
    request; ITL is between two steps that give a request tokens. Of a workload above `capacity`,
    TTFT is None, and TPOT and ITL are those with every seat taken.
    """

    ttft_ms: Percentiles
    tpot_ms: Percentiles
    itl_ms: Percentiles
    at_slo: Latencies
    bounds: Bounds
    output_tokens_per_s: float
    """at full load: all the seats that memory and max_num_seqs allow, prompts included"""
    capacity_per_s: float
    """requests a second of that load"""
    goodput_per_s: float
    """highest rate at which ttft_ms and tpot_ms at slo.percentile meet their targets"""
    saturation_concurrency: int
    """fewest requests running that give 95 % of the output"""
    seats: int
    stable: bool
    """the declared rate is less than what can be served"""
    running: float
    """requests that run on average at the declared rate"""
    utilization: float | None
    """declared rate over capacity, above 1 where that is not stable; None: nothing can run"""
    band: float
    """relative half-width of the interval around times and rates"""
    standing: str
    method: str


def predict(config: Config, layout: KvLayout) -> Prediction:
    """`layout` is that of one copy; with no block in it, nothing runs and all times are None."""
    engine = replica(config, layout)
    data, percentile = config.parallelism.data, config.slo.percentile / 100
    full = engine.full() if engine.seats else None
    rate = engine.traffic.rate
    stable = engine.steady(rate) if full and rate < full.rate else None
    busy = stable or full
    shares = (0.50, 0.95, 0.99, percentile)
    ttfts = [_ms(ttft, engine, stable, share) for share in shares]
    tpots = [_ms(tpot, engine, busy, share) for share in shares]
    itls = [_ms(itl, engine, busy, share) for share in shares]
    capacity = full.rate if full else 0.0
    return Prediction(
        ttft_ms=Percentiles(*ttfts[:3]),
        tpot_ms=Percentiles(*tpots[:3]),
        itl_ms=Percentiles(*itls[:3]),
        at_slo=Latencies(ttfts[3], tpots[3]),
        bounds=bounds(config, engine, percentile),
        output_tokens_per_s=capacity * engine.traffic.output * data,
        capacity_per_s=capacity * data,
        goodput_per_s=goodput(config, engine, capacity) * data,
        saturation_concurrency=engine.saturation(capacity) * data if full else 0,
        seats=engine.seats * data,
        stable=stable is not None,
        running=min(engine.seats, busy.running + busy.prefill) * data if busy else 0.0,
        utilization=rate / capacity if capacity else None,
        band=engine.step.band,
        standing=engine.step.standing,
        method=METHOD,
    )


def _ms(
    metric: Callable[[Replica, State, float], float],
    engine: Replica,
    state: State | None,
    share: float,
) -> float | None:
    return None if state is None else metric(engine, state, share) * 1000


def ttft(engine: Replica, state: State, share: float) -> float:
    """Seconds: the rest of the running step, the prompts before or beside its own, the wait for a
    seat, the prompt itself.

    A static batch is waited for to its end, and its prompts are computed before any answer.
    """
    load, held = engine.traffic, state.running / state.rate
    period = held if engine.static else state.step
    residual = queueing.residual_quantile(period, -math.expm1(-state.running), share)
    added = engine.added(state)
    service = max(engine.share(state.running), added)
    waiting = queueing.who_wait(state.rate * service, load.arrival_cv)
    for_prompts = queueing.delay_of_one(
        waiting,
        service,
        arrival_cv=load.arrival_cv,
        service_cv=load.new_cv,
    )
    for_seat = engine.heavy * queueing.delay_of_many(
        engine.seats, state.running, held, arrival_cv=load.arrival_cv, service_cv=load.output_cv
    )
    seats_taken = queueing.erlang_c(
        max(1, int(engine.seats / engine.heavy)), state.running / engine.heavy
    )
    own = engine.prompt_seconds(state.running, share)
    beside = 0.0 if engine.static else company(engine, state) * added
    return (
        residual
        + max(beside, queueing.wait_quantile(for_prompts, waiting, share))
        + queueing.wait_quantile(for_seat, seats_taken, share)
        + own * (max(1.0, state.running) if engine.static else 1.0)
    )


def company(engine: Replica, state: State, later: float = 0.0) -> float:
    """Prompts that are taken in with another: they came in the step that it came in, or while the
    first of them was computed. With those that come up to so many seconds `later`.
    """
    together = state.step + engine.prompt_seconds(state.running, 0.5)
    return queueing.followers(state.rate * (together + later), engine.traffic.arrival_cv)


def tpot(engine: Replica, state: State, share: float) -> float:
    """Seconds, mean over one request: at a larger batch and with more prompts than usual.

    Requests come and go as in a queue without waiting: their number varies as a Poisson count,
    times (1 + cv^2) / 2 for bursts, and more as steps grow longer with it.
    """
    load, curves, each = engine.traffic, engine.curves, 1 / engine.step.tokens_per_step
    z, running = queueing.normal_quantile(share), state.running
    varies = running * (1 + load.arrival_cv**2) / 2 / (1 - engine.slowing(state))
    seen = engine.seen(running + z * math.sqrt(varies))
    decode = curves.at(curves.decode, seen) * each
    if engine.static or not running:
        return decode
    added = max(engine.added(state), curves.at(curves.added, seen))
    lost = interrupted(engine, state, z) * added
    most = curves.at(curves.full, seen) * each
    return max(state.tpot, min(decode + lost, most))


ANGLES = tuple((math.cos(part * math.pi / 8), math.sin(part * math.pi / 8)) for part in range(5))
"""Shares of a deviation that two independent quantities have in it."""
LONGER_STAYS = 4
"""Times that a stay is found anew; below full load it hardly grows further."""


def interrupted(engine: Replica, state: State, z: float) -> float:
    """Prompts for each token of a request: many of them, or a short answer to bear them.

    Both are `z` standard deviations from the usual together, in the direction that is worst. Counts
    vary as Poisson's do, more in bursts and with long prompts; their roots are nearly normal. Who
    is interrupted stays longer, and is interrupted more.
    """
    load, added, before = engine.traffic, engine.added(state), company(engine, state)
    decode = max(0.0, 1 - state.rate * added) * state.tpot
    worst = 0.0
    for short, many in ANGLES:
        tokens = max(1.0, load.answer_at(-z * short) - 1)
        stays = tokens * state.tpot
        for _ in range(LONGER_STAYS):
            usual = company(engine, state, stays) - before
            spread = math.sqrt(min(load.arrival_cv**2, 1 + usual) + load.new_cv**2) / 2
            count = max(0.0, math.sqrt(usual) + z * many * spread) ** 2
            stays = max(stays, tokens * decode + count * added)
        worst = max(worst, count / tokens)
    return worst


def itl(engine: Replica, state: State, share: float) -> float:
    """Seconds of one step: without a prompt, or with some if so many steps have any.

    A static batch decodes without prompts between.
    """
    load, curves, step = engine.traffic, engine.curves, engine.step
    decode = curves.at(curves.decode, state.seen)
    room, others = engine.room(state.running), company(engine, state)
    carrying = state.rate * max(1.0 / (1 + others), load.new_tokens / room)
    often = carrying * state.step
    if engine.static or often <= 1 - share:
        return decode
    prompt = load.prompt_quantile(max(1e-9, 1 - (1 - share) / min(1.0, often)))
    past = load.cached(prompt)
    chunk = min(room, prompt - past + others * load.new_tokens)
    return max(decode, step.seconds(state.seen / step.pipeline, load.context, [(chunk, past)]))


def goodput(config: Config, engine: Replica, capacity: float) -> float:
    """Requests a second of one copy, by halving: both times grow with the rate."""
    slo, share = config.slo, config.slo.percentile / 100

    def meets(rate: float) -> bool:
        state = engine.steady(rate)
        if state is None:
            return False
        return (slo.ttft_ms is None or ttft(engine, state, share) * 1000 <= slo.ttft_ms) and (
            slo.tpot_ms is None or tpot(engine, state, share) * 1000 <= slo.tpot_ms
        )

    if slo.ttft_ms is None and slo.tpot_ms is None:
        return capacity
    low, high = 0.0, capacity
    for _ in range(HALVINGS if capacity else 0):
        middle = (low + high) / 2
        low, high = (middle, high) if meets(middle) else (low, middle)
    return low


def bounds(config: Config, engine: Replica, share: float) -> Bounds:
    """A request alone on ideal hardware, with the prompt that a share of requests is within.

    The others have longer prompts, so the percentile of all is no less. Pipeline stages may work
    on chunks at once, at best all of them all the time.
    """
    roof, load = roofline(config), engine.traffic
    prompt = load.prompt_quantile(share)
    past = load.cached(prompt)
    parts = chunks(prompt - past, past, float(engine.budget))
    token = roof.seconds(1.0, prompt) / roof.tokens_per_step
    return Bounds(
        ttft_ms=carry(roof, 0.0, 0.0, parts) / roof.pipeline * 1000,
        tpot_ms=token * 1000,
        prompt_tokens=prompt,
        new_tokens=prompt - past,
    )
