"""Names, types, labels and buckets are a contract: the golden file."""

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from servekit.engine.messages import Step
from servekit.telemetry.catalogue import COUNTERS, GAUGES
from servekit.telemetry.exporters import EXPORTERS, PrometheusExporter
from servekit.telemetry.metrics import Metrics, Reading, Spent

GOLDEN = Path(__file__).with_name("metrics.golden.txt")


def measured(*, vllm_names: bool = False) -> PrometheusExporter:
    """Every metric, once."""
    exporter = PrometheusExporter(vllm_model="tiny" if vllm_names else None)
    read: dict[str, Reading] = {
        one.key: {"some": 7.0, "other": 8.0} if one.label else 7.0 for one in (*GAUGES, *COUNTERS)
    }
    metrics = Metrics(exporter.meter, "tiny", lambda: read)
    metrics.step(Step(rows=3, prefill_tokens=30, decode_tokens=2, seconds=0.0012, build_s=0.0002))
    metrics.inter_token.record(0.007, 2)
    metrics.prefilled(10, 0.12, Spent(queue_s=0.09, prefill_s=0.03, computing_s=0.02))
    metrics.request("chat", 0.25, None)
    metrics.request("text_completion", 0.25, "queue_full")
    metrics.first_token("chat", 0.12)
    metrics.answer("chat", "stop", tokens=5, decode_s=0.014, ttft_s=0.12, preemptions=1)
    metrics.tokens(prompt=10, cached=4, generated=5)
    metrics.tenant_tokens("acme", "laptop", prompt=10, cached=4, completion=5)
    metrics.aborted("client_disconnected", 2)
    metrics.refused("queue_full")
    metrics.cache(block_size=16, tokens=50, dtype="float32", prefix_caching=True)
    metrics.constrained("json_schema")
    metrics.grammar_tried(0.003)
    metrics.sizes("planned", weights_bytes=100, kv_tokens=50)
    metrics.sizes("measured", weights_bytes=101, kv_tokens=49)
    return exporter


def contract(text: str) -> str:
    """A line a metric: name, type, labels."""
    lines = []
    for family in text_string_to_metric_families(text):
        labels = sorted({label for sample in family.samples for label in sample.labels} - {"le"})
        lines.append(f"{family.name} {family.type} {' '.join(labels)}".rstrip())
    return "\n".join(sorted(lines)) + "\n"


def test_names_types_and_labels_are_those_of_the_golden_file() -> None:
    assert contract(measured().render().decode()) == GOLDEN.read_text()


def value(text: str, sample: str) -> float:
    (line,) = [line for line in text.splitlines() if line.startswith(sample)]
    return float(line.rsplit(" ", 1)[1])


@pytest.mark.parametrize(
    ("sample", "expected"),
    [
        ("servekit_prompt_tokens_total", 10),
        ("servekit_prompt_cached_tokens_total", 4),
        ("servekit_generation_tokens_total", 5),
        ('servekit_requests_aborted_total{reason="client_disconnected"}', 2),
        ('servekit_requests_refused_total{reason="queue_full"}', 1),
        ('servekit_weights_bytes{source="measured"}', 101),
        ('servekit_kv_tokens{source="planned"}', 50),
        ("servekit_kv_free_tokens", 7),
        ("servekit_step_seconds", 7),
        ("servekit_predicted_time_to_first_token_seconds", 7),
        ('servekit_prefix_miss_tokens_total{reason="other"}', 8),
        ('servekit_admission_refused_total{code="some"}', 7),
        ('servekit_inter_token_latency_seconds_bucket{le="0.006"}', 0),
        ('servekit_inter_token_latency_seconds_bucket{le="0.008"}', 2),
        ("servekit_inter_token_latency_seconds_sum", 0.014),
        ('servekit_step_duration_seconds_bucket{le="0.001"}', 0),
        ('servekit_step_duration_seconds_bucket{le="0.002"}', 1),
        ('servekit_batch_build_seconds_bucket{le="0.0001"}', 0),
        ("servekit_batch_build_seconds_count", 1),
        ('servekit_request_queue_time_seconds_bucket{le="0.075"}', 0),
        ('servekit_request_queue_time_seconds_bucket{le="0.1"}', 1),
        ("servekit_request_prefill_time_seconds_sum", 0.03),
        ("servekit_request_decode_time_seconds_sum", 0.014),
        ('servekit_request_preemptions_bucket{le="0.0"}', 0),
        ('servekit_request_preemptions_bucket{le="1.0"}', 1),
        ("servekit_request_generation_tokens_sum", 5),
        ('servekit_kv_info{block_size="16",dtype="float32",num_blocks="3"', 1),
    ],
)
def test_what_is_reported_is_what_is_scraped(sample: str, expected: float) -> None:
    assert value(measured().render().decode(), sample) == expected


