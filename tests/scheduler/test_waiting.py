from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servekit.config.scheduling import SchedulerConfig
from servekit.scheduler.order import Sorted
from servekit.scheduler.policy import LINES
from servekit.scheduler.request import State
from servekit.scheduler.waiting import MAX_DEFERRED
from tests.scheduler.a_line import Desk, FakeKv, TokenTime, asks, ids, leave, make_line, seat

EVERY_ORDER = pytest.mark.parametrize("order", LINES)


def test_every_order_of_the_configuration_has_a_line():
    orders = SchedulerConfig.model_fields["order"].annotation.__args__
    assert set(orders) == set(LINES)


def test_no_more_come_than_there_are_seats():
    line = make_line(max_num_seqs=2)
    for id in range(5):
        line.add(asks(id))
    seated = []
    for request in line.merged([], 0.0):
        seated.append(seat(line, request))
    assert ids(seated) == [0, 1]
    assert (len(line), line.tokens, line.seats_left) == (3, 9, 0)


def test_a_seat_given_back_is_given_again():
    line = make_line(max_num_seqs=1)
    line.add(asks(0))
    line.add(asks(1))
    first = seat(line, next(line.merged([], 0.0)))
    assert ids(line.merged([], 0.0)) == []
    line.ended(first)
    assert ids(line.merged([], 0.0)) == [1]


def test_without_seats_only_those_that_have_one_come():
    line = make_line()
    line.add(asks(0))
    line.add(asks(1))
    line.add(asks(2))
    one = seat(line, next(line.merged([], 0.0)))
    assert ids(line.merged([one], 0.0, seats=False)) == [0]


@EVERY_ORDER
def test_the_preempted_keep_their_place(order):
    line = make_line(order=order)
    for id in range(4):
        line.add(asks(id))
    for request in list(line.merged([], 5.0)):
        seat(line, request)
        leave(line, request)
    assert ids(line.merged([], 5.0)) == [0, 1, 2, 3]


@EVERY_ORDER
def test_those_with_a_seat_come_though_nobody_may_be_seated(order):
    line = make_line(order=order, max_num_seqs=3)
    for id in range(6):
        line.add(asks(id, tenant="ab"[id % 2], slo_class=("batch", "interactive")[id % 2]))
    seated = [seat(line, request) for request in line.merged([], 0.0)]
    assert len(seated) == 3
    assert sorted(ids(line.merged(seated, 1.0))) == sorted(ids(seated))


def test_the_held_are_not_in_line_until_they_are_released_to_their_place():
    line = make_line()
    first, second = asks(1), asks(2)
    line.add(first)
    line.add(second)
    line.hold(first, until=9.0)
    assert ids(line.merged([], 0.0)) == [2]
    assert line.deadlines() == [(9.0, first)]
    assert (len(line), line.tokens) == (2, 6)
    line.release(1)
    assert ids(line.merged([], 0.0)) == [1, 2]
    line.check()


def test_the_held_may_end():
    line = make_line()
    line.add(one := asks(1))
    line.hold(one, until=9.0)
    line.remove(one)
    assert (len(line), line.tokens, line.deadlines()) == (0, 0, [])


def test_so_many_are_looked_at_past_one_that_does_not_fit():
    line = make_line(max_skip_ahead=2, max_num_seqs=9)
    for id in range(6):
        line.add(asks(id))
    looked_at = []
    for request in line.merged([], 0.0):
        looked_at.append(request.id)
        if request.id == 1:
            line.passed(request, 0.0)
        else:
            seat(line, request)
    assert looked_at == [0, 1, 2, 3]


def test_nobody_passes_without_skip_ahead():
    line = make_line(max_skip_ahead=0)
    line.add(asks(0))
    line.add(asks(1))
    for request in line.merged([], 0.0):
        line.passed(request, 0.0)
        assert request.id == 0


def passing(line, now):
    """Who gets a seat, and gives it back at once, when request 0 never fits."""
    lucky = []
    for request in line.merged([], now):
        if request.id == 0:
            line.passed(request, now)
        else:
            lucky.append(request.id)
    return lucky


def test_nobody_passes_one_that_was_passed_for_aging_s():
    line = make_line(max_skip_ahead=2, aging_s=10.0)
    line.add(asks(0))
    line.add(asks(1))
    assert passing(line, 3.0) == [1]
    assert passing(line, 12.9) == [1]
    assert passing(line, 13.0) == []


def test_how_long_it_was_passed_is_forgotten_once_it_fits():
    line = make_line(max_skip_ahead=2, aging_s=10.0)
    line.add(big := asks(0))
    line.add(asks(1))
    passing(line, 3.0)
    leave(line, seat(line, big))
    assert passing(line, 13.0) == [1]


