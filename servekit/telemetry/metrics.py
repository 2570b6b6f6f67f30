"""What the server reports to: one method an event, and what is read when somebody looks."""

from collections.abc import Callable, Iterable, Mapping
from typing import Literal, NamedTuple, Protocol

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from servekit.telemetry import catalogue as names
from servekit.telemetry.catalogue import (
    COUNTERS,
    GAUGES,
    REQUEST_DURATION,
    TIME_PER_OUTPUT_TOKEN,
    TIME_TO_FIRST_TOKEN,
    Observed,
)
from servekit.telemetry.histogram import Histogram, Instruments
from servekit.telemetry.service_level import ServiceLevel, Targets

PROVIDER = "servekit"

Operation = Literal["chat", "text_completion"]
Source = Literal["planned", "measured"]
Reading = float | Mapping[str, float]
Snapshot = Callable[[], Mapping[str, Reading]]
"""What the engine looks like now, by the keys of the catalogue; a missing key is not reported."""


class Spent(NamedTuple):
    """Seconds until a first token: for a seat, then until the token came, and those of the steps
    that computed parts of the prompt."""

    queue_s: float
    prefill_s: float
    computing_s: float


class StepReport(Protocol):
    """`build_s` a step took to decide on, `seconds` to run."""

    @property
    def prefill_tokens(self) -> int: ...
    @property
    def decode_tokens(self) -> int: ...
    @property
    def seconds(self) -> float: ...
    @property
    def build_s(self) -> float: ...


