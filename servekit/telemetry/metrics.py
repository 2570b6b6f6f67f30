"""Every metric of a deployment, by name; the names are a contract held by a golden file.

Names follow the OpenTelemetry conventions for generative AI where these have one, and start with
`servekit_` where they do not. What a Prometheus scrape shows is written beside each: units become
suffixes, counters gain `_total`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from opentelemetry.metrics import CallbackOptions, Meter, Observation

REQUEST_DURATION = "gen_ai.server.request.duration"
TIME_TO_FIRST_TOKEN = "gen_ai.server.time_to_first_token"
TIME_PER_OUTPUT_TOKEN = "gen_ai.server.time_per_output_token"

PROVIDER = "servekit"

Operation = Literal["chat", "text_completion"]
Source = Literal["planned", "measured"]


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


GAUGES = (
    Observed("running", "servekit_requests_running", "", "requests that hold a seat"),
    Observed("waiting", "servekit_requests_waiting", "", "requests that wait for a seat"),
    Observed("waiting_tokens", "servekit_waiting_tokens", "", "prompt tokens of waiting requests"),
    Observed("kv_capacity", "servekit_kv_capacity_tokens", "", "tokens that the KV cache holds"),
    Observed("kv_used", "servekit_kv_used_tokens", "", "tokens in blocks that requests own"),
    Observed("kv_cached", "servekit_kv_cached_tokens", "", "tokens in free blocks worth a hit"),
    Observed("kv_free", "servekit_kv_free_tokens", "", "tokens in blocks that nobody owns"),
    Observed("batch_rows", "servekit_batch_requests", "", "requests in the latest step"),
    Observed("batch_tokens", "servekit_batch_tokens", "", "tokens computed in the latest step"),
    Observed("step_s", "servekit_step", "s", "time of the latest step"),
    Observed("step_budget_tokens", "servekit_step_budget_tokens", "", "tokens a step may take now"),
    Observed(
        "predicted_ttft_s",
        "servekit_predicted_time_to_first_token",
        "s",
        "what a typical request would wait for its first token if it came now",
    ),
)

COUNTERS = (
    Observed("steps_total", "servekit_steps", "", "steps of the engine"),
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
)

Reading = float | Mapping[str, float]
Snapshot = Callable[[], Mapping[str, Reading]]
"""What the engine looks like now, by the keys above; a missing key is not reported."""


class Metrics:
    """What the server reports to; one method an event, nothing here decides anything."""

    def __init__(self, meter: Meter, model: str, snapshot: Snapshot) -> None:
        self._model = model
        self._snapshot = snapshot
        self._duration = meter.create_histogram(
            REQUEST_DURATION, unit="s", description="from arrival to the last byte"
        )
        self._first_token = meter.create_histogram(
            TIME_TO_FIRST_TOKEN, unit="s", description="from arrival to the first token, queue too"
        )
        self._per_token = meter.create_histogram(
            TIME_PER_OUTPUT_TOKEN, unit="s", description="mean time between tokens of one answer"
        )
        self._prompt = meter.create_counter(
            "servekit_prompt_tokens", description="prompt tokens, those found cached too"
        )
        self._cached = meter.create_counter(
            "servekit_prompt_cached_tokens", description="prompt tokens found in the prefix cache"
        )
        self._generated = meter.create_counter(
            "servekit_generation_tokens", description="tokens generated"
        )
        self._finished = meter.create_counter(
            "servekit_requests_finished", description="answers, by how they ended"
        )
        self._aborted = meter.create_counter(
            "servekit_requests_aborted", description="requests given up, by reason"
        )
        self._refused = meter.create_counter(
            "servekit_requests_refused", description="requests answered with an error, by its code"
        )
        self._constrained = meter.create_counter(
            "servekit_requests_constrained", description="requests that ask for a form, by its kind"
        )
        self._grammar = meter.create_histogram(
            "servekit_grammar_compile", unit="s", description="trying a grammar not seen before"
        )
        self._weights = meter.create_gauge(
            "servekit_weights", unit="By", description="size of the weights"
        )
        self._kv = meter.create_gauge("servekit_kv_tokens", description="tokens of KV capacity")
        self.tokens(prompt=0, cached=0, generated=0)
        self._observe(meter)

    def _observe(self, meter: Meter) -> None:
        """What is read from the engine whenever somebody asks."""
        for gauge in GAUGES:
            meter.create_observable_gauge(
                gauge.name, [self._reader(gauge)], unit=gauge.unit, description=gauge.about
            )
        for counter in COUNTERS:
            meter.create_observable_counter(
                counter.name,
                [self._reader(counter)],
                unit=counter.unit,
                description=counter.about,
            )

    def _reader(self, what: Observed) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def read(_: CallbackOptions) -> Iterable[Observation]:
            value = self._snapshot().get(what.key)
            if isinstance(value, Mapping):
                return [Observation(one, {what.label: name}) for name, one in value.items()]
            return [] if value is None else [Observation(value)]

        return read

    def _labels(self, operation: Operation) -> dict[str, str]:
        return {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.request.model": self._model,
        }

    def request(self, operation: Operation, seconds: float, error: str | None) -> None:
        """One HTTP request to generate is over; `error` is its code, None if it went well."""
        labels = self._labels(operation)
        if error is not None:
            labels["error.type"] = error
        self._duration.record(seconds, labels)

    def first_token(self, operation: Operation, seconds: float) -> None:
        self._first_token.record(seconds, self._labels(operation))

    def answer(self, operation: Operation, finish: str, tokens: int, decode_s: float) -> None:
        """One choice is complete: `tokens` generated, `decode_s` from its first to its last."""
        self._finished.add(1, {"reason": finish})
        if tokens > 1:
            self._per_token.record(decode_s / (tokens - 1), self._labels(operation))

    def tokens(self, *, prompt: int, cached: int, generated: int) -> None:
        self._prompt.add(prompt)
        self._cached.add(cached)
        self._generated.add(generated)

    def aborted(self, reason: str, requests: int) -> None:
        self._aborted.add(requests, {"reason": reason})

    def refused(self, code: str) -> None:
        self._refused.add(1, {"reason": code})

    def constrained(self, kind: str) -> None:
        self._constrained.add(1, {"kind": kind})

    def grammar_tried(self, seconds: float) -> None:
        self._grammar.record(seconds)

    def sizes(self, source: Source, *, weights_bytes: int, kv_tokens: int) -> None:
        """Plan and measurement are two values of one label, so that they can be divided."""
        self._weights.set(weights_bytes, {"source": source})
        self._kv.set(kv_tokens, {"source": source})
