"""The fixed point of one replica, with times that can be added up by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servekit.planner.prediction.curves import batch_points, chunks
from servekit.planner.prediction.steady import first
from tests.planner.fakes import FakeStep, fake_replica

RATES = st.floats(0.01, 40.0)


def test_a_request_alone_takes_a_step_of_one_for_each_token() -> None:
    state = fake_replica(rate=1e-6).steady(1e-6)
    assert state is not None
    assert state.tpot == pytest.approx(0.0101, rel=1e-4)


@given(RATES)
def test_as_many_run_as_arrive_while_one_is_written(rate: float) -> None:
    state = fake_replica(seats=64).steady(rate)
    if state is not None:
        assert state.running == pytest.approx(rate * 50 * state.tpot, rel=1e-4)


def test_prompts_take_their_share_of_every_second() -> None:
    state = fake_replica(FakeStep(request=0.0, token=0.001), rate=2.0).steady(2.0)
    assert state is not None
    assert state.tpot == pytest.approx(0.010 / (1 - 2 * 100 * 0.001))


def test_guesses_that_hold_shorten_the_time_of_a_token() -> None:
    plain = fake_replica(FakeStep(request=0.0)).steady(1.0)
    guessed = fake_replica(FakeStep(request=0.0, tokens_per_step=2.0)).steady(1.0)
    assert plain is not None
    assert guessed is not None
    assert guessed.tpot == pytest.approx(plain.tpot / 2)


def test_with_all_seats_taken_each_request_costs_its_prompt_and_its_part_of_the_steps() -> None:
    engine = fake_replica(seats=16)
    step = 0.010 + 16 * 0.0001
    assert engine.full().rate == pytest.approx(1 / (100 * 0.00001 + 50 * step / 16))


def test_where_answers_are_one_token_only_prompts_limit_the_rate() -> None:
    engine = fake_replica(output=1, prompt=100, budget=200)
    full_step = 0.010 + 200 * 0.00001
    assert engine.full().rate == pytest.approx(200 / 100 / full_step, rel=1e-3)


def test_there_is_no_steady_state_above_the_full_rate() -> None:
    engine = fake_replica()
    full = engine.full().rate
    assert engine.steady(full * 0.999) is not None
    assert engine.steady(full * 1.001) is None


@given(RATES, RATES)
def test_more_requests_a_second_never_make_tokens_faster(one: float, other: float) -> None:
    engine = fake_replica(seats=64)
    low, high = (engine.steady(rate) for rate in sorted((one, other)))
    if high is not None:
        assert low is not None
        assert low.tpot <= high.tpot
        assert low.running <= high.running


def test_nearly_all_output_comes_from_fewer_requests_than_there_are_seats() -> None:
    engine = fake_replica(FakeStep(base=0.001, request=0.001), seats=64)
    full = engine.full().rate
    count = engine.saturation(full)
    assert engine.served(count, count) >= 0.95 * full > engine.served(count - 1, count - 1)
    assert count < 64


def test_a_static_batch_keeps_seats_for_the_longest_of_its_answers() -> None:
    static = fake_replica(static=True, output_cv=0.8)
    assert static.held(16) > fake_replica(output_cv=0.8).held(16) == 50
    assert static.full().rate < fake_replica(output_cv=0.8).full().rate


def test_pipeline_stages_work_on_as_many_batches_at_once() -> None:
    one = fake_replica(FakeStep(), output=1)
    two = fake_replica(FakeStep(pipeline=2), output=1)
    assert two.full().rate == pytest.approx(2 * one.full().rate, rel=1e-3)


def test_a_prompt_now_and_then_holds_all_pipeline_batches_up_for_its_whole_way() -> None:
    two = fake_replica(FakeStep(pipeline=2), prompt=200)
    rare = two.state(0.01, 0.005)
    each = two.curves.at(two.curves.added, rare.seen)
    assert two.added(rare) == pytest.approx(2 * each, rel=1e-6)


def test_prompts_in_every_pipeline_batch_hold_up_for_one_stage_each() -> None:
    step = FakeStep(pipeline=2, base=1.0, token=0.0001)
    two = fake_replica(step, prompt=200, seats=64, budget=4096)
    often = two.state(30.0, 60.0)
    each = two.curves.at(two.curves.added, often.seen)
    assert each < two.added(often) < 1.5 * each


def test_a_batch_that_slows_itself_varies_more() -> None:
    slow = fake_replica(FakeStep(base=0.001, request=0.001))
    steady = fake_replica(FakeStep(base=0.1, request=0.0))
    assert slow.slowing(slow.state(1.0, 8.0)) > 0.5
    assert steady.slowing(steady.state(1.0, 8.0)) == pytest.approx(0, abs=0.01)


def test_a_prompt_fills_whole_steps_and_then_a_part_of_one() -> None:
    assert chunks(250, 10, 100) == [(2, 100, 60), (1, 50, 210)]


def test_a_prompt_that_fills_its_steps_leaves_no_empty_one() -> None:
    assert chunks(200, 0, 100) == [(2, 100, 50)]


@given(st.floats(1, 5000), st.floats(1, 600))
def test_chunks_lose_no_token(tokens: float, most: float) -> None:
    assert sum(count * size for count, size, _ in chunks(tokens, 0, most)) == pytest.approx(tokens)


@pytest.mark.parametrize(
    ("seats", "points"),
    [(0, (0,)), (1, (0, 1)), (4, (0, 1, 1.5, 2, 3, 4)), (5, (0, 1, 1.5, 2, 3, 4, 5))],
)
def test_points_end_at_the_seats(seats: int, points: tuple[float, ...]) -> None:
    assert batch_points(seats) == points


def test_the_first_crossing_is_found_between_the_points() -> None:
    assert first(lambda x: x >= 1.3, (0.0, 1.0, 2.0)) == pytest.approx(1.3)
    assert first(lambda x: x >= 0, (0.0, 1.0)) == 0
    assert first(lambda x: False, (0.0, 1.0)) is None
