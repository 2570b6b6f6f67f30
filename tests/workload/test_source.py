"""Who comes when, how long their requests are and what these share."""

import math
from itertools import pairwise
from statistics import fmean, pstdev
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servekit.errors import ConfigError
from servekit.workload.arrival import Arrival, prompt
from servekit.workload.moments import moments
from servekit.workload.source import Source, source
from tests.conftest import tiny_config


def of(seed: int = 1, max_model_len: int = 10**6, **workload: Any) -> Source:
    config = tiny_config(workload=workload)
    return source(config.workload, max_model_len=max_model_len, seed=seed)


def gaps(arrivals: list[Arrival]) -> list[float]:
    times = [0.0] + [arrival.at for arrival in arrivals]
    return [after - before for before, after in pairwise(times)]


def conversations(requests: Source, count: int) -> list[list[Arrival]]:
    found = []
    for arrival in requests.first(count):
        turns = [arrival]
        while then := requests.answered(turns[-1], turns[-1].at + 1):
            turns += then
        found.append(turns)
    return found


@pytest.mark.parametrize("cv", [0.5, 1.0, 3.0])
def test_open_arrivals_have_the_declared_rate_and_spread(cv: float) -> None:
    found = gaps(of(request_rate=5.0, arrival_cv=cv).first(50_000))
    assert fmean(found) == pytest.approx(0.2, rel=0.05)
    assert pstdev(found) / fmean(found) == pytest.approx(cv, rel=0.05)


def test_arrivals_without_a_spread_are_a_clock() -> None:
    found = of(request_rate=4.0, arrival_cv=0.0).first(4)
    assert [arrival.at for arrival in found] == [0.25, 0.5, 0.75, 1.0]


def test_bursts_come_together_at_the_declared_rate() -> None:
    found = of(arrivals="bursts", burst_size=8, request_rate=2.0).first(8000)
    times = [arrival.at for arrival in found]
    assert all(len({*times[k : k + 8]}) == 1 for k in range(0, 8000, 8))
    assert len({*times}) == 1000
    assert times[-1] / 8000 == pytest.approx(0.5, rel=0.1)


def test_lengths_have_the_declared_moments() -> None:
    found = of(prompt_tokens=1155, prompt_cv=0.9, output_tokens=211, output_cv=0.8).first(20_000)
    prompts = [arrival.prompt_tokens for arrival in found]
    outputs = [arrival.output_tokens for arrival in found]
    assert fmean(prompts) == pytest.approx(1155, rel=0.02)
    assert pstdev(prompts) / 1155 == pytest.approx(0.9, rel=0.05)
    assert fmean(outputs) == pytest.approx(211, rel=0.02)
    both = fmean(p * o for p, o in zip(prompts, outputs, strict=True))
    assert both / (1155 * 211) == pytest.approx(1, abs=0.03)


def test_the_same_seed_gives_the_same_requests_and_another_seed_others() -> None:
    workload = {"turns": 2.0, "tenants": {"a": 1.0, "b": 1.0}, "batch_share": 0.5}
    assert of(seed=3, **workload).first(50) == of(seed=3, **workload).first(50)
    assert of(seed=3, **workload).first(50) != of(seed=4, **workload).first(50)


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"output_tokens": 5}, ["at", "prompt_tokens", "tenant"]),
        ({"prompt_cv": 0.1}, ["at", "output_tokens", "tenant"]),
        ({"request_rate": 9.0}, ["prompt_tokens", "output_tokens", "tenant"]),
        ({"tenants": {}}, ["at", "prompt_tokens", "output_tokens"]),
        ({"shared_prefix_tokens": 9}, ["at", "prompt_tokens", "output_tokens", "tenant"]),
        ({"batch_share": 0.5}, ["at", "prompt_tokens", "output_tokens", "tenant"]),
    ],
)
def test_a_change_of_one_thing_shifts_no_other(change: dict[str, Any], same: list[str]) -> None:
    workload: dict[str, Any] = {"tenants": {"a": 1.0, "b": 2.0}}
    before, after = of(**workload).first(40), of(**{**workload, **change}).first(40)
    assert before != after
    for name in same:
        assert [getattr(a, name) for a in before] == [getattr(a, name) for a in after]


