"""Latency and throughput under a declared workload."""

import math
from collections.abc import Iterator
from dataclasses import astuple
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servekit.config.compose import load
from servekit.config.schema import Config
from servekit.planner.prediction import predict as predict_module
from servekit.planner.prediction import steady
from servekit.planner.prediction.predict import itl, predict, tpot, ttft
from servekit.planner.prediction.prediction import Percentiles, Prediction
from servekit.spec.kv import kv_layout
from tests.conftest import tiny_config
from tests.planner.fakes import GPU_RECIPES, FakeStep, fake_layout, fake_replica


@pytest.fixture
def step(monkeypatch: pytest.MonkeyPatch) -> FakeStep:
    known = FakeStep()
    monkeypatch.setattr(steady, "step_model", lambda config: known)
    monkeypatch.setattr(predict_module, "roofline", lambda config: FakeStep(base=0.005))
    return known


def predicted(layout: Any = None, **groups: dict[str, Any]) -> Prediction:
    config = tiny_config(**groups)
    return predict(config, layout or kv_layout(config, 0)[0])


def times(percentiles: Percentiles) -> tuple[float | None, ...]:
    return astuple(percentiles)


QUIET = {"request_rate": 1e-6, "prompt_cv": 0.0, "output_cv": 0.0}


@pytest.mark.usefixtures("step")
def test_a_prompt_alone_takes_the_steps_of_its_chunks() -> None:
    found = predicted(workload={**QUIET, "prompt_tokens": 100})
    assert found.ttft_ms.p50 == pytest.approx(2 * 10 + 100 * 0.01)


@pytest.mark.usefixtures("step")
def test_a_request_alone_is_given_a_token_a_step() -> None:
    found = predicted(workload=QUIET)
    assert times(found.itl_ms) == pytest.approx((10.1, 10.1, 10.1))
    assert found.tpot_ms.p50 == pytest.approx(10.1, rel=1e-3)


@pytest.mark.usefixtures("step")
def test_what_is_put_out_at_full_load_is_the_answers_of_the_highest_rate() -> None:
    found = predicted(workload={"output_tokens": 40}, parallelism={"data": 2})
    assert found.output_tokens_per_s == pytest.approx(40 * found.capacity_per_s)


@pytest.mark.usefixtures("step")
def test_two_replicas_put_out_twice_as_much() -> None:
    one, two = predicted(), predicted(parallelism={"data": 2})
    assert two.output_tokens_per_s == pytest.approx(2 * one.output_tokens_per_s)
    assert two.goodput_per_s == pytest.approx(2 * one.goodput_per_s)
    assert (two.seats, two.saturation_concurrency) == (12, 2 * one.saturation_concurrency)


@pytest.mark.usefixtures("step")
def test_the_cache_leaves_fewer_seats_than_the_scheduler() -> None:
    found = predicted(fake_layout(num_blocks=35), scheduler={"max_num_seqs": 64})
    assert found.seats == 35 // 10


@pytest.mark.usefixtures("step")
def test_too_many_requests_have_no_first_token_in_time_but_a_time_between_tokens() -> None:
    found = predicted(workload={"request_rate": 1000.0})
    assert not found.stable
    assert times(found.ttft_ms) == (None, None, None)
    assert found.tpot_ms.p50 == pytest.approx(6 / 49 / found.capacity_per_s * 1000)
    assert found.utilization == pytest.approx(1000 / found.capacity_per_s)


@pytest.mark.usefixtures("step")
def test_without_a_block_nothing_is_served() -> None:
    found = predicted(fake_layout(num_blocks=0))
    assert times(found.ttft_ms) == times(found.tpot_ms) == times(found.itl_ms) == (None,) * 3
    assert (found.seats, found.output_tokens_per_s, found.goodput_per_s) == (0, 0, 0)
    assert found.utilization is None


@pytest.mark.usefixtures("step")
def test_without_targets_every_rate_that_is_served_is_good() -> None:
    found = predicted()
    assert found.goodput_per_s == found.capacity_per_s


