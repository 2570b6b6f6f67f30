from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servekit.scheduler.preemption import ABOUT_TO_FINISH, by_swap, victim
from tests.scheduler.a_line import FakeKv, TokenTime, asks, line_settings


def runs(id, computed, preemptions=0, max_tokens=1000):
    made = asks(id, computed, max_tokens)
    made.computed, made.preemptions = computed, preemptions
    return made


def chosen(candidates, kv=None, rule="cheapest", remaining=lambda request: 500.0, **scheduler):
    config = line_settings(victim=rule, **scheduler).scheduler
    return victim(candidates, kv or FakeKv(), config, remaining).id


def test_whose_prefix_others_hold_goes_first_when_it_costs_least_for_each_block():
    kv = FakeKv()
    kv.surviving, kv.freed = {1: 400}, {1: 40}
    # 2 frees as much and computes all of it again; 3 frees little
    kv.freed |= {2: 40, 3: 1}
    assert chosen([runs(1, 500), runs(2, 160), runs(3, 8)], kv) == 1


def test_who_frees_nothing_goes_last():
    kv = FakeKv()
    kv.surviving, kv.freed = {1: 40}, {1: 0}
    assert chosen([runs(1, 40), runs(2, 400)], kv) == 2


def test_of_equal_cost_a_block_the_one_with_least_to_compute_again_goes():
    assert chosen([runs(1, 400), runs(2, 40), runs(3, 80)]) == 2


def test_of_equal_cost_not_the_one_about_to_finish():
    remaining = {1: ABOUT_TO_FINISH - 1, 2: 300.0}
    assert chosen([runs(1, 40), runs(2, 400)], remaining=lambda r: remaining[r.id]) == 2


def test_who_is_about_to_finish_goes_when_all_others_cost_more():
    kv = FakeKv()
    kv.surviving = {1: 30}
    assert chosen([runs(1, 40), runs(2, 400)], kv, remaining=lambda r: float(r.id)) == 1


def test_of_all_equal_the_last_to_come_goes():
    assert chosen([runs(1, 40), runs(3, 40), runs(2, 40)]) == 3


def test_who_was_preempted_often_is_spared_while_there_is_another():
    often = runs(1, 4, preemptions=3)
    assert chosen([often, runs(2, 400, preemptions=2)], max_preemptions=3) == 2
    assert chosen([often], max_preemptions=3) == 1


def test_the_last_to_come_goes_when_the_configuration_says_so():
    assert chosen([runs(1, 4), runs(2, 400)], rule="last_arrived") == 2


@given(
    st.lists(
        st.tuples(st.integers(1, 50), st.integers(0, 50), st.integers(0, 20), st.integers(0, 5)),
        min_size=1,
        max_size=8,
    ),
    st.sampled_from(["cheapest", "last_arrived"]),
)
def test_the_cap_holds_whenever_it_can(shapes, rule):
    kv, candidates = FakeKv(), []
    for id, (computed, surviving, freed, preemptions) in enumerate(shapes):
        candidates.append(runs(id, computed, preemptions))
        kv.surviving[id], kv.freed[id] = surviving, freed
    taken = chosen(candidates, kv, rule, max_preemptions=3)
    under = [request.id for request in candidates if request.preemptions < 3]
    assert taken in under or not under


@dataclass
class SwapSettings:
    """Those of the settings that a swap is decided by."""

    step_time: TokenTime | None
    block_copy_s: float | None
    more: dict[str, object] = field(default_factory=dict)


def swaps(
    host_blocks=100, computed=40, blocks=10, token_s=1.0, copy_s: float | None = 1.0, surviving=0
):
    kv = FakeKv()
    kv.num_host_free = host_blocks
    kv.surviving = {1: surviving}
    request = runs(1, computed)
    request.tables = ([0, 0, *range(1, blocks + 1)],)
    step_time = None if token_s is None else TokenTime(token_s)
    return by_swap(request, kv, SwapSettings(step_time, copy_s))


def test_it_swaps_when_copying_both_ways_is_faster_than_computing_again():
    assert swaps(computed=40, blocks=10, token_s=1.0, copy_s=1.9)
    assert not swaps(computed=40, blocks=10, token_s=1.0, copy_s=2.1)


def test_what_survives_in_the_cache_need_not_be_computed_again():
    assert not swaps(copy_s=1.0, surviving=25)


@pytest.mark.parametrize(
    "why",
    [{"host_blocks": 9}, {"token_s": None}, {"copy_s": None}, {"blocks": 0}],
    ids=["no host blocks", "no step time", "no link known", "no blocks"],
)
def test_it_does_not_swap(why):
    assert swaps(copy_s=0.001)
    assert not swaps(**{"copy_s": 0.001} | why)
