"""Reports and comparisons of whole runs."""

import json
import math
from dataclasses import fields, replace
from pathlib import Path

import pytest

from servekit.config.compose import load
from servekit.config.schema import Config
from servekit.simulator.compare import COMPARED, Option, clear_of_all, compare
from servekit.simulator.measure import Measured, is_good, measure, window
from servekit.simulator.pages.compare_page import effort_of
from servekit.simulator.pages.verdict import verdict
from servekit.simulator.record import Comparison, Report
from servekit.simulator.report import report
from servekit.simulator.run import simulate
from servekit.simulator.samples import Sample


def configured(*words: str) -> Config:
    return load(["+recipe=chat_llama8b", *words], None).config


@pytest.fixture(scope="module")
def compared() -> Comparison:
    few = ("scheduler.max_num_seqs=8", "scheduler.max_num_waiting=100000")
    options = [
        Option(name, configured(f"scheduler={name}", *few)) for name in ("static", "continuous")
    ]
    return compare("scheduler", options, requests=300, seeds=(1, 2))


@pytest.fixture(scope="module")
def light() -> Report:
    runs = [simulate(configured(), requests=250, seed=seed) for seed in (1, 2)]
    return report("light", runs)


def test_both_options_meet_the_same_requests(compared: Comparison) -> None:
    static, continuous = compared.runs
    asked = [[(r.at, r.prompt_tokens, r.asked_tokens) for r in run.served] for run in compared.runs]
    assert asked[0] == asked[1]
    assert static.served != continuous.served


def test_static_batching_leaves_seats_empty_while_others_wait(compared: Comparison) -> None:
    static, continuous = compared.reports
    assert static.idle_seat_share.value > 0.3
    assert continuous.idle_seat_share.value < 0.05
    gain = {d.key: d for d in compared.differences[1]}["output_tokens_per_s"]
    assert gain.is_clear
    assert gain.relative > 0.3
    assert gain.estimate.low < gain.estimate.value < gain.estimate.high


def test_the_first_differs_from_nothing_and_the_others_in_every_number(
    compared: Comparison,
) -> None:
    assert compared.differences[0] == ()
    assert tuple(d.key for d in compared.differences[1]) == COMPARED


def test_an_option_does_not_differ_from_itself() -> None:
    config = configured()
    same = compare("name", [Option("a", config), Option("b", config)], requests=80, seeds=(1,))
    assert not any(d.is_clear for d in same.differences[1])
    assert all(
        d.estimate.value in (0.0,) or math.isnan(d.estimate.value) for d in same.differences[1]
    )


def seeds_of(*values: float, noise: float = 0.0) -> list[Measured]:
    """A seed each, with batches around its value."""
    found = []
    for value in values:
        batches = [value + noise * (place % 3 - 1) for place in range(10)]
        found.append(Measured(0.0, 1.0, samples={key: Sample(value, batches) for key in COMPARED}))
    return found


def test_the_best_is_told_from_the_second_best_though_the_first_is_far_off() -> None:
    """How much slower the first is varies by more than the two good ones lie apart."""
    slow = seeds_of(100.0, 300.0, noise=60.0)
    good, better = seeds_of(10.0, 11.0), seeds_of(9.0, 10.1)
    three = [slow, good, better]
    assert clear_of_all(("slow", "good", "better"), three, -1)["ttft.p95"] == "better"
    assert clear_of_all(("slow", "good", "better"), three, 1)["ttft.p95"] == "slow"
    near = seeds_of(9.5, 11.2, noise=0.5)
    assert clear_of_all(("slow", "good", "near"), [slow, good, near], -1) == {}
    unknown = seeds_of(math.nan, math.nan)
    assert clear_of_all(("good", "unknown"), [good, unknown], -1) == {}


def test_more_than_can_be_served_is_called_saturated(compared: Comparison, light: Report) -> None:
    static, _ = compared.reports
    assert static.saturated
    assert static.queue_growth_per_s.low > 0
    assert static.served_per_s.value < 0.8 * static.offered_per_s.value
    assert not light.saturated


def test_a_system_that_refuses_is_saturated_though_its_queue_does_not_grow() -> None:
    words = ("scheduler.max_num_seqs=2", "scheduler.max_num_waiting=4")
    full = report("full", [simulate(configured(*words), requests=200, seed=1)])
    assert full.saturated
    assert full.refused["queue_full"] == full.counts["refused"] > 0
    refused, late = full.refused_share.value, 1 - full.attained_share.value
    assert refused > 0.5
    assert full.goodput_share.value == pytest.approx((1 - refused) * (1 - late))


