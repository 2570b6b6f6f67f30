"""Causes of a change of simulated times, which closed forms tell only in part."""

from fractions import Fraction
from typing import Any

import pytest

from servekit.planner.diff.attribution import Attribution, Cause
from servekit.planner.diff.difference import band_of, chance_of, paired_half
from servekit.planner.diff.shares import SIMULATED, told
from servekit.planner.metrics import Metric
from tests.planner.diff_pairs import pair

BUSY = "+recipe=chat_llama8b workload.request_rate=12 scheduler.max_num_seqs=64"


def attribution(*names: str, idle: tuple[str, ...] = (), **by: dict[str, int]) -> Attribution:
    return Attribution(
        causes=tuple(Cause(name, frozenset({name})) for name in names),
        idle=idle,
        because=(),
        by={key: {name: Fraction(n) for name, n in shares.items()} for key, shares in by.items()},
    )


def simulated(value: float, *parts: float | None, runs: int = 100, chance: float = 0.0) -> Metric:
    return Metric("ttft_p95_ms", value, 0.0001, "ms", "lower", "speed", chance, parts, runs)


def test_one_cause_has_the_whole_change() -> None:
    shared = attribution("kv.dtype", ttft={"kv.dtype": 3})
    assert told(shared, ("ok", "ok"), {"ttft": 5.0}).by == {"ttft": {"kv.dtype": 5}}


def test_what_closed_forms_do_not_tell_apart_is_a_rest_and_all_sum_to_the_change() -> None:
    shared = attribution("kv.dtype", "hardware", ttft={"kv.dtype": 3, "hardware": -1})
    by = told(shared, ("ok", "ok"), {"ttft": 5.0}).by["ttft"]
    assert by == {"kv.dtype": 3, "hardware": -1, SIMULATED: 3}


def test_what_moves_a_run_and_no_closed_form_is_not_idle() -> None:
    shared = attribution("scheduler.order", "name", idle=("scheduler.order", "name"), ttft={})
    assert told(shared, ("ok", "ok"), {"ttft": 5.0}).idle == ("name",)
    assert told(shared, ("ok", "ok"), {"ttft": 5.0}).by["ttft"] == {"scheduler.order": 5}
    assert told(shared, ("ok", "ok"), {"ttft": 0.0}).idle == ("scheduler.order", "name")


@pytest.mark.parametrize(
    ("verdicts", "because"), [(("ok", "misses_slo"), ("kv.dtype",)), (("ok", "ok"), ())]
)
def test_a_verdict_of_simulated_times_is_because_of_the_one_cause(
    verdicts: tuple[str, str], because: tuple[str, ...]
) -> None:
    shared = attribution("kv.dtype", ttft={})
    assert told(shared, verdicts, {"ttft": 5.0}).because == because


def test_luck_that_both_sides_had_falls_out() -> None:
    before, after = simulated(10, 5, 10, 15, chance=8), simulated(12, 7, 12, 17, chance=8)
    assert chance_of(before, after, ["kv.dtype"]) == 0
    assert chance_of(before, after, ["workload.request_rate"]) == pytest.approx(8 * 2**0.5)


def test_runs_of_other_lengths_are_independent() -> None:
    before, after = simulated(10, 5, 15, chance=3), simulated(12, 7, 17, chance=4, runs=200)
    assert chance_of(before, after, []) == pytest.approx(5)


def test_parts_that_saw_nothing_are_left_out_of_the_pairs() -> None:
    with_gap, without = (
        paired_half([1, None, 3, 7], [2, 9, 5, 7]),
        paired_half([1, 3, 7], [2, 5, 7]),
    )
    assert with_gap == without > 0


def test_chance_widens_the_band_of_a_difference() -> None:
    before, after = simulated(10, 5, 15), simulated(20, 30, 10)
    assert band_of(before, after, []) > 100


def found(words: str) -> Any:
    return pair(BUSY, f"{BUSY} {words}")


def test_an_order_of_requests_is_a_cause_that_only_a_run_sees() -> None:
    bursts = f"{BUSY} workload.arrival_cv=4"
    made = pair(bursts, f"{bursts} scheduler.order=shortest_prefill")
    change = made.change("ttft_p50_ms")
    assert change.delta
    assert change.by == {"scheduler.order": Fraction(change.delta)}
    assert made.idle == ()
    assert found("scheduler.max_num_waiting=999").idle == ("scheduler.max_num_waiting",)


def test_shares_of_simulated_times_sum_to_the_change() -> None:
    made = found("kv.dtype=fp8 scheduler.max_num_batched_tokens=512 server.port=9000")
    change = made.change("ttft_p95_ms")
    assert change.delta
    assert float(sum(change.by.values())) == pytest.approx(change.delta)
    assert SIMULATED in change.by
    assert made.idle == ("server.port",)
