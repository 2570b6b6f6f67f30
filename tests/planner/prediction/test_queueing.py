"""Waits and quantiles against published tables and closed forms."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servekit.planner.prediction.queueing import (
    delay_of_many,
    delay_of_one,
    erlang_c,
    followers,
    lognormal_points,
    lognormal_quantile,
    residual_quantile,
    wait_quantile,
    who_wait,
)


@pytest.mark.parametrize(
    ("utilisation", "service_cv", "wait"),
    [
        (0.5, 1, 1.00),
        (0.9, 1, 9.00),
        (0.95, 1, 19.0),
        (0.5, 0, 0.50),
        (0.8, 0, 2.00),
        (0.5, 2, 2.50),
        (0.9, 2, 22.5),
    ],
)
def test_one_server_waits_as_pollaczek_and_khinchine_say(
    utilisation: float, service_cv: float, wait: float
) -> None:
    delay = delay_of_one(utilisation, 1.0, arrival_cv=1, service_cv=service_cv)
    assert utilisation * delay == pytest.approx(wait)


@given(st.floats(0.01, 0.99))
def test_of_poisson_arrivals_as_many_wait_as_the_server_is_busy(utilisation: float) -> None:
    assert who_wait(utilisation, 1.0) == utilisation
    assert who_wait(utilisation, 1.0 + 1e-6) == pytest.approx(utilisation, abs=1e-4)


@pytest.mark.parametrize(("arrival_cv", "waiting"), [(0.0, 0.2032), (1.0, 0.5), (3.0, 0.8800)])
def test_arrivals_in_bursts_wait_for_each_other(arrival_cv: float, waiting: float) -> None:
    assert who_wait(0.5, arrival_cv) == pytest.approx(waiting, abs=1e-3)


@given(st.floats(0.001, 1000))
def test_as_many_poisson_arrivals_follow_one_as_come_anyway(mean: float) -> None:
    assert followers(mean, 1.0) == pytest.approx(mean)


def test_in_bursts_of_cv_3_four_more_follow_at_last() -> None:
    assert followers(1e4, 3.0) - 1e4 == pytest.approx((3**2 - 1) / 2, rel=1e-3)


@pytest.mark.parametrize(
    ("utilisation", "waiting"),
    [(0.5, 0.059), (0.7, 0.271), (0.8, 0.458), (0.9, 0.702), (0.95, 0.844)],
)
def test_eight_servers_are_all_busy_as_often_as_erlang_says(
    utilisation: float, waiting: float
) -> None:
    assert erlang_c(8, 8 * utilisation) == pytest.approx(waiting, abs=5e-4)


def test_the_only_server_is_busy_as_often_as_it_works() -> None:
    assert erlang_c(1, 0.3) == pytest.approx(0.3)


def test_servers_without_a_load_are_never_busy() -> None:
    assert erlang_c(4, 0) == 0


def test_servers_with_too_much_load_are_always_busy() -> None:
    assert erlang_c(4, 4) == erlang_c(4, 9) == 1


@given(st.integers(1, 300), st.floats(0, 1), st.floats(0, 1))
def test_more_load_finds_all_servers_busy_no_less_often(
    servers: int, one: float, other: float
) -> None:
    low, high = sorted((one, other))
    assert erlang_c(servers, servers * low) <= erlang_c(servers, servers * high) + 1e-11


def test_one_of_many_servers_waits_as_a_single_one_does() -> None:
    many = delay_of_many(1, 0.6, 2.0, arrival_cv=1, service_cv=1)
    assert many == pytest.approx(delay_of_one(0.6, 2.0, arrival_cv=1, service_cv=1))


def test_a_full_server_is_waited_for_without_end() -> None:
    assert math.isinf(delay_of_one(1.0, 1.0, arrival_cv=1, service_cv=1))
    assert math.isinf(delay_of_many(3, 3.0, 1.0, arrival_cv=1, service_cv=1))


def test_the_quantile_of_an_exponential_wait_leaves_the_share_beyond_it() -> None:
    wait = wait_quantile(delay=2.0, waiting=0.5, probability=0.95)
    assert 0.5 * math.exp(-wait / 2.0) == pytest.approx(0.05)


def test_a_quantile_within_those_who_do_not_wait_is_no_wait() -> None:
    assert wait_quantile(delay=2.0, waiting=0.05, probability=0.95) == 0


def test_half_of_those_who_meet_a_period_wait_for_less_than_half_of_it() -> None:
    assert residual_quantile(10.0, busy=1.0, probability=0.5) == 5
    assert residual_quantile(10.0, busy=0.5, probability=0.75) == 5
    assert residual_quantile(10.0, busy=0.5, probability=0.5) == 0


def test_a_lognormal_without_spread_is_its_mean() -> None:
    assert lognormal_quantile(100, 0, 0.99) == 100
    assert lognormal_points(100, 0) == ((100, 1.0),)


def test_the_median_of_a_lognormal_is_its_mean_over_the_root_of_one_plus_its_squared_cv() -> None:
    assert lognormal_quantile(100, 0.75, 0.5) == pytest.approx(80)


def test_one_sigma_above_the_median_is_a_factor() -> None:
    sigma = math.sqrt(math.log(2))
    high = lognormal_quantile(100, 1, 0.8413447)
    assert high / lognormal_quantile(100, 1, 0.5) == pytest.approx(math.exp(sigma), rel=1e-5)


@pytest.mark.parametrize("cv", [0.3, 0.9, 1.5])
def test_points_of_a_lognormal_have_its_mean_and_nearly_its_second_moment(cv: float) -> None:
    points = lognormal_points(100, cv)
    assert sum(w for _, w in points) == pytest.approx(1)
    assert sum(v * w for v, w in points) == pytest.approx(100)
    assert sum(v * v * w for v, w in points) == pytest.approx(1e4 * (1 + cv**2), rel=0.25)