@pytest.mark.usefixtures("step")
def test_goodput_is_the_rate_at_which_a_target_is_just_met() -> None:
    targets = {"ttft_ms": 60.0, "tpot_ms": None}
    rate = predicted(slo=targets).goodput_per_s
    at = predicted(slo=targets, workload={"request_rate": rate})
    above = predicted(slo=targets, workload={"request_rate": rate * 1.01})
    assert at.at_slo.ttft_ms == pytest.approx(60, rel=1e-3)
    assert above.at_slo.ttft_ms is None or above.at_slo.ttft_ms > 60


@pytest.mark.usefixtures("step")
def test_a_target_below_a_single_step_leaves_no_goodput() -> None:
    assert predicted(slo={"tpot_ms": 1.0}).goodput_per_s == 0


@pytest.mark.usefixtures("step")
def test_the_percentile_of_the_targets_is_the_one_that_is_asked_for() -> None:
    found = predicted(slo={"percentile": 99.0})
    assert (found.at_slo.ttft_ms, found.at_slo.tpot_ms) == (found.ttft_ms.p99, found.tpot_ms.p99)


@pytest.mark.usefixtures("step")
def test_bounds_are_one_request_on_ideal_hardware() -> None:
    found = predicted(workload={"prompt_cv": 0.0}).bounds
    assert found.ttft_ms == pytest.approx(2 * 5 + 100 * 0.01)
    assert found.tpot_ms == pytest.approx(5 + 0.1)


@pytest.mark.usefixtures("step")
def test_a_longer_prompt_at_a_higher_percentile_raises_the_bound() -> None:
    high, low = (predicted(slo={"percentile": p}).bounds.prompt_tokens for p in (99.0, 50.0))
    assert high > 100 > low


def test_a_step_with_a_prompt_is_met_by_few_gaps_at_a_low_rate_and_by_most_at_a_high_one() -> None:
    engine = fake_replica(FakeStep(token=0.0001), prompt=200, seats=64)
    quiet, busy = engine.steady(0.5), engine.steady(engine.full().rate * 0.98)
    assert quiet is not None
    assert busy is not None
    assert itl(engine, quiet, 0.95) == pytest.approx(0.0102, rel=0.02)
    assert itl(engine, busy, 0.95) > 0.03


RATES = st.floats(0.01, 30.0)


@given(RATES, RATES, st.sampled_from([0.5, 0.95, 0.99]), st.booleans())
def test_times_do_not_fall_as_the_rate_grows(
    one: float, other: float, share: float, static: bool
) -> None:
    engine = fake_replica(
        prompt_cv=0.8, output_cv=0.6, arrival_cv=1.3, seats=64, budget=128, static=static
    )
    low, high = (engine.steady(rate) for rate in sorted((one, other)))
    if low is not None and high is not None:
        for metric in (ttft, tpot, itl):
            assert metric(engine, low, share) <= metric(engine, high, share) * (1 + 1e-6)


@pytest.mark.parametrize("what", ["prompt", "output"])
@given(sizes=st.tuples(st.floats(2, 2000), st.floats(2, 2000)), share=st.sampled_from([0.5, 0.99]))
def test_times_do_not_fall_as_requests_grow(
    what: str, sizes: tuple[float, float], share: float
) -> None:
    at = []
    for size in sorted(sizes):
        engine = fake_replica(FakeStep(cached=1e-9), **{what: size, "prompt_cv": 0.5})
        state = engine.steady(0.5)
        at.append(
            (math.inf, math.inf)
            if state is None
            else (ttft(engine, state, share), engine.steady(0.5) and state.tpot)
        )
    small, large = at
    assert small[0] <= large[0] * (1 + 1e-6)
    assert small[1] <= large[1] * (1 + 1e-6)


def all_numbers(value: Any) -> Iterator[float]:
    if isinstance(value, tuple):
        for each in value:
            yield from all_numbers(each)
    elif isinstance(value, (int, float)):
        yield value