def test_later_turns_do_not_depend_on_the_order_in_which_requests_are_answered() -> None:
    def turns(backwards: bool) -> dict[tuple[int, int], tuple[int, int]]:
        requests = of(turns=2.0, prompt_tokens=400, output_tokens=50)
        waiting, found = requests.first(30), {}
        while waiting:
            arrival = waiting.pop(-1 if backwards else 0)
            found[arrival.session, arrival.turn] = arrival.prompt_tokens, arrival.output_tokens
            waiting += requests.answered(arrival, 5.0)
        return found

    assert turns(backwards=True) == turns(backwards=False)


def test_tenants_priorities_and_classes_have_their_shares() -> None:
    found = of(
        tenants={"big": 3.0, "small": 1.0}, priorities={"-1": 1.0, "5": 1.0}, batch_share=0.2
    ).first(20_000)
    assert sum(a.tenant == "big" for a in found) / 20_000 == pytest.approx(0.75, abs=0.02)
    assert sum(a.priority == -1 for a in found) / 20_000 == pytest.approx(0.5, abs=0.02)
    assert {a.priority for a in found} == {-1, 5}
    assert sum(a.slo_class == "batch" for a in found) / 20_000 == pytest.approx(0.2, abs=0.02)


def test_prompts_with_the_same_start_share_exactly_that() -> None:
    found = of(shared_prefix_tokens=40, shared_prefixes=3, prompt_tokens=100).first(300)
    assert {arrival.prefix for arrival in found} == {0, 1, 2}
    for one, other in pairwise(found):
        a, b = prompt(one), prompt(other)
        shared = min(40, len(a) - 1, len(b) - 1) if one.prefix == other.prefix else 0
        assert a[:shared] == b[:shared]
        assert a[shared] != b[shared]


def test_the_first_start_is_chosen_most_often() -> None:
    found = of(shared_prefix_tokens=4, shared_prefixes=10).first(5000)
    chosen = [sum(a.prefix == k for a in found) for k in range(10)]
    assert chosen[0] / chosen[1] == pytest.approx(2, rel=0.15)


def test_a_later_turn_begins_with_all_that_was_said() -> None:
    for turns in conversations(of(turns=3.0, prompt_tokens=900, output_tokens=40), 50):
        for before, after in pairwise(turns):
            said = prompt(before) + [before.answer] * before.output_tokens
            assert prompt(after)[: len(said)] == said
            assert after.prompt_tokens > len(said)
            assert (after.session, after.turn) == (before.session, before.turn + 1)


def test_conversations_have_as_many_turns_and_prompts_as_long_as_declared() -> None:
    workload = {
        "turns": 3.0, "prompt_tokens": 1200, "prompt_cv": 0.9, "output_tokens": 200,
        "shared_prefix_tokens": 100,
    }  # fmt: skip
    found = [a for turns in conversations(of(**workload), 6000) for a in turns]
    declared = moments(tiny_config(workload=workload).workload)
    prompts = [arrival.prompt_tokens for arrival in found]
    assert len(found) / 6000 == pytest.approx(3, rel=0.03)
    assert fmean(prompts) == pytest.approx(1200, rel=0.03)
    assert declared.prompt == 1200
    assert pstdev(prompts) / fmean(prompts) == pytest.approx(declared.prompt_cv, rel=0.05)
    said = [prompt(a)[:-1].count(a.runs[-1][0]) + 1 for a in found]
    repeated = fmean(a.prompt_tokens - new for a, new in zip(found, said, strict=True))
    assert repeated == pytest.approx(declared.repeated, rel=0.05)


def test_requests_come_at_the_declared_rate_later_turns_among_them() -> None:
    requests = of(turns=4.0, request_rate=8.0, prompt_tokens=2000, think_s=0.0)
    openings = requests.first(2000)
    assert openings[-1].at == pytest.approx(2000 * 4 / 8, rel=0.1)


def test_somebody_thinks_before_the_next_turn_as_long_as_declared() -> None:
    requests = of(turns=1000.0, think_s=6.0, prompt_tokens=10**6, output_tokens=10)
    after = [then.at - 50 for a in requests.first(5000) for then in requests.answered(a, 50.0)]
    assert min(after) >= 0
    assert fmean(after) == pytest.approx(6, rel=0.05)


