import math
import random
from bisect import bisect_right

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servekit.scheduler.lengths import FEW, FEW_STEPS, MAX_CLASSES, OutputLengths
from servekit.scheduler.request import Request
from servekit.scheduler.survival import BUCKETS, EDGES, bucket_of


def answer(id, length, *, max_tokens=4000, finish="stop", prompt=100, **more):
    request = Request(id, [1] * prompt, max_tokens, **more)
    request.tokens += [2] * length
    request.finish = finish
    return request


def seen(lengths, *counts, **more):
    for id, length in enumerate(counts):
        lengths.finished(answer(id, length, **more))


def log_normal(seed, count, mean, cv):
    print(f"seed {seed}")
    sigma = math.sqrt(math.log(1 + cv * cv))
    rng = random.Random(seed)
    return [
        max(1, round(rng.lognormvariate(math.log(mean) - sigma * sigma / 2, sigma)))
        for _ in range(count)
    ]


@given(st.integers(1, 2**21))
def test_a_length_is_in_the_bucket_between_whose_edges_it_lies(length):
    expected = min(BUCKETS - 1, bisect_right(EDGES, length * (1 + 1e-12)) - 1)
    assert bucket_of(length) == expected


def test_before_any_answer_half_are_taken_to_be_longer_than_the_typical_one():
    """P(length > n) = 256 / (256 + n), of which these are the integrals."""
    lengths = OutputLengths()
    for done in (0, 200):
        expected = (256 + done) * math.log((256 + 700) / (256 + done))
        left = lengths.remaining(answer(1, done, max_tokens=700))
        assert left == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize("cv", [0.5, 1.0, 2.0])
def test_after_many_answers_the_mean_is_theirs(cv):
    lengths = OutputLengths()
    counts = log_normal(3, 3000, 200, cv)
    seen(lengths, *counts, max_tokens=8000)
    mean = sum(counts) / len(counts)
    assert lengths.remaining(answer(-1, 0, max_tokens=8000)) == pytest.approx(mean, rel=0.1)


def test_what_is_left_after_some_tokens_is_that_of_the_answers_that_came_so_far():
    lengths = OutputLengths()
    counts = log_normal(4, 3000, 200, 1.0)
    seen(lengths, *counts, max_tokens=8000)
    longer = [count - 300 for count in counts if count > 300]
    left = lengths.remaining(answer(-1, 300, max_tokens=8000))
    assert left == pytest.approx(sum(longer) / len(longer), rel=0.15)


def test_more_than_max_tokens_is_never_left():
    lengths = OutputLengths()
    seen(lengths, *[900] * 100)
    assert lengths.remaining(answer(-1, 30, max_tokens=50)) <= 20
    assert lengths.remaining(answer(-1, 50, max_tokens=50)) == 0.0


def test_answers_that_run_still_count_for_what_they_have_said():
    """Of 100 that began together the 20 short ones have ended; the rest is at 400 tokens."""
    short = [answer(id, 40) for id in range(20)]
    running = [answer(100 + id, 400) for id in range(80)]
    blind, wise = OutputLengths(), OutputLengths()
    for request in short:
        blind.finished(request)
        wise.finished(request)
    wise.refresh(running, 0)
    assert blind.remaining(answer(-1, 0)) < 500
    assert wise.survival(answer(-1, 0)).beyond(300) == pytest.approx(0.8, abs=0.02)


@pytest.mark.parametrize("finish", ["abort", "length", "error"])
def test_an_answer_that_was_cut_off_says_only_that_it_came_so_far(finish):
    cut, ended = OutputLengths(), OutputLengths()
    seen(cut, *[50] * 100, finish=finish)
    seen(ended, *[50] * 100)
    assert cut.remaining(answer(-1, 0)) > 1500
    assert ended.remaining(answer(-1, 0)) < 120


def test_a_tenant_of_long_answers_is_known_by_itself_and_a_new_one_by_the_others():
    lengths = OutputLengths()
    seen(lengths, *[1000] * 200, tenant="long")
    seen(lengths, *[50] * 200, tenant="short")
    long, short, new = (
        lengths.remaining(answer(-1, 0, tenant=tenant)) for tenant in ("long", "short", "new")
    )
    assert short < 150 < new < 850 < long


def test_what_is_no_longer_so_is_forgotten():
    lengths = OutputLengths()
    seen(lengths, *[1000] * 5000)
    seen(lengths, *[50] * 12000)
    assert lengths.remaining(answer(-1, 0)) < 200


def test_ever_new_tenants_take_a_bounded_number_of_classes():
    lengths = OutputLengths()
    for id in range(MAX_CLASSES):
        lengths.finished(answer(id, 10, tenant=f"tenant {id}"))
    assert len(lengths.classes) <= MAX_CLASSES
    assert lengths.remaining(answer(-1, 0, tenant="one more")) < 100


def test_odds_are_the_surer_the_more_answers_are_known():
    """Of 25 answers half are longer than 100: a share of 25 is off by a tenth, one of 400 by a
    fortieth (binomial)."""
    for times, expected in ((1, 0.1), (16, 0.025)):
        lengths = OutputLengths()
        for _ in range(times):
            seen(lengths, *range(4, 200, 8))
        odds = lengths.survival(answer(-1, 0)).odds(0, [100])
        assert odds.likely[0] == pytest.approx(0.5, abs=0.1)
        assert odds.off[0] == pytest.approx(expected, rel=0.3)


def test_while_few_have_ended_those_that_run_are_counted_every_so_many_steps():
    lengths = OutputLengths()
    running = [answer(id, 10) for id in range(10)]
    lengths.finished(answer(-1, 10))
    lengths.refresh(running, 0)
    assert not lengths.is_due(FEW_STEPS - 1)
    assert lengths.is_due(FEW_STEPS)
    seen(lengths, *[50] * 2 * FEW)
    lengths.refresh(running, FEW_STEPS)
    assert not lengths.is_due(100 * FEW_STEPS)


@given(st.lists(st.integers(1, 5000), max_size=60), st.integers(0, 3000), st.integers(1, 6000))
def test_survival_falls_and_what_is_left_is_within_bounds(counts, done, limit):
    lengths = OutputLengths()
    seen(lengths, *counts, max_tokens=6000)
    survival = lengths.survival(answer(-1, 0, max_tokens=6000))
    alive = [survival.beyond(length) for length in range(0, 7000, 97)]
    assert alive == sorted(alive, reverse=True)
    assert alive[0] == 1.0
    assert alive[-1] > 0.0
    assert 0.0 <= survival.remaining(done, limit) <= max(0, limit - done) * (1 + 1e-9)
