"""Percentiles, intervals, warm-up and growth: against numpy, and against chance."""

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servekit.simulator.statistics import (
    chance,
    estimate,
    fewest,
    growth,
    percentile,
    student,
    warm_up,
    weighted_percentiles,
)

VALUES = st.lists(st.floats(0, 1e6), min_size=1, max_size=60)
SHARES = st.floats(0, 1)


@given(VALUES, SHARES)
def test_a_percentile_is_that_of_numpy(values: list[float], share: float) -> None:
    expected = float(np.percentile(values, 100 * share))
    assert percentile(sorted(values), share) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@given(st.lists(st.tuples(st.floats(0, 1e6), st.integers(1, 5)), min_size=1), SHARES)
def test_a_weighted_percentile_is_that_of_every_value_written_out(
    pairs: list[tuple[float, int]], share: float
) -> None:
    values, counts = zip(*pairs, strict=True)
    whole = sorted(value for value, count in pairs for _ in range(count))
    (found,) = weighted_percentiles(values, counts, [share])
    assert found == pytest.approx(percentile(whole, share), rel=1e-9, abs=1e-9)


def test_nothing_has_no_percentile() -> None:
    assert math.isnan(percentile([], 0.5))
    assert math.isnan(weighted_percentiles([], [], [0.5])[0])


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(1, 12.706), (2, 4.303), (3, 3.182), (9, 2.262), (29, 2.045)]
)
def test_student_is_that_of_the_tables(freedom: int, quantile: float) -> None:
    assert student(freedom) == pytest.approx(quantile, rel=2e-3)


def test_an_interval_holds_the_truth_in_95_of_100_runs() -> None:
    chance = random.Random(7)
    held, runs = 0, 600
    for _ in range(runs):
        batches = [[chance.expovariate(1.0) for _ in range(50)] for _ in range(10)]
        means = [sum(batch) / len(batch) for batch in batches]
        found = estimate([sum(means) / 10], means)
        held += found.low <= 1.0 <= found.high
    assert 0.91 <= held / runs <= 0.98, f"{held} of {runs} with seed 7"


def test_one_batch_gives_no_interval() -> None:
    found = estimate([3.0], [3.0])
    assert found.value == 3.0
    assert math.isnan(found.low)
    assert math.isnan(found.high)


def test_the_warm_up_ends_where_the_values_have_settled() -> None:
    chance = random.Random(3)
    rising = [min(1.0, index / 60) * 20 + chance.gauss(0, 1) for index in range(400)]
    assert 40 <= warm_up(rising) <= 80


def test_values_that_are_settled_from_the_start_lose_next_to_nothing() -> None:
    chance = random.Random(4)
    assert warm_up([chance.gauss(10, 1) for _ in range(400)]) <= 60


@pytest.mark.parametrize(("share", "count"), [(0.5, 5), (0.9, 29), (0.95, 59), (0.99, 299)])
def test_a_percentile_takes_as_many_as_make_one_beyond_it_sure(share: float, count: int) -> None:
    assert fewest(share) == count
    assert chance(1, count, share) >= 0.95 > chance(1, count - 1, share)


def test_the_chance_of_so_many_is_that_of_the_binomial_distribution() -> None:
    assert chance(0, 20, 0.95) == pytest.approx(1)
    assert chance(4, 20, 0.95) == pytest.approx(0.0159, rel=1e-2)
    assert chance(2, 2, 0.9) == pytest.approx(0.01)


def test_growth_is_told_from_noise() -> None:
    chance = random.Random(5)
    times = [float(index) for index in range(10)]
    slope, error = growth(times, [2 * time + chance.gauss(0, 0.5) for time in times])
    assert slope - 2 * error > 1.5
    slope, error = growth(times, [chance.gauss(0, 0.5) for _ in times])
    assert abs(slope) < 3 * error
