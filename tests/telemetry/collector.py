"""A small OpenTelemetry collector: it takes OTLP over HTTP and keeps what it was sent."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass
class Collector:
    """`answering` cleared: requests are accepted and never answered."""

    url: str = ""
    bodies: list[tuple[str, bytes]] = field(default_factory=list)
    answering: Event = field(default_factory=Event)
    reached: Event = field(default_factory=Event)
    status: int = 200
    endless: bool = False
    """Its answers have no end; `taken` are the bytes of them that went."""
    taken: int = 0

    @property
    def spans(self) -> list[Any]:
        found: list[Any] = []
        for body in self._of("/v1/traces"):
            sent = ExportTraceServiceRequest.FromString(body)
            for resource in sent.resource_spans:
                found += [span for scope in resource.scope_spans for span in scope.spans]
        return found

    @property
    def services(self) -> set[str]:
        """Names of those who sent traces."""
        return {
            one.value.string_value
            for body in self._of("/v1/traces")
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans
            for one in resource.resource.attributes
            if one.key == "service.name"
        }

    @property
    def metrics(self) -> dict[str, Any]:
        """The latest of each name."""
        found: dict[str, Any] = {}
        for body in self._of("/v1/metrics"):
            sent = ExportMetricsServiceRequest.FromString(body)
            for resource in sent.resource_metrics:
                for scope in resource.scope_metrics:
                    found |= {metric.name: metric for metric in scope.metrics}
        return found

    def _of(self, path: str) -> list[bytes]:
        return [body for sent_to, body in self.bodies if sent_to == path]


def attributes(span: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for one in span.attributes:
        kind = one.value.WhichOneof("value")
        value = getattr(one.value, kind)
        found[one.key] = (
            [each.string_value for each in value.values] if kind == "array_value" else value
        )
    return found


def handler(collector: Collector) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            collector.reached.set()
            collector.answering.wait(30)
            if collector.status == 200:
                collector.bodies.append((self.path, body))
            self.send_response(collector.status)
            self.end_headers()
            with suppress(OSError):
                while collector.endless:
                    collector.taken += self.wfile.write(bytes(1 << 20))

        def log_message(self, format: str, *args: Any) -> None:
            """Tests are quiet."""

    return Handler


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()
    collector.answering.set()
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(collector))
    server.daemon_threads = True
    collector.url = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        collector.answering.set()
        server.shutdown()
        server.server_close()
        thread.join(5)


Eventually = Callable[[Callable[[], object]], None]