class Metrics:
    """Nothing here decides anything. All methods belong to the event loop's thread."""

    def __init__(
        self,
        meter: Instruments,
        model: str,
        snapshot: Snapshot,
        promised: Targets | None = None,
    ) -> None:
        self._model = model
        self._snapshot = snapshot
        self.level = ServiceLevel(promised or Targets())
        self.step_tokens = {"prefill": 0, "decode": 0}
        self.traced: Callable[[], Mapping[str, float]] = dict
        """How many traces were sent or lost, by outcome."""
        self._prefill_share: float | None = None
        self._make(meter)
        self._make_own(meter)
        self.tokens(prompt=0, cached=0, generated=0)
        self._observe(meter)

    def _make(self, meter: Instruments) -> None:
        otel = meter.otel
        self._duration = otel.create_histogram(
            REQUEST_DURATION, unit="s", description="from arrival to the last byte"
        )
        self._first_token = otel.create_histogram(
            TIME_TO_FIRST_TOKEN, unit="s", description="from arrival to the first token, queue too"
        )
        self._per_token = otel.create_histogram(
            TIME_PER_OUTPUT_TOKEN, unit="s", description="mean time between tokens of one answer"
        )
        self._prompt = otel.create_counter(
            "servekit_prompt_tokens", description="prompt tokens, those found cached too"
        )
        self._cached = otel.create_counter(
            "servekit_prompt_cached_tokens", description="prompt tokens found in the prefix cache"
        )
        self._generated = otel.create_counter(
            "servekit_generation_tokens", description="tokens generated"
        )
        self._tenants = otel.create_counter(
            "servekit_tenant_tokens",
            description="tokens by tenant and key: prompt, those of it found cached, completion",
        )
        self._finished = otel.create_counter(
            "servekit_requests_finished", description="answers, by how they ended"
        )
        self._aborted = otel.create_counter(
            "servekit_requests_aborted", description="requests given up, by reason"
        )
        self._refused = otel.create_counter(
            "servekit_requests_refused", description="requests answered with an error, by its code"
        )
        self._make_of_grammars(otel)
        self._weights = otel.create_gauge(
            "servekit_weights", unit="By", description="size of the weights"
        )
        self._kv = otel.create_gauge("servekit_kv_tokens", description="tokens of KV capacity")
        self._kv_info = otel.create_gauge(
            "servekit_kv_info", description="1; how the KV cache is laid out, as labels"
        )

    def _make_of_grammars(self, otel: Meter) -> None:
        self._constrained = otel.create_counter(
            "servekit_requests_constrained", description="requests that ask for a form, by its kind"
        )
        self._grammar = otel.create_histogram(
            "servekit_grammar_compile", unit="s", description="trying a grammar not seen before"
        )

    def _make_own(self, meter: Instruments) -> None:
        def made(what: names.Bucketed) -> Histogram:
            return meter.histogram(what.name, what.unit, what.about, what.bounds)

        self.inter_token = made(names.INTER_TOKEN)
        self.step_duration = made(names.STEP_DURATION)
        self._build = made(names.BATCH_BUILD)
        self._queue_time = made(names.QUEUE_TIME)
        self._prefill_time = made(names.PREFILL_TIME)
        self._decode_time = made(names.DECODE_TIME)
        self._preemptions = made(names.PREEMPTIONS)
        self._prompt_length = made(names.PROMPT_LENGTH)
        self._answer_length = made(names.ANSWER_LENGTH)

    def _observe(self, meter: Instruments) -> None:
        """What is read whenever somebody asks, of the engine and of what was reported here."""
        for gauge in GAUGES:
            meter.otel.create_observable_gauge(
                gauge.name, [self._reader(gauge)], unit=gauge.unit, description=gauge.about
            )
        for counter in COUNTERS:
            meter.otel.create_observable_counter(
                counter.name,
                [self._reader(counter)],
                unit=counter.unit,
                description=counter.about,
            )

    def _reader(self, what: Observed) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def read(_: CallbackOptions) -> Iterable[Observation]:
            value = self.readings().get(what.key)
            if isinstance(value, Mapping):
                return [Observation(one, {what.label: name}) for name, one in value.items()]
            return [] if value is None else [Observation(value)]

        return read

    def readings(self) -> Mapping[str, Reading]:
        """By the keys of the catalogue; what is not known is not there."""
        level = self.level
        own: dict[str, Reading | None] = {
            "step_tokens": self.step_tokens,
            "batch_prefill": self._prefill_share,
            "ttft_percentile": level.ttft(),
            "tpot_percentile": level.tpot(),
            "slo_headroom": level.headroom(),
            "slo_answers": level.outcomes(),
            "traced": self.traced(),
            "long_to_short_slowdown": level.long_to_short(),
        }
        known = {key: value for key, value in own.items() if value is not None}
        return {**known, **self._snapshot()}

    def _labels(self, operation: Operation) -> dict[str, str]:
        return {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.request.model": self._model,
        }

    def step(self, step: StepReport) -> None:
        self.step_tokens["prefill"] += step.prefill_tokens
        self.step_tokens["decode"] += step.decode_tokens
        self._prefill_share = step.prefill_tokens / (step.prefill_tokens + step.decode_tokens)
        self.step_duration.record(step.seconds)
        self._build.record(step.build_s)

    def request(self, operation: Operation, seconds: float, error: str | None) -> None:
        """One HTTP request to generate is over; `error` is its code, None if it went well."""
        labels = self._labels(operation)
        if error is not None:
            labels["error.type"] = error
        self._duration.record(seconds, labels)

    def first_token(self, operation: Operation, seconds: float) -> None:
        self._first_token.record(seconds, self._labels(operation))

    def prefilled(self, prompt_tokens: int, ttft_s: float, spent: Spent) -> None:
        """An answer has its first token, so long after it was asked for."""
        self._queue_time.record(spent.queue_s)
        self._prefill_time.record(spent.prefill_s)
        if spent.computing_s > 0:
            self.level.prompts.append((prompt_tokens, ttft_s / spent.computing_s))

    def answer(
        self,
        operation: Operation,
        finish: str,
        tokens: int,
        decode_s: float,
        *,
        prompt_tokens: int = 0,
        ttft_s: float | None = None,
        preemptions: int = 0,
    ) -> None:
        """One choice is complete: `tokens` generated, `decode_s` from its first to its last.

        `ttft_s` is from arrival to its first token; None: it has none.
        """
        self._finished.add(1, {"reason": finish})
        self._preemptions.record(preemptions)
        self._prompt_length.record(prompt_tokens)
        self._answer_length.record(tokens)
        tpot_s = decode_s / (tokens - 1) if tokens > 1 else None
        if tpot_s is not None:
            self._per_token.record(tpot_s, self._labels(operation))
        if ttft_s is not None:
            self._decode_time.record(decode_s)
            self.level.answered(ttft_s, tpot_s)

    def tokens(self, *, prompt: int, cached: int, generated: int) -> None:
        self._prompt.add(prompt)
        self._cached.add(cached)
        self._generated.add(generated)

    def tenant_tokens(
        self, tenant: str, key: str, *, prompt: int, cached: int, completion: int
    ) -> None:
        """Names that are known beforehand, so that nobody makes series without end."""
        counts = (("prompt", prompt), ("cached", cached), ("completion", completion))
        for kind, count in counts:
            self._tenants.add(count, {"tenant": tenant, "key": key, "type": kind})

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

    def plan(self, latencies: Targets) -> None:
        """What was predicted before anything was loaded."""
        self.level.planned = latencies

    def cache(self, *, block_size: int, tokens: int, dtype: str, prefix_caching: bool) -> None:
        """Blocks are told as many as make `tokens`, also where layers share them unevenly."""
        labels = {
            "block_size": str(block_size),
            "num_blocks": str(tokens // block_size),
            "dtype": dtype,
            "prefix_caching": str(prefix_caching).lower(),
        }
        self._kv_info.set(1, labels)
