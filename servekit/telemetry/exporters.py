"""Where metrics go, by `telemetry`: to whoever scrapes /metrics, to a collector, or nowhere."""

import time
from collections.abc import Sequence
from threading import Thread

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import NoOpMeter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    MetricExportResult,
    MetricReader,
    MetricsData,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.metrics.view import ExplicitBucketHistogramAggregation, View
from opentelemetry.sdk.resources import Resource
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from servekit.config.schema import Config
from servekit.telemetry.catalogue import (
    REQUEST_DURATION,
    TIME_PER_OUTPUT_TOKEN,
    TIME_TO_FIRST_TOKEN,
)
from servekit.telemetry.histogram import Histogram, Instruments, with_own
from servekit.telemetry.otlp import TIMEOUT_S, SentTraces, StatusOnly, resource_of
from servekit.telemetry.vllm import WithVllmNames

METER = "servekit"
PUSH_EVERY_MS = 15_000.0

BUCKETS_S: dict[str, tuple[float, ...]] = {
    REQUEST_DURATION: (
        *(0.001, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12),
        *(10.24, 20.48, 40.96, 81.92, 163.84, 327.68),
    ),
    TIME_TO_FIRST_TOKEN: (
        *(0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.12, 0.15, 0.2),
        *(0.25, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
    ),
    TIME_PER_OUTPUT_TOKEN: (
        *(0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.008, 0.01, 0.0125, 0.015, 0.02, 0.025),
        *(0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5),
    ),
}
"""The convention's bounds, with finer ones: its own put a 3 ms and a 7 ms decode in one bucket, and
say nothing about a queue of 120 ms."""


class ScrapedReader(PrometheusMetricReader):
    """What the SDK has and our own histograms, whenever the registry is read."""

    def __init__(self, registry: CollectorRegistry, own: Sequence[Histogram]) -> None:
        super().__init__(disable_target_info=True, scope_info_enabled=False, registry=registry)
        self._own = own

    def _receive_metrics(
        self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: object
    ) -> None:
        super()._receive_metrics(with_own(metrics_data, self._own, METER), timeout_millis)


class PushedMetrics(OTLPMetricExporter):
    """The same, for a collector."""

    def __init__(self, endpoint: str, own: Sequence[Histogram]) -> None:
        super().__init__(
            endpoint=f"{endpoint.rstrip('/')}/v1/metrics", timeout=TIMEOUT_S, session=StatusOnly()
        )
        self._own = own

    def export(
        self, metrics_data: MetricsData, timeout_millis: float | None = None, **kwargs: object
    ) -> MetricExportResult:
        return super().export(with_own(metrics_data, self._own, METER), timeout_millis or 10_000)


class NoExporter:
    """Takes measurements; they go nowhere but to a collector, where there is one."""

    def __init__(self, otlp_endpoint: str | None = None, resource: Resource | None = None) -> None:
        own: list[Histogram] = []
        readers = list(self._readers(own))
        resource = resource or Resource.get_empty()
        self.traces: SentTraces | None = None
        """Where traces go; None: nobody wants any."""
        self._pushing: MetricReader | None = None
        if otlp_endpoint is not None:
            self.traces = SentTraces(otlp_endpoint, resource)
            pushed = PushedMetrics(otlp_endpoint, own)
            self._pushing = PeriodicExportingMetricReader(
                pushed, export_interval_millis=PUSH_EVERY_MS
            )
            readers.append(self._pushing)
        if not readers:
            self.meter = Instruments(NoOpMeter(METER), own)
            return
        views = [
            View(instrument_name=name, aggregation=ExplicitBucketHistogramAggregation(bounds))
            for name, bounds in BUCKETS_S.items()
        ]
        provider = MeterProvider(
            metric_readers=readers,
            views=views,
            shutdown_on_exit=False,
            resource=resource,
        )
        self.meter = Instruments(provider.get_meter(METER), own)

    def _readers(self, own: Sequence[Histogram]) -> Sequence[MetricReader]:
        return ()

    def close(self, timeout_s: float) -> None:
        """Tells the collector, if there is one, the last of it, but takes no longer than that."""
        if self.traces is None or self._pushing is None:
            return
        # it collects once more, and then no longer by itself
        last = Thread(target=self._pushing.shutdown, name="last metrics", daemon=True)
        last.start()
        deadline = time.monotonic() + timeout_s
        self.traces.close(timeout_s)
        last.join(max(0.0, deadline - time.monotonic()))


class PrometheusExporter(NoExporter):
    """Holds what was measured until somebody scrapes."""

    content_type = CONTENT_TYPE_PLAIN_0_0_4

    def __init__(
        self,
        otlp_endpoint: str | None = None,
        resource: Resource | None = None,
        *,
        vllm_model: str | None = None,
    ) -> None:
        """With `vllm_model` also under the names of vLLM, of a model of that name."""
        self._registry = CollectorRegistry()
        self._shown = self._registry
        super().__init__(otlp_endpoint, resource)
        if vllm_model is not None:
            self._shown = CollectorRegistry()
            self._shown.register(WithVllmNames(self._registry, vllm_model))

    def _readers(self, own: Sequence[Histogram]) -> Sequence[MetricReader]:
        return [ScrapedReader(self._registry, own)]

    def render(self) -> bytes:
        """The Prometheus text format, version 0.0.4."""
        return generate_latest(self._shown)


EXPORTERS: dict[str, type[PrometheusExporter] | type[NoExporter]] = {
    "prometheus": PrometheusExporter,
    "none": NoExporter,
}


def exporter_of(config: Config) -> PrometheusExporter | NoExporter:
    telemetry = config.telemetry
    endpoint, resource = telemetry.otlp_endpoint, resource_of(config.name)
    if telemetry.exporter == "none":
        return NoExporter(endpoint, resource)
    model = config.model.name if telemetry.vllm_names else None
    return PrometheusExporter(endpoint, resource, vllm_model=model)
