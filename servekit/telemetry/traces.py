"""A request as a trace: what is noted while it runs, and the spans that are made of it afterwards.

While a request runs nothing but a few tuples is kept; spans are made where they are sent, in a
thread of its own. Names and attributes follow the OpenTelemetry conventions for generative AI; what
these have no word for starts with `servekit.`. There is no text of prompts or answers in them.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.trace.status import Status, StatusCode

Value = str | bool | int | float | tuple[str, ...]

MOST_SPANS = 64
"""Of the parts of one request; the others are events of its own span."""
MOST_EVENTS = 128
"""And no more than these; a count says how many there were."""
SCOPE = InstrumentationScope("servekit")

_ids = RandomIdGenerator()
_propagator = TraceContextTextMapPropagator()


@dataclass(frozen=True, slots=True)
class Part:
    """Something that took a request from `start` to `end`, seconds of the monotonic clock."""

    name: str
    start: float
    end: float
    attributes: Mapping[str, Value] = field(default_factory=dict)


@dataclass(slots=True)
class Trace:
    """One request. `context` is that of its own span, `parent` of the caller's, if it has one."""

    context: SpanContext
    parent: SpanContext | None
    name: str
    model: str
    start: float
    end: float = 0.0
    attributes: dict[str, Value] = field(default_factory=dict)
    parts: list[Part] = field(default_factory=list)
    error: str | None = None
    """The code of what went wrong."""
    epoch_ns: int = field(default_factory=lambda: time.time_ns() - time.monotonic_ns())
    """When the monotonic clock began."""

    @property
    def sampled(self) -> bool:
        """The caller decides; without one every request is."""
        return self.context.trace_flags.sampled

    @property
    def header(self) -> str:
        """As W3C Trace Context writes it."""
        flags = int(self.context.trace_flags)
        return f"00-{self.context.trace_id:032x}-{self.context.span_id:016x}-{flags:02x}"


def begun(name: str, model: str, start: float, headers: Mapping[str, str]) -> Trace:
    """Part of the trace that `traceparent` and `tracestate` name; where they are absent or say
    nothing, the first of a new one."""
    found = get_current_span(_propagator.extract(headers)).get_span_context()
    parent = found if found.is_valid else None
    context = SpanContext(
        trace_id=_ids.generate_trace_id() if parent is None else parent.trace_id,
        span_id=_ids.generate_span_id(),
        is_remote=False,
        trace_flags=TraceFlags(TraceFlags.SAMPLED) if parent is None else parent.trace_flags,
        trace_state=None if parent is None else parent.trace_state,
    )
    return Trace(context, parent, name, model, start)


def spans_of(trace: Trace, resource: Resource) -> list[ReadableSpan]:
    """The request first, then its parts, in the order in which they were noted."""
    shown, rest = trace.parts[:MOST_SPANS], trace.parts[MOST_SPANS:]
    attributes = dict(trace.attributes)
    if len(rest) > MOST_EVENTS:
        attributes["servekit.parts_left_out"] = len(rest) - MOST_EVENTS
    if trace.error is not None:
        attributes["error.type"] = trace.error
    whole = ReadableSpan(
        name=trace.name,
        context=trace.context,
        parent=trace.parent,
        resource=resource,
        attributes=attributes,
        events=[_event(trace, part) for part in rest[:MOST_EVENTS]],
        kind=SpanKind.SERVER,
        status=Status(StatusCode.UNSET if trace.error is None else StatusCode.ERROR),
        start_time=_at(trace, trace.start),
        end_time=_at(trace, trace.end),
        instrumentation_scope=SCOPE,
    )
    return [whole, *(_child(trace, part, resource) for part in shown)]


def _child(trace: Trace, part: Part, resource: Resource) -> ReadableSpan:
    own = trace.context
    return ReadableSpan(
        name=part.name,
        context=SpanContext(
            own.trace_id, _ids.generate_span_id(), False, own.trace_flags, own.trace_state
        ),
        parent=own,
        resource=resource,
        attributes=part.attributes,
        kind=SpanKind.INTERNAL,
        status=Status(StatusCode.UNSET),
        start_time=_at(trace, part.start),
        end_time=_at(trace, part.end),
        instrumentation_scope=SCOPE,
    )


def _event(trace: Trace, part: Part) -> Event:
    attributes = {**part.attributes, "servekit.duration_s": part.end - part.start}
    return Event(part.name, attributes, _at(trace, part.start))


def _at(trace: Trace, seconds: float) -> int:
    """Nanoseconds since 1970."""
    return trace.epoch_ns + int(seconds * 1e9)
