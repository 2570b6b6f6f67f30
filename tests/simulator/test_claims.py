"""What each policy promises, in small: `python -m benchmarks.policies` tries the same in large.

Beside most of them stands what happens without the policy, so that a setting in which anything
would do is noticed.
"""

import pytest

from benchmarks import claims
from benchmarks.claims import ENDLESS, run_of
from servekit.simulator.record import Served

SMALL = ("model.max_model_len=4096", "workload.prompt_tokens=200", "workload.output_tokens=60")


@pytest.mark.parametrize("spread", [1, 2])
def test_continuous_batching_gives_several_times_the_output_of_static(spread: int) -> None:
    found = claims.gap(
        *(*SMALL, "workload.arrivals=closed", "workload.concurrency=48"),
        *("scheduler.max_num_seqs=16", "scheduler.reserve=greedy"),
        f"workload.output_cv={spread}",
        requests=400,
    )
    assert found.ratio >= 2.0
    assert found.static.idle_seat_share.value >= 0.4
    assert found.continuous.idle_seat_share.value <= 0.05
    assert found.explained


@pytest.mark.parametrize("slo", ["chat", "none"])
def test_a_long_prompt_at_most_doubles_the_time_between_tokens_of_others(slo: str) -> None:
    others = claims.decoders(16, 800)
    found = claims.beside_long(others, "scheduler=slo_aware", f"slo={slo}", at=1.5)
    assert found.ratio <= 2.0
    assert found.long.end == "finished"
    without = claims.beside_long(others, "scheduler=continuous", "slo=none", at=1.5, tokens=30_000)
    assert without.ratio >= 10.0


def test_who_comes_while_a_long_prompt_is_computed_is_answered_in_time() -> None:
    others = claims.passing(4.0, 100, 8.0)
    found = claims.beside_long(others, "scheduler=slo_aware", "slo=chat", at=2.0, tokens=60_000)
    assert found.ratio <= 2.0
    assert found.ttft_p95_s <= 1.0
    assert found.long.end == "finished"
    without = claims.beside_long(others, "scheduler=continuous", "slo=chat", at=2.0, tokens=60_000)
    assert without.ttft_p95_s > 1.0


def test_a_full_cache_preempts_next_to_nobody_and_serves_more_than_the_worst_case() -> None:
    setting = (
        *(*SMALL, "workload.output_cv=2", "workload.arrivals=closed", "workload.concurrency=60"),
        *("kv.capacity_tokens=12000", ENDLESS),
    )
    predicted, greedy, worst = (
        claims.full(*setting, f"scheduler.reserve={reserve}", requests=requests)
        for reserve, requests in (("predicted", 400), ("greedy", 200), ("worst_case", 60))
    )
    assert predicted.kv_share >= 0.85
    assert predicted.preempted < 0.01
    assert predicted.wasted < 0.02
    assert predicted.output_per_s >= 2.0 * worst.output_per_s
    assert greedy.preempted >= 0.05


def is_high(one: Served) -> bool:
    return one.priority == 0 and one.slo_class == "interactive"


FLOODED = (*(*SMALL, "slo=chat", "scheduler.max_num_seqs=8", "workload.request_rate=30", ENDLESS),)
"""About twice what is served."""


@pytest.mark.parametrize(
    ("scheduler", "crowd"),
    [
        ("priority", "workload.priorities={0: 10, 5: 90}"),
        ("two_pool", "workload.batch_share=0.9"),
    ],
)
def test_a_high_class_hardly_waits_and_the_low_one_goes_on(scheduler: str, crowd: str) -> None:
    short, long = (
        claims.classes(run_of(*FLOODED, f"scheduler={scheduler}", crowd, requests=n), is_high)
        for n in (150, 400)
    )
    assert short.high_p99_s <= 1.0
    assert long.high_p99_s <= 1.0
    assert long.low_least >= 0.3
    plain = claims.classes(run_of(*FLOODED, crowd, requests=400), is_high)
    assert plain.high_p99_s >= 3.0
    total = long.high_per_s + long.low_per_s
    assert total >= 0.85 * (plain.high_per_s + plain.low_per_s)


@pytest.mark.parametrize(
    ("scheduler", "crowd"),
    [
        ("priority", "workload.priorities={0: 90, 1: 10}"),
        ("two_pool", "workload.batch_share=0.5"),
    ],
)
def test_a_low_class_is_not_starved_by_a_high_one_that_is_more_than_fits(
    scheduler: str, crowd: str
) -> None:
    run = run_of(*FLOODED, "scheduler.aging_s=2", f"scheduler={scheduler}", crowd, requests=500)
    found = claims.classes(run, is_high)
    assert found.low_per_s >= 0.05 * (found.low_per_s + found.high_per_s)


@pytest.mark.parametrize("scheduler", ["slo_aware", "continuous"])
@pytest.mark.parametrize("arrivals", ["open", "bursts"])
def test_at_three_times_too_much_those_let_in_are_served_in_time(
    scheduler: str, arrivals: str
) -> None:
    setting = (
        *(*SMALL, f"scheduler={scheduler}", "scheduler.max_num_seqs=16"),
        *(f"workload.arrivals={arrivals}", "workload.burst_size=8"),
    )
    found = claims.overload(
        *setting, "workload.request_rate=85", "slo.admission=enforce", requests=1200
    )
    assert found.in_time >= 0.95
    assert found.retry_after_s >= 1.0
    best = max(
        claims.overload(*setting, f"workload.request_rate={rate}", requests=250).goodput_per_s
        for rate in (22, 28)
    )
    assert found.goodput_per_s >= 0.9 * best
    all_in = claims.overload(*setting, "workload.request_rate=85", ENDLESS, requests=500)
    assert all_in.refused == 0
    assert all_in.in_time < 0.5


@pytest.mark.parametrize("weights", ["{}", "{greedy: 1, modest: 2}"])
@pytest.mark.parametrize("times", [10, 2])
def test_a_greedy_tenant_takes_nothing_of_what_is_due_to_a_modest_one(
    weights: str, times: int
) -> None:
    def found(scheduler: str) -> claims.Shares:
        run = run_of(
            *(*SMALL, f"scheduler={scheduler}", "scheduler.max_num_seqs=8", ENDLESS),
            *("workload.request_rate=45", f"workload.tenants={{greedy: {times}, modest: 1}}"),
            f"scheduler.tenant_weights={weights}",
            requests=800,
        )
        return claims.shares(run)

    assert found("fair").ratio >= 0.9
    assert found("continuous").ratio < 0.75


@pytest.mark.parametrize("scheduler", ["continuous", "slo_aware", "static"])
def test_prompts_that_are_alike_and_come_together_are_computed_once(scheduler: str) -> None:
    computed, different = claims.computed_once(
        *("workload.output_tokens=10", f"scheduler={scheduler}"), burst=16, prompt=500, bursts=3
    )
    assert computed <= 1.02 * different
