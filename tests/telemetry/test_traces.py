"""Traces reach a collector; a collector that is slow or gone is nobody's trouble."""

import time
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.resources import Resource

from servekit.telemetry.exporters import exporter_of
from servekit.telemetry.metrics import Metrics
from servekit.telemetry.otlp import SentTraces, resource_of
from servekit.telemetry.traces import MOST_EVENTS, MOST_SPANS, Part, Trace, begun, spans_of
from tests.conftest import tiny_config
from tests.telemetry.collector import Collector, attributes, collecting

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
HERE = Resource.get_empty()


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


def trace(headers: dict[str, str] | None = None, parts: int = 0) -> Trace:
    made = begun("chat tiny", "tiny", 10.0, headers or {})
    made.end = 12.0
    made.parts = [Part("prefill", 10.5, 11.0, {"servekit.tokens": 5})] * parts
    return made


def sent(collector: Collector, *traces: Trace) -> SentTraces:
    """All of them, once they have arrived."""
    sender = SentTraces(collector.url, resource_of("tiny"), every_s=0.01)
    for one in traces:
        sender.give(one)
    sender.close(10.0)
    return sender


def test_a_trace_arrives_as_a_span_with_children(collector: Collector) -> None:
    one = trace(parts=2)
    one.attributes["gen_ai.response.finish_reasons"] = ("stop", "length")
    sender = sent(collector, one)
    root, *children = collector.spans
    assert root.name == "chat tiny"
    assert attributes(root)["gen_ai.response.finish_reasons"] == ["stop", "length"]
    assert root.kind == 2  # SERVER
    assert root.parent_span_id == b""
    assert [child.parent_span_id for child in children] == [root.span_id] * 2
    assert {span.trace_id for span in collector.spans} == {root.trace_id}
    assert len({span.span_id for span in collector.spans}) == 3
    assert root.end_time_unix_nano - root.start_time_unix_nano == 2 * 10**9
    assert children[0].start_time_unix_nano - root.start_time_unix_nano == 10**9 // 2
    assert attributes(children[0]) == {"servekit.tokens": 5}
    assert collector.services == {"tiny"}
    assert sender.counts() == {"sent": 1, "dropped": 0, "failed": 0}


def test_times_are_those_of_the_calendar(collector: Collector) -> None:
    one = begun("chat tiny", "tiny", time.monotonic(), {})
    one.end = time.monotonic()
    before = time.time_ns()
    sent(collector, one)
    assert abs(collector.spans[0].start_time_unix_nano - before) < 60 * 10**9


def test_the_caller_s_trace_goes_on(collector: Collector) -> None:
    one = trace({"traceparent": CALLER, "tracestate": "vendor=1"})
    sent(collector, one)
    (root,) = collector.spans
    assert root.trace_id.hex() == "0af7651916cd43dd8448eb211c80319c"
    assert root.parent_span_id.hex() == "b7ad6b7169203331"
    assert root.trace_state == "vendor=1"
    assert one.header.startswith("00-0af7651916cd43dd8448eb211c80319c-")
    assert one.header.endswith("-01")
    assert "b7ad6b7169203331" not in one.header


@pytest.mark.parametrize(
    "header",
    ["", "garbage", "00-" + "0" * 32 + "-b7ad6b7169203331-01", CALLER[:-3], "ff" + CALLER[2:]],
)
def test_a_traceparent_that_says_nothing_begins_a_new_trace(header: str) -> None:
    one = trace({"traceparent": header})
    assert one.parent is None
    assert one.sampled
    assert one.context.is_valid


def test_the_caller_decides_whether_a_trace_is_kept() -> None:
    assert not trace({"traceparent": CALLER[:-1] + "0"}).sampled
    assert trace({"traceparent": CALLER}).sampled


def test_parts_beyond_some_are_events_and_beyond_more_are_counted() -> None:
    root, *children = spans_of(trace(parts=MOST_SPANS + MOST_EVENTS + 5), HERE)
    assert len(children) == MOST_SPANS
    assert len(root.events) == MOST_EVENTS
    assert root.attributes is not None
    assert root.attributes["servekit.parts_left_out"] == 5


def test_an_error_is_the_status_and_the_type_of_the_span(collector: Collector) -> None:
    one = trace()
    one.error = "queue_full"
    sent(collector, one)
    (root,) = collector.spans
    assert attributes(root)["error.type"] == "queue_full"
    assert root.status.code == 2  # ERROR


def test_a_slow_collector_makes_nobody_wait_and_what_is_too_much_is_dropped(
    collector: Collector,
) -> None:
    collector.answering.clear()
    sender = SentTraces(collector.url, HERE, most_waiting=8, every_s=0.001)
    sender.give(trace())
    assert collector.reached.wait(10)
    for _ in range(500):
        sender.give(trace())
    assert sender.counts()["dropped"] >= 500 - 8
    sender.close(0.01)


def test_a_collector_that_is_gone_is_counted() -> None:
    with collecting() as collector:
        pass
    sender = SentTraces(collector.url, HERE, every_s=0.001)
    sender.give(trace())
    sender.close(20.0)
    assert sender.counts() == {"sent": 0, "dropped": 0, "failed": 1}


def test_a_collector_that_refuses_is_counted(collector: Collector) -> None:
    collector.status = 400
    assert sent(collector, trace()).counts()["failed"] == 1


def test_an_answer_without_an_end_is_not_read(collector: Collector) -> None:
    collector.endless = True
    assert sent(collector, trace()).counts()["sent"] == 1
    collector.endless = False
    assert collector.taken < 64 << 20  # what fits into buffers on the way


def test_metrics_are_sent_to_the_collector_too(collector: Collector) -> None:
    exporter = exporter_of(tiny_config(telemetry={"otlp_endpoint": collector.url}))
    metrics = Metrics(exporter.meter, "tiny", lambda: {"running": 3.0})
    metrics.inter_token.record(0.007, 2)
    metrics.first_token("chat", 0.12)
    exporter.close(10.0)
    found = collector.metrics
    assert found["servekit_requests_running"].gauge.data_points[0].as_double == 3.0
    (ours,) = found["servekit_inter_token_latency"].histogram.data_points
    assert (ours.count, ours.sum) == (2, pytest.approx(0.014))
    assert (ours.min, ours.max) == (0.007, 0.007)
    assert sum(ours.bucket_counts) == 2
    (theirs,) = found["gen_ai.server.time_to_first_token"].histogram.data_points
    assert theirs.count == 1


def test_without_an_endpoint_there_is_no_sender() -> None:
    assert exporter_of(tiny_config()).traces is None


def test_closing_does_not_wait_for_a_collector_that_hangs(collector: Collector) -> None:
    exporter = exporter_of(
        tiny_config(telemetry={"exporter": "none", "otlp_endpoint": collector.url})
    )
    Metrics(exporter.meter, "tiny", dict)
    collector.answering.clear()
    assert exporter.traces is not None
    exporter.traces.give(trace())
    exporter.close(0.05)
    assert collector.bodies == []
