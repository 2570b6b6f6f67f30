"""When those who were refused are told to come again."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servekit.scheduler.retry import LEAST_S, MOST_S, Retry


@given(st.floats(0.0, 1000.0), st.integers(0, 10**9))
def test_a_wait_is_a_second_at_least_and_at_most_half_as_much_again(seconds: float, id: int):
    wait = max(LEAST_S, min(seconds, MOST_S))
    assert 0.999 * wait <= Retry().after_s(7.0, seconds, id) <= 1.501 * wait


def test_waits_of_one_moment_are_spread():
    times = sorted(Retry().after_s(0.0, 10.0, id) for id in range(100))
    assert max(b - a for a, b in pairwise(times)) < 0.2


def serving(every_s: float, until: float) -> Retry:
    retry = Retry()
    for number in range(int(until / every_s)):
        retry.served(every_s * number)
    return retry


@pytest.mark.parametrize("every_s", [0.02, 0.5])
def test_those_refused_together_come_back_as_far_apart_as_others_are_served(every_s: float):
    retry = serving(every_s, 50.0)
    count = int(40 / every_s)
    comes = sorted(50.0 + retry.after_s(50.0, 0.0, id) for id in range(count))
    first_half = [at for at in comes if at < 50.0 + MOST_S / 2]
    served_meanwhile = (MOST_S / 2) / every_s
    assert len(first_half) <= served_meanwhile
    assert len(first_half) >= served_meanwhile / 2


def test_nobody_stays_away_for_longer_than_a_minute_and_a_half():
    retry = serving(1.0, 50.0)
    assert max(retry.after_s(50.0, 0.0, id) for id in range(1000)) <= 1.5 * MOST_S


def test_turns_that_have_passed_are_forgotten():
    retry = serving(1.0, 50.0)
    for id in range(30):
        retry.after_s(50.0, 0.0, id)
    assert retry.after_s(100.0, 0.0, 0) == LEAST_S