@pytest.mark.parametrize("seconds", [0.003, 0.007])
def test_a_decode_of_three_and_of_seven_milliseconds_fall_into_different_buckets(
    seconds: float,
) -> None:
    exporter = PrometheusExporter()
    metrics = Metrics(exporter.meter, "tiny", dict)
    metrics.answer("chat", "stop", tokens=2, decode_s=seconds)
    name = "gen_ai_server_time_per_output_token_seconds_bucket"
    lines = [line for line in exporter.render().decode().splitlines() if line.startswith(name)]
    below = [line for line in lines if 'le="0.005"' in line]
    assert below[0].endswith(" 1.0") == (seconds < 0.005)


def test_a_queue_of_120_ms_is_seen_between_100_and_150() -> None:
    exporter = PrometheusExporter()
    Metrics(exporter.meter, "tiny", dict).first_token("chat", 0.12)
    text = exporter.render().decode()
    name = "gen_ai_server_time_to_first_token_seconds_bucket"
    counts = {
        bound: float(line.rsplit(" ", 1)[1])
        for bound in ("0.1", "0.15")
        for line in text.splitlines()
        if line.startswith(name) and f'le="{bound}"' in line
    }
    assert counts == {"0.1": 0.0, "0.15": 1.0}


def test_one_token_has_no_time_between_tokens() -> None:
    exporter = PrometheusExporter()
    Metrics(exporter.meter, "tiny", dict).answer("chat", "length", tokens=1, decode_s=0.0)
    assert b"time_per_output_token" not in exporter.render()


def test_without_an_engine_its_gauges_are_absent_not_zero() -> None:
    exporter = PrometheusExporter()
    Metrics(exporter.meter, "tiny", dict)
    assert b"servekit_requests_running" not in exporter.render()


def test_the_exporter_named_none_takes_everything_and_keeps_nothing() -> None:
    metrics = Metrics(EXPORTERS["none"]().meter, "tiny", dict)
    metrics.request("chat", 1.0, None)
    metrics.sizes("planned", weights_bytes=1, kv_tokens=1)


def test_what_was_reported_is_read_beside_what_the_engine_says() -> None:
    exporter = PrometheusExporter()
    metrics = Metrics(exporter.meter, "tiny", dict)
    metrics.step(Step(rows=3, prefill_tokens=30, decode_tokens=10, seconds=0.01, build_s=0.0001))
    metrics.step(Step(rows=3, prefill_tokens=0, decode_tokens=3, seconds=0.01, build_s=0.0001))
    text = exporter.render().decode()
    assert value(text, 'servekit_step_tokens_total{kind="prefill"}') == 30
    assert value(text, 'servekit_step_tokens_total{kind="decode"}') == 13
    assert value(text, "servekit_batch_prefill_ratio") == 0


def test_a_histogram_of_ours_starts_at_zero_so_that_its_first_rate_is_right() -> None:
    exporter = PrometheusExporter()
    Metrics(exporter.meter, "tiny", dict)
    assert value(exporter.render().decode(), "servekit_step_duration_seconds_count") == 0
