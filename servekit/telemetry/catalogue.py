"""Every metric of a deployment, by name; the names are a contract held by a golden file.

Names follow the OpenTelemetry conventions for generative AI where these have one, and start with
`servekit_` where they do not. In what Prometheus scrapes units become suffixes, and counters gain
`_total`; docs/metrics.md lists them as they are there.
"""

from dataclasses import dataclass

REQUEST_DURATION = "gen_ai.server.request.duration"
TIME_TO_FIRST_TOKEN = "gen_ai.server.time_to_first_token"
TIME_PER_OUTPUT_TOKEN = "gen_ai.server.time_per_output_token"


@dataclass(frozen=True, slots=True)
class Observed:
    """A number that is read when somebody looks: `key` finds it in a snapshot.

    With a `label`, the snapshot has several, each by the value of that label.
    """

    key: str
    name: str
    unit: str
    about: str
    label: str = ""


@dataclass(frozen=True, slots=True)
class Bucketed:
    """A histogram of ours."""

    name: str
    unit: str
    about: str
    bounds: tuple[float, ...]


GAUGES = (
    Observed("running", "servekit_requests_running", "", "requests that hold a seat"),
    Observed("waiting", "servekit_requests_waiting", "", "requests that wait for a seat"),
    Observed("waiting_tokens", "servekit_waiting_tokens", "", "prompt tokens of waiting requests"),
    Observed("kv_capacity", "servekit_kv_capacity_tokens", "", "tokens that the KV cache holds"),
    Observed("kv_used", "servekit_kv_used_tokens", "", "tokens in blocks that requests own"),
    Observed("kv_cached", "servekit_kv_cached_tokens", "", "tokens in free blocks worth a hit"),
    Observed("kv_free", "servekit_kv_free_tokens", "", "tokens in blocks that nobody owns"),
    Observed("kv_usage", "servekit_kv_usage_ratio", "1", "used tokens over the capacity, 0 to 1"),
    Observed(
        "kv_fragmentation",
        "servekit_kv_fragmentation_ratio",
        "1",
        "places in used blocks that hold no token, over all of them",
    ),
    Observed("batch_rows", "servekit_batch_requests", "", "requests in the latest step"),
    Observed("batch_tokens", "servekit_batch_tokens", "", "tokens computed in the latest step"),
    Observed(
        "batch_prefill",
        "servekit_batch_prefill_ratio",
        "1",
        "share of prompts in its tokens",
    ),
    Observed("captured_graphs", "servekit_captured_graphs", "", "sizes of decode steps captured"),
    Observed("step_s", "servekit_step", "s", "time of the latest step"),
    Observed("step_budget_tokens", "servekit_step_budget_tokens", "", "tokens a step may take now"),
    Observed(
        "heartbeat_age_s",
        "servekit_engine_heartbeat_age",
        "s",
        "since the engine was last heard of; /livez says from when on that is too long",
    ),
    Observed(
        "predicted_ttft_s",
        "servekit_predicted_time_to_first_token",
        "s",
        "what a typical request would wait for its first token if it came now",
    ),
    Observed(
        "ttft_percentile",
        "servekit_ttft_percentile",
        "s",
        "time to first token at slo.percentile: planned, and measured of the latest 512 answers",
        label="source",
    ),
    Observed(
        "tpot_percentile",
        "servekit_tpot_percentile",
        "s",
        "time per output token at slo.percentile: planned, and measured of the latest 512 answers",
        label="source",
    ),
    Observed(
        "slo_headroom",
        "servekit_slo_headroom_ratio",
        "1",
        "share of the target that is left at slo.percentile, of the latest 512 answers; negative: "
        "missed",
        label="target",
    ),
    Observed(
        "long_to_short_slowdown",
        "servekit_long_to_short_slowdown",
        "1",
        "time to first token over the time its prompt took to compute: of the longer half of the "
        "latest 512 prompts, over that of the shorter half",
    ),
)

COUNTERS = (
    Observed("steps_total", "servekit_steps", "", "steps of the engine"),
    Observed(
        "step_tokens", "servekit_step_tokens", "", "tokens computed, prefill or decode", "kind"
    ),
    Observed(
        "kernel_compiles_total",
        "servekit_kernel_compiles_after_ready",
        "",
        "GPU kernels compiled, or read back, while requests waited for it",
    ),
    Observed("preemptions_total", "servekit_preemptions", "", "requests put back to the queue"),
    Observed("prefix_query_tokens_total", "servekit_prefix_query_tokens", "", "tokens looked up"),
    Observed("prefix_hit_tokens_total", "servekit_prefix_hit_tokens", "", "tokens found cached"),
    Observed(
        "prefix_miss_tokens_total",
        "servekit_prefix_miss_tokens",
        "",
        "tokens looked up and not found: first_seen, evicted, salt, unaligned, disabled",
        label="reason",
    ),
    Observed(
        "preempted_tokens_total", "servekit_preempted_tokens", "", "computed tokens thrown away"
    ),
    Observed("swaps_total", "servekit_swaps", "", "requests moved to host memory"),
    Observed("takeovers_total", "servekit_takeovers", "", "seats taken by more urgent requests"),
    Observed("merged_blocks_total", "servekit_merged_blocks", "", "blocks freed for an equal one"),
    Observed(
        "refused_total",
        "servekit_admission_refused",
        "",
        "requests that the scheduler refused, or would have where it only observes, by code",
        label="code",
    ),
    Observed(
        "slo_answers", "servekit_slo_answers", "", "answers that met or missed the SLO", "outcome"
    ),
    Observed(
        "traced",
        "servekit_traced_requests",
        "",
        "traces: sent, dropped as too many waited, or failed to be taken by the collector",
        label="outcome",
    ),
)

MOMENTS = (
    *(0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.008, 0.01, 0.0125),
    *(0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5),
)
"""Seconds of a step or between two tokens."""
WAITS = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5),
    *(0.75, 1.0, 1.5, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0),
)
"""Seconds of a part of a request."""
SHORT = (0.00001, 0.00002, 0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.1)
LENGTHS = tuple(float(2**power) for power in range(21))

INTER_TOKEN = Bucketed(
    "servekit_inter_token_latency",
    "s",
    "between two tokens of an answer, each token; of several that come at once, an equal share",
    MOMENTS,
)
STEP_DURATION = Bucketed("servekit_step_duration", "s", "time of each step", MOMENTS)
BATCH_BUILD = Bucketed("servekit_batch_build", "s", "time to decide what each step computes", SHORT)
QUEUE_TIME = Bucketed("servekit_request_queue_time", "s", "from arrival to the first seat", WAITS)
PREFILL_TIME = Bucketed(
    "servekit_request_prefill_time", "s", "from the first seat to the first token", WAITS
)
DECODE_TIME = Bucketed(
    "servekit_request_decode_time", "s", "from the first token to the last", WAITS
)
PREEMPTIONS = Bucketed(
    "servekit_request_preemptions",
    "",
    "how often each answer was put back to the queue",
    (0.0, 1.0, 2.0, 3.0, 5.0, 10.0),
)
PROMPT_LENGTH = Bucketed("servekit_request_prompt_tokens", "", "prompt of each answer", LENGTHS)
ANSWER_LENGTH = Bucketed(
    "servekit_request_generation_tokens", "", "tokens of each complete answer", LENGTHS
)