def test_the_share_that_is_refused_is_of_the_same_time_as_goodput() -> None:
    """At first there is room for everybody."""
    words = ("workload.request_rate=60", "slo.admission=enforce", "workload.output_tokens=400")
    runs = [simulate(configured(*words), requests=900, seed=seed) for seed in (1, 2)]
    found, seeds = report("enforced", runs), [measure(run) for run in runs]
    assert all(seed.start > 0 for seed in seeds)
    counted = [[one.end == "refused" for one in seed.counted] for seed in seeds]
    share = sum(sum(each) / len(each) for each in counted) / 2
    assert found.refused_share.value == pytest.approx(share)
    assert found.refused_share.value > 1.1 * found.counts["refused"] / 1800
    assert f"{100 * share:.1f} %" in verdict(found).why


def test_what_comes_and_does_not_go_is_there_at_the_end() -> None:
    run = simulate(configured("workload.request_rate=40"), requests=600, seed=1)
    seen, rates = measure(run), report("over", [run])
    gone = rates.served_per_s.value + rates.refused_per_s.value + rates.left_per_s.value
    present = [
        sum(one.at < at < (one.finished_at or at) for one in run.served)
        for at in (seen.start, seen.end)
    ]
    stay = (rates.offered_per_s.value - gone) * (seen.end - seen.start)
    assert stay == pytest.approx(present[1] - present[0], abs=2)


def test_rates_and_levels_agree_with_each_other(light: Report) -> None:
    """Little's law: as many run as come a second, times the seconds that each of them runs."""
    inside = light.e2e.mean.value - light.queue.mean.value
    assert light.running.value == pytest.approx(light.offered_per_s.value * inside, rel=0.15)
    steps = light.busy_share.value / light.step_s.value
    made = light.batch_decodes.value * steps
    assert made < light.output_tokens_per_s.value < 1.1 * made
    assert light.ttft.p50.value < light.ttft.p95.value < light.ttft.p99.value
    assert light.ttft.p50.low < light.ttft.p50.value < light.ttft.p50.high


def test_targets_are_those_of_the_slo_and_goodput_keeps_to_them() -> None:
    runs = [simulate(configured("slo.ttft_ms=35"), requests=200, seed=1)]
    strict = report("strict", runs)
    assert [(t.name, t.target_s, t.percentile) for t in strict.targets] == [
        ("ttft", 0.035, 95.0),
        ("tpot", 0.05, 95.0),
    ]
    assert strict.targets[0].value.value > 0.035
    seen = measure(runs[0])
    late = [one for one in seen.counted if one.ttft_s is not None and one.ttft_s > 0.035]
    assert late
    assert not any(is_good(one, runs[0].config.slo) for one in late)
    assert strict.goodput_share.value == pytest.approx(1 - len(late) / len(seen.counted))


def test_the_start_is_left_out_until_the_system_has_filled() -> None:
    """Answers of 600 tokens: it takes as long as one of them until as many run as ever will."""
    words = ("workload.output_tokens=600", "workload.output_cv=0", "workload.prompt_tokens=100")
    run = simulate(configured(*words), requests=600, seed=1)
    start, end = window(run)
    answer = sum(one.e2e_s for one in run.served) / len(run.served)
    assert 0.4 * answer < start < 0.5 * end
    assert end == run.served[-1].at


def test_requests_that_all_come_at_once_have_no_warm_up() -> None:
    words = ("workload.arrivals=closed", "workload.concurrency=50")
    run = simulate(configured(*words), requests=50, seed=1)
    assert {one.at for one in run.served} == {0.0}
    assert window(run) == (0.0, run.seconds)


def test_a_burst_is_not_taken_for_the_warm_up_of_a_straggler(tmp_path: Path) -> None:
    trace = tmp_path / "burst.jsonl"
    times = [0.0] * 200 + [60.0]
    rows = [{"arrival_s": at, "input_tokens": 1000, "output_tokens": 200} for at in times]
    trace.write_text("\n".join(map(json.dumps, rows)))
    run = simulate(configured(f"workload.trace={trace}"), requests=201, seed=1)
    assert window(run) == (0.0, 60.0)
    found = report("burst", [run])
    assert found.ttft.n == 201
    assert found.targets[0].late > 100
    assert verdict(found).word == "misses"


def test_a_trace_that_is_replayed_thrice_alike_is_no_more_than_once(tmp_path: Path) -> None:
    trace = tmp_path / "few.jsonl"
    rows = [{"arrival_s": at, "input_tokens": 99, "output_tokens": 9} for at in range(30)]
    trace.write_text("\n".join(map(json.dumps, rows)))
    config = configured(f"workload.trace={trace}")
    found = report("few", [simulate(config, requests=30, seed=seed) for seed in (1, 2, 3)])
    assert (found.seeds, found.alike, found.counts["finished"]) == ((1,), 2, 30)
    said = verdict(found)
    assert said.word == "too_few"
    assert said.why.endswith("takes 59: a longer trace would")
    other = configured(f"workload.trace={trace}", "scheduler.max_num_seqs=1")
    both = compare(
        "seats", [Option("many", config), Option("one", other)], requests=30, seeds=(1, 2)
    )
    assert [(each.seeds, each.alike) for each in both.reports] == [((1,), 1), ((1,), 1)]
    assert "30 requests through each, one seed (1 more changed nothing)" in effort_of(both)


