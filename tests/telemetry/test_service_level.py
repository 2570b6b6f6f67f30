"""Percentiles of late against promises and plans, and who waits for whom."""

import pytest

from servekit.telemetry.exporters import PrometheusExporter
from servekit.telemetry.metrics import Metrics, Spent
from servekit.telemetry.service_level import LATEST, ServiceLevel, Targets, at


@pytest.mark.parametrize(
    ("percentile", "expected"), [(50.0, 51.0), (95.0, 96.0), (99.0, 100.0), (99.9, 100.0)]
)
def test_a_percentile_is_a_value_that_was_seen(percentile: float, expected: float) -> None:
    assert at([float(n) for n in range(100, 0, -1)], percentile) == expected


def test_headroom_is_the_share_of_the_target_that_is_left() -> None:
    level = ServiceLevel(Targets(ttft_s=0.4, tpot_s=0.02, percentile=50.0))
    level.answered(0.1, 0.03)
    assert level.headroom() == {"ttft": pytest.approx(0.75), "tpot": pytest.approx(-0.5)}


def test_headroom_is_of_targets_that_are_set() -> None:
    level = ServiceLevel(Targets(ttft_s=0.4))
    assert level.headroom() == {}
    level.answered(0.4, 9.0)
    assert level.headroom() == {"ttft": 0.0}
    assert level.outcomes() == {"met": 1, "missed": 0}


def test_an_answer_misses_the_slo_by_either_target() -> None:
    level = ServiceLevel(Targets(ttft_s=0.4, tpot_s=0.02))
    for ttft_s, tpot_s in ((0.1, 0.01), (0.5, 0.01), (0.1, 0.03), (0.4, None)):
        level.answered(ttft_s, tpot_s)
    assert level.outcomes() == {"met": 2, "missed": 2}


def test_without_a_promise_none_is_counted() -> None:
    level = ServiceLevel(Targets())
    level.answered(100.0, 100.0)
    assert level.outcomes() == {}


def test_only_the_latest_answers_count() -> None:
    level = ServiceLevel(Targets(ttft_s=1.0))
    for _ in range(LATEST):
        level.answered(10.0, None)
    for _ in range(LATEST):
        level.answered(0.5, None)
    assert level.headroom() == {"ttft": 0.5}


def test_long_prompts_that_wait_as_many_times_their_own_work_as_short_ones_are_treated_alike() -> (
    None
):
    level = ServiceLevel(Targets())
    level.prompts.extend([(10, 2.0), (1000, 2.0)] * 10)
    assert level.long_to_short() == 1.0
    level.prompts.extend([(1000, 6.0)] * 20)
    ratio = level.long_to_short()
    assert ratio is not None
    assert ratio > 1.5


def test_prompts_of_one_length_are_not_compared() -> None:
    level = ServiceLevel(Targets())
    level.prompts.extend([(10, 2.0)] * 40)
    assert level.long_to_short() is None


def test_planned_stands_beside_measured() -> None:
    exporter = PrometheusExporter()
    metrics = Metrics(exporter.meter, "tiny", dict, Targets(ttft_s=0.5, percentile=95.0))
    metrics.plan(Targets.of_ms(250.0, None, 95.0))
    metrics.prefilled(10, 0.4, Spent(queue_s=0.3, prefill_s=0.1, computing_s=0.1))
    metrics.answer("chat", "stop", tokens=3, decode_s=0.02, ttft_s=0.4)
    text = exporter.render().decode()
    assert 'servekit_ttft_percentile_seconds{source="planned"} 0.25' in text
    assert 'servekit_ttft_percentile_seconds{source="measured"} 0.4' in text
    assert 'servekit_tpot_percentile_seconds{source="measured"} 0.01' in text
    assert 'servekit_tpot_percentile_seconds{source="planned"}' not in text
    assert 'servekit_slo_answers_total{outcome="met"} 1.0' in text
