"""One trace a request to generate, where telemetry.otlp_endpoint asks for it.

`Tracing` goes around the routes: it opens the trace, with the caller's `traceparent` if there is
one, answers with `traceresponse`, and gives the trace away once the last byte has left. What the
generation knows of itself it tells by `tell`.
"""

import time
from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING

from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from servekit.telemetry.metrics import PROVIDER
from servekit.telemetry.otlp import Traces
from servekit.telemetry.traces import Part, Trace, Value, begun

if TYPE_CHECKING:
    from servekit.server.generate import Generation, Job
    from servekit.server.running import Running

CURRENT: ContextVar[Trace | None] = ContextVar("trace", default=None)
"""Of the request that this task works for; None: it is not traced."""

W3C = (b"traceparent", b"tracestate")


def tracing(traces: Traces, model: str) -> Callable[[ASGIApp], ASGIApp]:
    """The middleware that traces what is posted to /v1."""

    def around(app: ASGIApp) -> ASGIApp:
        async def traced(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != ScopeType.HTTP or scope["method"] != "POST":
                await app(scope, receive, send)
                return
            headers = {
                name.decode(): value.decode("latin-1")
                for name, value in scope["headers"]
                if name in W3C
            }
            trace = begun(f"POST {scope['path']}", model, time.monotonic(), headers)
            trace.attributes |= {"http.request.method": "POST", "url.path": scope["path"]}
            CURRENT.set(trace if trace.sampled else None)
            try:
                await app(scope, receive, answering(trace, send))
            finally:
                if trace.sampled:
                    trace.end = time.monotonic()
                    traces.give(trace)

        return traced

    return around


def answering(trace: Trace, send: Send) -> Callable[[Message], Awaitable[None]]:
    """Adds the header to the answer, and notes its status."""

    async def told(message: Message) -> None:
        if message["type"] == "http.response.start":
            status = message["status"]
            headers = list(message.get("headers", []))
            message["headers"] = [*headers, (b"traceresponse", trace.header.encode())]
            trace.attributes["http.response.status_code"] = status
            streams = any(value.startswith(b"text/event-stream") for _, value in headers)
            trace.attributes["gen_ai.request.stream"] = streams
            if status >= 400 and trace.error is None:
                trace.error = str(status)
        await send(message)

    return told


def failed(code: str) -> None:
    """The request of this task was refused, or ended with an error, of that code."""
    trace = CURRENT.get()
    if trace is not None:
        trace.error = code


def tell(generation: "Generation", error: str | None, now: float) -> None:
    """What became of a generation; `error` is the code of what ended it early."""
    trace, job = generation.trace, generation.job
    if trace is None:
        return
    trace.name = f"{job.operation} {trace.model}"
    trace.error = error
    trace.attributes |= request_attributes(job, trace.model)
    trace.attributes |= answer_attributes(generation)
    for index, one in enumerate(generation.running):
        for part in parts(one, began=job.arrived, ended=now):
            choice = {"servekit.choice": index} if job.size > 1 else {}
            trace.parts.append(replace(part, attributes={**part.attributes, **choice}))


def request_attributes(job: "Job", model: str) -> dict[str, Value]:
    """What was asked for, as far as the conventions have a name for it."""
    sampling = job.prompts[0][1]
    asked: dict[str, Value] = {
        "gen_ai.operation.name": job.operation,
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": model,
        "gen_ai.request.max_tokens": sampling.max_tokens,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
    }
    if job.n > 1:
        asked["gen_ai.request.choice.count"] = job.n
    if sampling.top_k:
        asked["gen_ai.request.top_k"] = float(sampling.top_k)
    if sampling.frequency_penalty:
        asked["gen_ai.request.frequency_penalty"] = sampling.frequency_penalty
    if sampling.presence_penalty:
        asked["gen_ai.request.presence_penalty"] = sampling.presence_penalty
    return asked


def answer_attributes(generation: "Generation") -> dict[str, Value]:
    usage, running = generation.usage(), generation.running
    found: dict[str, Value] = {
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.output_tokens": usage.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.prompt_tokens_details.cached_tokens,
        "gen_ai.response.finish_reasons": tuple(one.finish or "error" for one in running),
        "servekit.preemptions": sum(one.preemptions for one in running),
    }
    firsts = [one.first_at for one in running if one.first_at is not None]
    if firsts:
        since = min(firsts) - generation.job.arrived
        found["gen_ai.response.time_to_first_chunk"] = since
    return found


def parts(one: "Running", *, began: float, ended: float) -> Iterator[Part]:
    """Where the time of one answer went: in the queue, in chunks of its prompt, in decoding.

    While it is preempted it waits, and computes again what it lost; the decoding goes around that.
    """
    waits, since = "queue", began
    for event in one.events:
        if event.kind == "seated":
            yield Part(waits, since, event.end, {"servekit.cached_tokens": event.tokens})
            waits = ""
        elif event.kind == "chunk":
            yield Part("prefill", event.start, event.end, {"servekit.tokens": event.tokens})
        else:
            waits, since = "preempted", event.end
    if waits:
        yield Part(waits, since, ended)
    if one.first_at is not None:
        count = {"gen_ai.usage.output_tokens": one.answer.completion_tokens}
        yield Part("decode", one.first_at, one.last_at, count)
