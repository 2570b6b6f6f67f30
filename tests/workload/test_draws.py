"""Draws have the distributions they are named for."""

import math
from itertools import pairwise
from statistics import fmean, pstdev

import pytest

from servekit.workload.draws import Draws, Lengths, Shares, Zipf

MANY = 20_000


def test_a_draw_depends_on_seed_purpose_and_turn_alone() -> None:
    draws = Draws(7, "prompt")
    before = draws.at(3, 2)
    draws.at(100)
    assert Draws(7, "prompt").at(3, 2) == before
    others = [Draws(8, "prompt").at(3, 2), Draws(7, "output").at(3, 2), draws.at(3, 1)]
    assert before not in others


def test_draws_are_uniform_and_never_at_an_end() -> None:
    draws = [Draws(1, "x").at(session, turn) for session in range(MANY // 4) for turn in range(4)]
    assert 0 < min(draws) < 0.001 < 0.999 < max(draws) < 1
    assert fmean(draws) == pytest.approx(0.5, abs=0.01)
    assert pstdev(draws) == pytest.approx(math.sqrt(1 / 12), rel=0.02)
    pairs = pairwise(draws)
    assert fmean((a - 0.5) * (b - 0.5) for a, b in pairs) == pytest.approx(0, abs=0.003)


@pytest.mark.parametrize(("mean", "cv"), [(1155, 0.9), (28, 2.0), (5000, 0.3)])
def test_lengths_have_the_declared_mean_and_spread(mean: float, cv: float) -> None:
    lengths = [Lengths(mean, cv).of((k + 0.5) / MANY) for k in range(MANY)]
    assert fmean(lengths) == pytest.approx(mean, rel=0.01)
    assert pstdev(lengths) / mean == pytest.approx(cv, rel=0.05)


def test_lengths_without_a_spread_are_all_the_same() -> None:
    assert {Lengths(77, 0.0).of(draw) for draw in (0.01, 0.5, 0.99)} == {77}


@pytest.mark.parametrize(("mean", "cv"), [(1, 1000.0), (10**12, 1000.0), (0.2, 0.0), (1, 1e-300)])
def test_extreme_lengths_are_still_whole_numbers_from_1(mean: float, cv: float) -> None:
    for draw in (2**-53, 0.5, 1 - 2**-53):
        length = Lengths(mean, cv).of(draw)
        assert isinstance(length, int)
        assert length >= 1


def test_shares_are_chosen_in_proportion() -> None:
    shares = Shares({"a": 1.0, "b": 3.0}, "none")
    chosen = [shares.of((k + 0.5) / 400) for k in range(400)]
    assert (chosen.count("a"), chosen.count("b")) == (100, 300)
    assert Shares({}, "none").of(0.3) == "none"


@pytest.mark.parametrize("count", [1, 2, 1024, 1025, 5000])
def test_the_k_th_is_chosen_as_often_as_one_over_k(count: int) -> None:
    number = 200_000
    zipf = Zipf(count)
    chosen = [zipf.of((k + 0.5) / number) for k in range(number)]
    assert (min(chosen), max(chosen)) == (0, count - 1)
    harmonic = sum(1 / k for k in range(1, count + 1))
    for k in range(min(count, 3)):
        assert chosen.count(k) / number == pytest.approx(1 / (k + 1) / harmonic, rel=0.01)
    below = sum(1 / k for k in range(1, max(2, count // 2))) / harmonic
    found = sum(k < max(2, count // 2) - 1 for k in chosen) / number
    assert found == pytest.approx(below, abs=0.002)


def test_very_many_starts_need_no_table_of_them() -> None:
    zipf = Zipf(10**12)
    assert zipf.of(1e-9) == 0
    assert zipf.of(1 - 1e-16) <= 10**12 - 1
    assert 10**6 < zipf.of(0.9) < 10**12
