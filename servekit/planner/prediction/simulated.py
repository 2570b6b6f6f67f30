"""Times of a prediction from a simulated run in place of closed forms, where a run is short enough.

How many requests run is said by what they are expected to take, never by a clock, so that the same
configuration always has the same times. Capacity, goodput and bounds stay closed forms.
"""

import math
from dataclasses import replace

from servekit.config.schema import Config
from servekit.errors import DoesNotFit, NotBuilt
from servekit.planner.prediction.prediction import (
    CLOSED_FORMS,
    Latencies,
    Percentiles,
    Prediction,
)
from servekit.planner.prediction.traffic import moments_of

STEP_S, ROW_S, REQUEST_S, PROMPT_TOKEN_S = 85e-6, 1e-6, 300e-6, 0.1e-6
"""What a step, a decoding request in it, a request and a token of its prompt take to simulate, on
one core of 2024, rather more than less."""
LAST = 2.5
"""Mean answers that the last one to end is long."""
BLOCK_S = 0.2e-6
"""To set up a block of cache: nothing but for caches of a size that only tests have."""
BUDGET_S = 0.3
"""Of that, for one deployment."""
COUNTS = (100, 150, 200, 300, 400, 600, 800, 1200, 1600)
"""Requests of a run: few different numbers, so that deployments that are compared mostly have the
same. Of fewer than the first a percentile says little; the last has 16 beyond its p99."""

FILLINGS = 2
"""Times that as many requests come in a run as run at once: the first half fills it."""

ENDLESS = Percentiles(None, None, None)


def cost_s(config: Config, prediction: Prediction, requests: int) -> float:
    """Seconds that it takes to simulate so many, about: until the last answer, a long one, ends."""
    work, longest = moments_of(config.workload), config.model.max_model_len
    rows, prompt = min(work.output, longest), min(work.prompt, longest)
    steps = min(prediction.steps_per_request, rows + prompt)
    each = steps * STEP_S + rows * ROW_S + prompt * PROMPT_TOKEN_S + REQUEST_S
    return requests * each + LAST * rows * STEP_S + prediction.blocks * BLOCK_S


def least(prediction: Prediction) -> int:
    """Requests of which fewer say little: before those who came first have left, it only fills."""
    return max(COUNTS[0], math.ceil(FILLINGS * prediction.running))


def affordable(config: Config, prediction: Prediction) -> int:
    """Requests that there is time to simulate; 0: too few to say anything."""
    there = moments_of(config.workload).requests or COUNTS[-1]
    most = max(
        (
            count
            for count in COUNTS
            if count <= there and cost_s(config, prediction, count) <= BUDGET_S
        ),
        default=0,
    )
    return most if most >= least(prediction) else 0


def seconds_of_run(config: Config, prediction: Prediction) -> float:
    """That `simulated` takes, about; 0 where it makes no run."""
    count = affordable(config, prediction) if prediction.stable else 0
    return cost_s(config, prediction, count) if count else 0.0


def simulated(config: Config, prediction: Prediction) -> Prediction:
    """With the times of a run, if there is one; `method` says which.

    More traffic than can be served has none: its times would only say how long it ran. Where the
    queue grew all the same, there is no time to first token either.
    """
    if not prediction.stable:
        return prediction
    count = affordable(config, prediction)
    if not count:
        return _closed(prediction, too_few(config, prediction))
    from servekit.planner.prediction.sample import sample  # takes as long as planning without it

    try:
        times = sample(config, count)
    except (NotBuilt, DoesNotFit) as error:
        return _closed(prediction, error.message)
    endless = times.is_endless
    first = ENDLESS if endless else _filled(times.ttft_ms, prediction.ttft_ms)
    at_slo, otherwise = times.at_slo, prediction.at_slo
    return replace(
        prediction,
        ttft_ms=first,
        tpot_ms=_filled(times.tpot_ms, prediction.tpot_ms),
        itl_ms=_filled(times.itl_ms, prediction.itl_ms),
        at_slo=Latencies(
            None if endless else at_slo.ttft_ms or otherwise.ttft_ms,
            at_slo.tpot_ms or otherwise.tpot_ms,
        ),
        stable=not endless,
        method=f"times simulated, one seed; rates and goodput by {CLOSED_FORMS}",
        sampled=times.sampled,
    )


def too_few(config: Config, prediction: Prediction) -> str:
    """Why there is no run."""
    wanted, there = least(prediction), moments_of(config.workload).requests
    if there is not None and there < wanted:
        return f"the trace has {there:,} requests, and a run takes {wanted:,}"
    return f"a run of {wanted:,} requests is too long for a plan"


def _closed(prediction: Prediction, why: str) -> Prediction:
    return replace(prediction, method=f"{CLOSED_FORMS}; not simulated: {why}")


def _filled(times: Percentiles, otherwise: Percentiles) -> Percentiles:
    """Of what the run did not see, such as a second token of answers that are one, closed forms."""
    return times if None not in (times.p50, times.p95, times.p99) else otherwise
