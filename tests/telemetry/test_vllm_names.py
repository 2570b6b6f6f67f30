"""Routers and autoscalers find the names of vLLM, with our numbers."""

from collections.abc import Callable

import pytest
from prometheus_client.parser import text_string_to_metric_families

from servekit.config.schema import Config
from servekit.telemetry.exporters import PrometheusExporter, exporter_of
from servekit.telemetry.metrics import Metrics
from servekit.telemetry.vllm import ALIASES
from tests.conftest import tiny_config
from tests.telemetry.test_metrics import contract, measured

OURS = {"model_name": "tiny", "engine": "0"}


def samples(exporter: PrometheusExporter) -> dict[str, list[tuple[dict[str, str], float]]]:
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(exporter.render().decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def test_without_the_switch_there_are_none() -> None:
    assert b"vllm:" not in measured().render()


def test_the_switch_changes_nothing_of_our_own() -> None:
    both = [
        line
        for line in contract(measured(vllm_names=True).render().decode()).splitlines()
        if not line.startswith("vllm:")
    ]
    assert "\n".join(both) + "\n" == contract(measured().render().decode())


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("vllm:num_requests_running", "servekit_requests_running"),
        ("vllm:num_requests_waiting", "servekit_requests_waiting"),
        ("vllm:kv_cache_usage_perc", "servekit_kv_usage_ratio"),
        ("vllm:gpu_cache_usage_perc", "servekit_kv_usage_ratio"),
        ("vllm:num_preemptions_total", "servekit_preemptions_total"),
        ("vllm:prompt_tokens_total", "servekit_prompt_tokens_total"),
        ("vllm:generation_tokens_total", "servekit_generation_tokens_total"),
        ("vllm:prefix_cache_queries_total", "servekit_prefix_query_tokens_total"),
        ("vllm:prefix_cache_hits_total", "servekit_prefix_hit_tokens_total"),
        ("vllm:inter_token_latency_seconds_sum", "servekit_inter_token_latency_seconds_sum"),
        ("vllm:request_queue_time_seconds_count", "servekit_request_queue_time_seconds_count"),
    ],
)
def test_an_alias_has_the_same_value(theirs: str, ours: str) -> None:
    found = samples(measured(vllm_names=True))
    ((labels, value),) = found[theirs]
    assert labels == OURS
    assert value == found[ours][0][1]
    assert value > 0


def test_what_ours_tells_apart_is_summed() -> None:
    exporter = PrometheusExporter(vllm_model="tiny")
    metrics = Metrics(exporter.meter, "tiny", dict)
    metrics.first_token("chat", 0.003)
    metrics.first_token("text_completion", 0.007)
    found = samples(exporter)
    assert found["vllm:time_to_first_token_seconds_count"] == [(OURS, 2.0)]
    buckets = {
        labels["le"]: value for labels, value in found["vllm:time_to_first_token_seconds_bucket"]
    }
    assert (buckets["0.0025"], buckets["0.005"], buckets["0.01"]) == (0.0, 1.0, 2.0)


def test_how_answers_ended_is_kept_under_their_label() -> None:
    exporter = PrometheusExporter(vllm_model="tiny")
    metrics = Metrics(exporter.meter, "tiny", dict)
    metrics.answer("chat", "stop", tokens=1, decode_s=0.0)
    metrics.answer("chat", "length", tokens=1, decode_s=0.0)
    metrics.answer("chat", "length", tokens=1, decode_s=0.0)
    found = {
        labels["finished_reason"]: value
        for labels, value in samples(exporter)["vllm:request_success_total"]
    }
    assert found == {"stop": 1.0, "length": 2.0}


def test_blocks_times_their_size_are_the_capacity() -> None:
    exporter = PrometheusExporter(vllm_model="tiny")
    metrics = Metrics(exporter.meter, "tiny", dict)
    metrics.cache(block_size=16, tokens=1024, dtype="fp8", prefix_caching=True)
    ((labels, value),) = samples(exporter)["vllm:cache_config_info"]
    assert int(labels["block_size"]) * int(labels["num_gpu_blocks"]) == 1024
    assert labels["cache_dtype"] == "fp8"
    assert value == 1.0


def test_every_alias_is_of_a_metric_that_there_is() -> None:
    families = {line.split()[0] for line in contract(measured().render().decode()).splitlines()}
    assert set(ALIASES) <= families


@pytest.fixture
def with_names() -> Callable[[bool], Config]:
    return lambda on: tiny_config(telemetry={"vllm_names": on})


@pytest.mark.parametrize("on", [True, False])
def test_the_configuration_switches_them(with_names: Callable[[bool], Config], on: bool) -> None:
    exporter = exporter_of(with_names(on))
    assert isinstance(exporter, PrometheusExporter)
    Metrics(exporter.meter, "tiny", lambda: {"running": 3.0})
    line = b'vllm:num_requests_running{engine="0",model_name="tiny"} 3.0'
    assert (line in exporter.render()) == on


def test_names_at_a_page_that_is_not_there_are_refused() -> None:
    with pytest.raises(ValueError, match=r"telemetry\.exporter=prometheus"):
        tiny_config(telemetry={"exporter": "none", "vllm_names": True})