def test_who_waits_for_anothers_prompt_holds_up_nobody():
    line = make_line(max_skip_ahead=0, max_num_seqs=MAX_DEFERRED + 9)
    for id in range(MAX_DEFERRED + 5):
        line.add(asks(id))
    looked_at = 0
    for request in line.merged([], 0.0):
        looked_at += 1
        line.deferred(request)
    assert looked_at == MAX_DEFERRED
    assert not line.stuck


def test_a_line_of_ten_thousand_is_not_walked_for_one_seat():
    kv = FakeKv()
    line = make_line(kv, order="longest_prefix", max_num_seqs=1)
    for id in range(10_000):
        line.add(asks(id))
    kv.lookups = 0
    next(line.merged([], 0.0))
    assert kv.lookups <= 64


@EVERY_ORDER
def test_who_asks_what_is_next_changes_nothing(order):
    line = make_line(order=order, max_skip_ahead=1)
    for id in range(4):
        line.add(asks(id))
    walk = line.merged([], 0.0)
    line.passed(next(walk), 0.0)
    assert len(list(line.upcoming([], 0.0))) == 4
    assert len(list(walk)) == 1


def test_how_many_are_ahead_depends_on_the_order():
    line = make_line(order="priority")
    for id in range(10):
        line.add(asks(id, priority=id % 2, arrived=0.0))
    assert line.ahead(asks(10, priority=0, arrived=1.0)) == (5, 15)
    assert line.ahead(asks(10, priority=9, arrived=1.0)) == (10, 30)


@given(st.lists(st.tuples(st.integers(0, 30), st.sampled_from(["add", "remove", "walk"]))))
def test_a_walk_bears_whoever_comes_and_goes(acts):
    line, requests = Sorted(), {id: asks(id) for id in range(31)}
    for id in range(0, 31, 3):
        line.add(requests[id], (float(id), id))
    before, here_all_along = set(line.keys), set(line.keys)
    walk, seen = line.walk(), []
    for id, act in acts:
        if act == "add" and id not in line.keys:
            line.add(requests[id], (float(id), id))
        elif act == "remove" and id in line.keys:
            line.remove(requests[id])
            here_all_along.discard(id)
        elif act == "walk":
            seen += [r.id for _, r in [next(walk, (None, None))] if r]
    seen += [r.id for _, r in walk]
    line.check()
    assert seen == sorted(set(seen)), "out of order, or twice"
    assert here_all_along <= set(seen) <= before | {id for id, _ in acts}


@EVERY_ORDER
@given(seed=st.integers(0, 2**32))
def test_everybody_is_served_in_the_end(order, seed):
    random = Random(seed)
    line = make_line(
        step_time=TokenTime(0.1),
        order=order,
        max_num_seqs=random.randint(1, 4),
        max_num_batched_tokens=16,
        max_skip_ahead=random.randint(0, 3),
        aging_s=random.choice([1.0, 10.0, 1000.0]),
        batch_share=random.choice([0.0, 0.2, 1.0]),
        tenant_weights={"a": 3.0},
    )
    # one that needs the desk to itself is passed until nobody may pass it
    desk = Desk(line, budget=random.randint(1, 16))
    desk.fits = lambda request: request.id % 7 != 3 or not desk.running
    total = random.randint(1, 25)
    waits = [
        asks(
            id,
            random.randint(1, 30),
            random.randint(1, 9),
            priority=random.randint(0, 3),
            tenant=random.choice("abc"),
            slo_class=random.choice(["interactive", "batch"]),
            due=id + random.random() * 20,
        )
        for id in range(total)
    ]
    now = 0.0
    while len(desk.done) < total:
        assert now < 5000, f"seed {seed}: {total - len(desk.done)} starve"
        while waits and waits[0].arrived <= now:
            line.add(waits.pop(0))
        desk.step(now)
        line.check()
        now += 1.0
    assert (len(line), line.tokens, line.num_seated) == (0, 0, 0)


@EVERY_ORDER
def test_rank_is_total_and_never_changes(order):
    line = make_line(order=order, step_time=TokenTime(1.0))
    one, same = asks(1, 30, arrived=0.0, due=3.0), asks(2, 5, arrived=0.0, due=3.0)
    before = line.rank(one)
    assert before != line.rank(same)
    line.add(one)
    list(line.merged([], 100.0))
    seat(line, one, computed=7)
    assert line.rank(one) == before
    assert one.state is State.RUNNING
