"""What is predicted of a deployment under its declared workload: numbers, and where they are from.

Rates, capacity and bounds are closed forms; times are closed forms too, until a simulated run takes
their place (`simulated`).
"""

from collections.abc import Mapping
from dataclasses import dataclass

CLOSED_FORMS = (
    "queueing bounds: Little's law for the batch, GI/M/1 and Kingman for prompts, Allen and "
    "Cunneen for seats"
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
class Sampled:
    """The run that times are from. Of each time, the half-width of the interval in which 95 % of
    such runs have it, in milliseconds.
    """

    requests: int
    seconds: float
    """Simulated."""
    cut: int
    """Requests that were shortened to model.max_model_len."""
    ttft_ms: Percentiles
    tpot_ms: Percentiles
    itl_ms: Percentiles
    at_slo: Latencies
    batches: Mapping[str, tuple[float | None, ...]]
    """By metric, each time in consecutive parts of the run, in milliseconds: what two runs of the
    same arrivals differ in is told part by part. None where a part saw nothing."""


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
    requests_per_s: float
    """declared, or of a trace; of a closed workload, those its clients get answered"""
    running: float
    """requests that run on average at that rate"""
    utilization: float | None
    """that rate over capacity, above 1 where it is not stable; None: nothing can run"""
    steps_per_request: float
    """steps of all copies for each request, about: what a simulation takes"""
    blocks: int
    """of cache, over all copies"""
    band: float
    """relative half-width of the interval around times and rates that the step model errs by"""
    standing: str
    method: str
    sampled: Sampled | None = None
    """None: times are closed forms"""