def test_a_conversation_ends_where_the_model_holds_no_more() -> None:
    requests = of(turns=50.0, prompt_tokens=1000, output_tokens=10, max_model_len=300)
    found = [a for turns in conversations(requests, 30) for a in turns]
    assert max(a.prompt_tokens + a.output_tokens for a in found) == 300
    assert max(a.turn for a in found) < 50


def test_turns_that_do_not_fit_into_the_prompts_are_refused_with_what_would() -> None:
    workload = {"turns": 8.0, "prompt_tokens": 1155, "output_tokens": 211}
    with pytest.raises(ConfigError, match=r"raise that to 1485 at least") as error:
        of(**workload)
    assert error.value.param == "workload.turns"
    of(**{**workload, "prompt_tokens": 1485})


def test_a_closed_workload_begins_with_its_clients_and_each_asks_again_once_answered() -> None:
    requests = of(arrivals="closed", concurrency=3, think_s=9.0)
    first = requests.first(10)
    assert [(a.at, a.session) for a in first] == [(0.0, 0), (0.0, 1), (0.0, 2)]
    (then,) = requests.answered(first[1], 4.0)
    assert (then.at, then.session, then.turn) == (4.0, 4, 0)
    assert prompt(then)[0] != prompt(first[1])[0]


def test_a_refused_client_of_a_closed_workload_asks_something_else_a_while_later() -> None:
    requests = of(arrivals="closed", concurrency=2, turns=5.0, prompt_tokens=1000)
    (then,) = requests.unanswered(requests.first(1)[0], 4.0, wait_s=2.5)
    assert (then.at, then.session, then.turn) == (6.5, 2, 0)
    assert of().unanswered(then, 4.0) == []


@settings(deadline=None, max_examples=200, print_blob=True)
@given(
    seed=st.integers(0, 10**9),
    limit=st.integers(2, 5000),
    mean=st.integers(1, 10**12),
    cv=st.floats(0, 1000),
    output=st.integers(1, 10**12),
    shared=st.integers(0, 10**12),
    arrivals=st.sampled_from(["open", "bursts", "closed"]),
    arrival_cv=st.floats(0, 1000),
    rate=st.floats(1e-12, 1e12),
)
def test_any_workload_gives_requests_that_the_model_holds_in_order_of_time(
    seed: int,
    limit: int,
    mean: int,
    cv: float,
    output: int,
    shared: int,
    arrivals: str,
    arrival_cv: float,
    rate: float,
) -> None:
    requests = of(
        seed, limit, prompt_tokens=mean, prompt_cv=cv, output_tokens=output, output_cv=cv,
        shared_prefix_tokens=min(shared, mean - 1), shared_prefixes=10**9, arrivals=arrivals,
        arrival_cv=arrival_cv, request_rate=rate,
    )  # fmt: skip
    found = requests.first(20)
    assert len(found) == (16 if arrivals == "closed" else 20)
    assert all(math.isfinite(a.at) and a.at >= 0 for a in found)
    assert found == sorted(found, key=lambda arrival: arrival.at)
    for arrival in found:
        assert arrival.prompt_tokens >= 1
        assert arrival.output_tokens >= 1
        assert arrival.prompt_tokens + arrival.output_tokens <= limit
        assert len(prompt(arrival)) == arrival.prompt_tokens
        assert all(0 <= token < 2**31 for token, _ in arrival.runs)


def test_requests_that_were_cut_say_so() -> None:
    requests = of(prompt_tokens=100, prompt_cv=0.0, output_tokens=50, output_cv=0.0)
    assert not any(each.is_cut for each in requests.first(5))
    requests = of(
        max_model_len=120, prompt_tokens=100, prompt_cv=0.0, output_tokens=50, output_cv=0.0
    )
    found = requests.first(5)
    assert {(a.prompt_tokens, a.output_tokens, a.is_cut) for a in found} == {(100, 20, True)}


def test_a_turn_that_was_cut_says_so() -> None:
    requests = of(
        max_model_len=200, turns=50.0, think_s=1.0, prompt_tokens=5000, prompt_cv=0.0,
        output_tokens=50, output_cv=0.0,
    )  # fmt: skip
    (first,) = requests.first(1)
    (second,) = requests.answered(first, 1.0)
    assert (first.prompt_tokens, first.is_cut) == (51, False)
    assert (second.prompt_tokens + second.output_tokens, second.is_cut) == (200, True)