@settings(deadline=None)
@given(
    rate=st.floats(1e-6, 1e6),
    arrival_cv=st.floats(0, 20),
    prompt=st.integers(2, 100_000),
    cvs=st.tuples(st.floats(0, 5), st.floats(0, 5)),
    output=st.integers(1, 100_000),
    prefix=st.integers(0, 1),
    seats=st.integers(1, 300),
    spare=st.integers(0, 300),
    tokens=st.integers(1, 3000),
    data=st.integers(1, 3),
    guesses=st.integers(0, 5),
    acceptance=st.floats(0, 1),
    policy=st.sampled_from(["continuous", "static"]),
    percentile=st.floats(50, 99.9),
    target=st.sampled_from([None, 1.0, 1000.0]),
)
def test_any_workload_is_given_finite_numbers_that_agree(
    rate: float,
    arrival_cv: float,
    prompt: int,
    cvs: tuple[float, float],
    output: int,
    prefix: int,
    seats: int,
    spare: int,
    tokens: int,
    data: int,
    guesses: int,
    acceptance: float,
    policy: str,
    percentile: float,
    target: float | None,
) -> None:
    config = tiny_config(
        workload={
            "request_rate": rate,
            "arrival_cv": arrival_cv,
            "prompt_tokens": prompt,
            "prompt_cv": cvs[0],
            "output_tokens": output,
            "output_cv": cvs[1],
            "shared_prefix_tokens": prefix * (prompt - 1),
        },
        scheduler={
            "policy": policy,
            "max_num_seqs": seats,
            "max_num_batched_tokens": seats + spare,
        },
        kv={"capacity_tokens": tokens},
        parallelism={"data": data},
        speculative={
            "method": "ngram" if guesses else "none",
            "tokens": guesses,
            "acceptance": acceptance,
        },
        slo={"percentile": percentile, "ttft_ms": target, "tpot_ms": target},
    )
    found = predict(config, kv_layout(config, 0)[0])
    assert all(math.isfinite(number) for number in all_numbers(astuple(found)))
    assert found.stable == (found.ttft_ms.p50 is not None)
    assert 0 <= found.goodput_per_s <= found.capacity_per_s
    assert 0 <= found.running <= found.seats <= seats * data
    assert 0 <= found.saturation_concurrency <= found.seats
    for values in (found.ttft_ms, found.tpot_ms, found.itl_ms):
        known = [value for value in times(values) if value is not None]
        assert known == sorted(known)


def of_recipe(name: str, *words: str) -> tuple[Config, Prediction]:
    config = load([f"+recipe={name}", *words]).config
    # about what the weights leave; the ledger says it exactly
    return config, predict(config, kv_layout(config, 20 * 2**30)[0])


@pytest.mark.parametrize("recipe", GPU_RECIPES)
def test_no_prediction_is_below_what_ideal_hardware_takes(recipe: str) -> None:
    _, found = of_recipe(recipe)
    assert found.at_slo.ttft_ms is not None
    assert found.at_slo.tpot_ms is not None
    assert found.at_slo.ttft_ms > found.bounds.ttft_ms
    assert found.at_slo.tpot_ms > found.bounds.tpot_ms


def test_an_8b_model_on_an_h100_puts_out_thousands_of_tokens_a_second() -> None:
    # published throughputs of batches with 1,024 tokens in and 512 out
    config = load(["+recipe=batch_llama8b"]).config
    found = predict(config, kv_layout(config, 58 * 2**30)[0])
    assert 4000 < found.output_tokens_per_s < 13000


def test_the_roofline_of_an_8b_model_on_an_l4_is_above_fifty_milliseconds_a_token() -> None:
    _, found = of_recipe("chat_llama8b", "hardware=l4", "workload.request_rate=0.01")
    assert found.bounds.tpot_ms > 50.03


def burst_times(arrival_cv: float) -> tuple[float, float]:
    engine = fake_replica(arrival_cv=arrival_cv, output=5.0, output_cv=1.0)
    state = engine.steady(1.0)
    assert state is not None
    return ttft(engine, state, 0.95), tpot(engine, state, 0.95)


def test_bursts_make_first_tokens_and_further_ones_later_even_at_little_load() -> None:
    calm, bursts = burst_times(1.0), burst_times(3.0)
    assert bursts[0] > 1.2 * calm[0]
    assert bursts[1] > calm[1]


def test_short_answers_among_long_ones_bear_their_interruptions_alone() -> None:
    spread = []
    for output_cv in (0.0, 1.0):
        step = FakeStep(token=0.0001)
        engine = fake_replica(step, prompt=2000.0, budget=65_536, output_cv=output_cv, limit=99_999)
        state = engine.steady(1.0)
        assert state is not None
        spread.append(tpot(engine, state, 0.95) / tpot(engine, state, 0.5))
    assert spread[1] > 1.2 * spread[0]