def test_half_of_the_requests_count_wherever_they_come() -> None:
    run = simulate(configured(), requests=200, seed=1)
    run.served = [one._replace(at=one.at**0.2) for one in run.served]
    assert measure(run).seen["ttft"] >= 100


def test_who_left_was_not_answered_within_the_target() -> None:
    words = ("scheduler.max_num_seqs=2", "workload.patience_s=2", "slo.ttft_ms=1500")
    found = report("left", [simulate(configured(*words), requests=200, seed=1)])
    target = found.targets[0]
    assert found.counts["left"] > 100
    assert target.value.value == pytest.approx(2.0, abs=0.1)
    assert verdict(replace(found, saturated=False)).word == "misses"


def test_what_the_cache_found_and_missed_is_of_the_same_time_and_adds_up_to_all() -> None:
    """At first nothing is there to be found."""
    words = ("workload.turns=4", "workload.think_s=0.5", "workload.prompt_tokens=2000")
    runs = [simulate(configured(*words), requests=300, seed=seed) for seed in (1, 2)]
    seeds = [measure(run) for run in runs]
    assert all(seed.start > 0 for seed in seeds)
    found = report("turns", runs)
    assert found.hit_share.value + sum(found.misses.values()) == pytest.approx(1, abs=1e-12)
    for run, seed in zip(runs, seeds, strict=True):
        seated = [one for one in run.served if seed.start <= (one.admitted_at or 0.0) <= seed.end]
        hits = sum(one.cached_tokens for one in seated) / sum(one.prompt_tokens for one in seated)
        assert seed.samples["hit_share"].whole == pytest.approx(hits)


def test_classes_are_told_apart_and_add_up_to_all() -> None:
    words = ("workload.priorities={0: 1, 5: 3}", "workload.batch_share=0.3", "scheduler=priority")
    full = ("scheduler.max_num_seqs=8", "workload.request_rate=20", "workload.patience_s=20")
    runs = [simulate(configured(*words, *full), requests=300, seed=seed) for seed in (1, 2)]
    found = report("classes", runs)
    seen = [(each.priority, each.slo_class) for each in found.classes]
    assert seen == [(0, "interactive"), (0, "batch"), (5, "interactive"), (5, "batch")]
    counted = sum(len(measure(run).counted) for run in runs)
    assert sum(each.requests for each in found.classes) == counted
    assert sum(each.ttft.n for each in found.classes) == found.ttft.n
    assert found.classes[0].queue.p95.value < 0.2 * found.classes[2].queue.p95.value
    assert all(each.requests >= each.finished + each.left for each in found.classes)


def test_of_one_class_the_numbers_are_those_of_all(light: Report) -> None:
    (each,) = light.classes
    assert (each.priority, each.slo_class) == (0, "interactive")
    assert (each.ttft, each.queue) == (light.ttft, light.queue)


@pytest.mark.parametrize("weights", ["{a: 1}", "{a: 3, b: 1}"])
def test_output_of_tenants_adds_up_to_that_of_all(weights: str) -> None:
    runs = [
        simulate(configured(f"workload.tenants={weights}"), requests=150, seed=seed)
        for seed in (1, 2)
    ]
    found = report("tenants", runs)
    each = [tenant.output_tokens_per_s for tenant in found.tenants]
    assert sum(each) == pytest.approx(found.output_tokens_per_s.value, rel=1e-9)
    total = sum(tenant.served_per_s for tenant in found.tenants)
    assert total == pytest.approx(found.total_tokens_per_s.value, rel=1e-9)
    if len(each) == 2:
        assert 2 < each[0] / each[1] < 4.5


def test_a_tenant_that_gets_more_than_its_weight_shows() -> None:
    words = ("workload.tenants={a: 3, b: 1}", "scheduler.tenant_weights={a: 1, b: 1}")
    shared = report("shared", [simulate(configured(*words), requests=300, seed=s) for s in (1, 2)])
    assert [tenant.name for tenant in shared.tenants] == ["a", "b"]
    assert shared.fairness is not None
    assert 2 < shared.fairness.value < 4.5


def test_curves_cover_the_whole_run(light: Report) -> None:
    series = light.series
    lengths = {len(getattr(series, field.name)) for field in fields(series)}
    assert lengths == {120}
    assert max(series.running) > 0
    assert all(0 <= share <= 1 for share in series.kv_share)
