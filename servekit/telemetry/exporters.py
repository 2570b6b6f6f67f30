"""Where metrics go, by `telemetry.exporter`."""

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import Meter, NoOpMeter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.view import ExplicitBucketHistogramAggregation, View
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from servekit.telemetry.metrics import (
    REQUEST_DURATION,
    TIME_PER_OUTPUT_TOKEN,
    TIME_TO_FIRST_TOKEN,
)

METER = "servekit"

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


class PrometheusExporter:
    """Holds what was measured until somebody scrapes."""

    content_type = CONTENT_TYPE_PLAIN_0_0_4

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        reader = PrometheusMetricReader(
            disable_target_info=True, scope_info_enabled=False, registry=self._registry
        )
        views = [
            View(instrument_name=name, aggregation=ExplicitBucketHistogramAggregation(bounds))
            for name, bounds in BUCKETS_S.items()
        ]
        self._provider = MeterProvider(metric_readers=[reader], views=views, shutdown_on_exit=False)
        self.meter: Meter = self._provider.get_meter(METER)

    def render(self) -> bytes:
        """The Prometheus text format, version 0.0.4."""
        return generate_latest(self._registry)


class NoExporter:
    """Takes measurements and keeps none."""

    def __init__(self) -> None:
        self.meter: Meter = NoOpMeter(METER)


EXPORTERS: dict[str, type[PrometheusExporter] | type[NoExporter]] = {
    "prometheus": PrometheusExporter,
    "none": NoExporter,
}
