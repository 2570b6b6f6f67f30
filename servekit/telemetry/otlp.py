"""Traces to a collector, by OTLP over HTTP, from a thread that nobody waits for.

Whoever has a trace gives it and goes on. When the collector is slow or gone, traces wait, up to a
number; what comes then is dropped and counted.
"""

import logging
import threading
from collections.abc import Mapping
from queue import Empty, Full, Queue
from typing import Any, Protocol

import requests
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from servekit import __version__
from servekit.telemetry.traces import Trace, spans_of

TIMEOUT_S = 5.0
"""In which a collector has to take what it is sent, several tries together."""
MOST_WAITING = 2048
MOST_AT_ONCE = 128
EVERY_S = 1.0
"""So long the first of those that are sent together waits for others."""


# of a collector that is gone one line a try is enough: not one for each time it is tried again
logging.getLogger("opentelemetry.exporter.otlp").setLevel(logging.ERROR)


def resource_of(deployment: str) -> Resource:
    """OTEL_RESOURCE_ATTRIBUTES may say more."""
    return Resource.create({"service.name": deployment, "service.version": __version__})


class StatusOnly(requests.Session):
    """Reads no bodies of answers: a collector's status says enough, and a body may be endless."""

    def send(self, request: requests.PreparedRequest, **options: Any) -> requests.Response:
        answer = super().send(request, **{**options, "stream": True})
        answer._content = b""
        answer.close()
        return answer


class Traces(Protocol):
    """Where traces of requests go."""

    def give(self, trace: Trace) -> None: ...


class SentTraces:
    """To the collector at `endpoint`. OTEL_EXPORTER_OTLP_HEADERS may say who sends them."""

    def __init__(
        self,
        endpoint: str,
        resource: Resource,
        *,
        most_waiting: int = MOST_WAITING,
        every_s: float = EVERY_S,
    ) -> None:
        self._resource = resource
        self._exporter: SpanExporter = OTLPSpanExporter(
            endpoint=f"{endpoint.rstrip('/')}/v1/traces", timeout=TIMEOUT_S, session=StatusOnly()
        )
        self._waiting: Queue[Trace | None] = Queue(most_waiting)
        self._every_s = every_s
        self._counts = {"sent": 0, "dropped": 0, "failed": 0}
        self._closed = threading.Event()
        self._sender = threading.Thread(target=self._send_all, name="traces", daemon=True)
        self._sender.start()

    def give(self, trace: Trace) -> None:
        """Never waits."""
        try:
            self._waiting.put_nowait(trace)
        except Full:
            self._counts["dropped"] += 1

    def counts(self) -> Mapping[str, float]:
        """Of traces: sent, dropped as too many waited, failed to be taken."""
        return dict(self._counts)

    def close(self, timeout_s: float) -> None:
        """Sends what waits, but takes no longer than that; what is not sent by then is lost."""
        self._closed.set()
        self.wake()
        self._sender.join(timeout_s)
        self._exporter.shutdown()

    def wake(self) -> None:
        """What waits is sent now."""
        try:
            self._waiting.put_nowait(None)
        except Full:
            """The sender has enough to do."""

    def _send_all(self) -> None:
        while batch := self._next():
            spans = [span for trace in batch for span in spans_of(trace, self._resource)]
            result = self._exporter.export(spans)
            outcome = "sent" if result is SpanExportResult.SUCCESS else "failed"
            self._counts[outcome] += len(batch)

    def _next(self) -> list[Trace]:
        """Some traces; none once it is closed and there are no more."""
        batch: list[Trace] = []
        while len(batch) < MOST_AT_ONCE:
            try:
                trace = self._waiting.get(timeout=self._patience(batch))
            except Empty:
                break
            if trace is not None:
                batch.append(trace)
            elif batch:
                break
        return batch

    def _patience(self, batch: list[Trace]) -> float | None:
        """For ever for a first one, unless it is closed."""
        if self._closed.is_set():
            return 0.0
        return self._every_s if batch else None
