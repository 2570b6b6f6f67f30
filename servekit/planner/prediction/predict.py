"""Latency, throughput and goodput of a configuration under its declared workload, in closed forms.

Waits for prompts are exact for Poisson arrivals and for long waits;
every percentile of a sum is the sum of percentiles, as though a long prompt came in the worst
moment. Approximations: Allen and Cunneen's wait for seats, exponential tails, a batch that varies
as a slowed Poisson count does, seats taken at the length that requests have at their end.
"""

import math
from collections.abc import Callable

from servekit.config.schema import Config
from servekit.planner.prediction import queueing
from servekit.planner.prediction.curves import carry, chunks
from servekit.planner.prediction.prediction import (
    CLOSED_FORMS,
    Bounds,
    Latencies,
    Percentiles,
    Prediction,
)
from servekit.planner.prediction.steady import HALVINGS, Replica, State, replica
from servekit.spec.kv import KvLayout
from servekit.spec.latency import roofline

METHOD = f"{CLOSED_FORMS}; not simulated"


def predict(config: Config, layout: KvLayout) -> Prediction:
    """`layout` is that of one copy; with no block in it, nothing runs and all times are None.

    Raises ConfigError where the trace of the workload cannot be read.
    """
    engine = replica(config, layout)
    data, percentile = config.parallelism.data, config.slo.percentile / 100
    full = engine.full() if engine.seats else None
    stable = settled(engine, full) if full else None
    busy = stable or full
    rate = stable.rate if stable and engine.clients else engine.traffic.rate
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
        requests_per_s=rate * data,
        running=min(engine.seats, busy.running + busy.prefill) * data if busy else 0.0,
        utilization=rate / capacity if capacity else None,
        steps_per_request=_steps(busy) if busy else 0.0,
        blocks=layout.num_blocks * data,
        band=engine.step.band,
        standing=engine.step.standing,
        method=METHOD,
    )


def settled(engine: Replica, full: State) -> State | None:
    """The state at the declared traffic; None where it is more than can be served. Clients who
    wait for their answers never ask for more.
    """
    if engine.clients:
        running = min(engine.clients, full.running)
        return engine.state(engine.served(running, min(running, engine.seats)), running)
    rate = engine.traffic.rate
    return engine.steady(rate) if rate < full.rate else None


def _steps(state: State) -> float:
    """Steps are taken one after the other while anybody runs."""
    return -math.expm1(-(state.running + state.prefill)) / (state.rate * state.step)


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
    if engine.clients:
        return _ttft_of_clients(engine, state, share)
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


def _ttft_of_clients(engine: Replica, state: State, share: float) -> float:
    """Who asks again once answered waits, by Little's law, for what of its turn is no answering:
    of the clients' time between answers, that not spent on tokens; or for its own prompt.
    """
    own = engine.prompt_seconds(state.running, share)
    waits = engine.clients / state.rate - engine.held(state.seen) * state.tpot
    return state.step + max(own, waits)


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
