import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servekit.scheduler.order import TURN
from tests.scheduler.a_line import Desk, FakeKv, TokenTime, asks, ids, make_line, seat


def order_of(line, *requests, now=0.0):
    for request in requests:
        line.add(request)
    return ids(line.merged([], now))


def test_first_come_first_served():
    line = make_line(order="fcfs")
    assert order_of(line, asks(3), asks(1), asks(2)) == [1, 2, 3]


def test_those_with_a_seat_and_those_without_are_one_line():
    line = make_line(order="fcfs", max_num_seqs=9)
    for id in range(5):
        line.add(asks(id))
    walk = list(line.merged([], 0.0))
    seated = [seat(line, walk[id]) for id in (3, 1)]
    assert ids(line.merged(seated, 0.0)) == [0, 1, 2, 3, 4]


def test_a_lower_priority_number_goes_first():
    line = make_line(order="priority")
    assert order_of(line, asks(1, priority=1), asks(2), asks(3, priority=-1)) == [3, 2, 1]


def high_and_low(aging_s, steps=80):
    """In each second one of either class comes, and one is served; when each was."""
    line = make_line(order="priority", aging_s=aging_s, max_num_seqs=1)
    desk = Desk(line)
    for now in range(steps):
        line.add(asks(2 * now, 1, 1, arrived=float(now), priority=0))
        line.add(asks(2 * now + 1, 1, 1, arrived=float(now), priority=1))
        desk.step(float(now))
        line.check()
    return {id: at for id, at in desk.started.items() if id % 2}, desk.started


def test_waiting_makes_up_for_priority_in_some_turns():
    low, started = high_and_low(aging_s=20.0)
    assert min(low.values()) >= 20
    assert len(low) == pytest.approx(60 / TURN, abs=2)
    # and the high class waits for those turns only
    assert max(at - id // 2 for id, at in started.items() if id % 2 == 0) <= len(low)


def test_those_who_did_not_wait_long_get_no_turn():
    assert not high_and_low(aging_s=200.0)[0]


def test_a_prompt_that_was_begun_in_such_a_turn_gets_more_of_them_while_others_keep_coming():
    line = make_line(order="priority", aging_s=1.0)
    desk = Desk(line, budget=1)
    line.add(asks(0, prompt=5, max_tokens=1, priority=1))
    for now in range(1, 6 * TURN):
        line.add(asks(now, prompt=1, max_tokens=1))
        desk.step(float(now))
    assert 0 in desk.done


def test_the_shortest_prompt_goes_first_and_waiting_makes_up_for_length():
    line = make_line(order="shortest_prefill", aging_s=10.0)
    long = asks(1, 2000, arrived=0.0)
    assert order_of(line, long, asks(2, 100, arrived=18.9), asks(3, 100, arrived=19.1)) == [2, 1, 3]


def test_what_is_cached_does_not_count_as_length():
    kv = FakeKv()
    kv.cached = {1: 90}
    line = make_line(kv, order="shortest_prefill")
    assert order_of(line, asks(1, 100, arrived=0.0), asks(2, 50, arrived=0.0)) == [1, 2]


def test_whose_cached_prefix_is_gone_is_long_again():
    kv = FakeKv()
    kv.cached = {1: 90}
    line = make_line(kv, order="shortest_prefill")
    line.add(asks(1, 100, arrived=0.0))
    kv.cached = {}
    assert order_of(line, asks(2, 50, arrived=0.0)) == [2, 1]


def test_a_short_prompt_goes_before_the_rest_of_a_long_one():
    line = make_line(order="shortest_prefill")
    line.add(long := asks(1, 1000, arrived=0.0))
    seat(line, long, computed=100)
    line.add(asks(2, 800, arrived=0.0))
    assert ids(line.merged([long], 0.0)) == [2, 1]
    long.computed = 400
    assert ids(line.merged([long], 0.0)) == [1, 2]


def test_the_longest_cached_prefix_goes_first_and_waiting_makes_up_for_it():
    kv = FakeKv()
    kv.cached = {2: 500, 3: 1000}
    line = make_line(kv, order="longest_prefix", aging_s=10.0)
    requests = asks(1, arrived=0.0), asks(2, 2000, arrived=4.9), asks(3, 2000, arrived=10.1)
    assert order_of(line, *requests) == [2, 1, 3]


def test_prefixes_are_looked_up_of_those_who_came_first_and_the_rest_follow():
    kv = FakeKv()
    kv.cached = {70: 3000, 63: 3000}
    line = make_line(kv, order="longest_prefix", max_num_seqs=80)
    order = order_of(line, *[asks(id, 3001, arrived=0.0) for id in range(80)])
    assert order[0] == 63
    assert order.index(70) == 70
    assert sorted(order) == list(range(80))


def test_the_least_slack_goes_first():
    line = make_line(order="deadline", step_time=TokenTime(1.0))
    # they must start by 90, 85 and 86
    requests = asks(1, 10, due=100.0), asks(2, 5, due=90.0), asks(3, 30, due=116.0)
    assert order_of(line, *requests, now=4.0) == [2, 3, 1]


def test_slack_without_a_step_time_is_the_time_to_the_promise():
    line = make_line(order="deadline")
    assert order_of(line, asks(1, 90, due=9.0), asks(2, 1, due=8.0)) == [2, 1]


def test_what_is_cached_takes_no_time():
    kv = FakeKv()
    kv.cached = {1: 29}
    line = make_line(kv, order="deadline", step_time=TokenTime(1.0))
    assert order_of(line, asks(1, 30, due=100.0), asks(2, 30, due=110.0)) == [2, 1]


def test_who_cannot_make_it_any_more_goes_behind_who_can():
    line = make_line(order="deadline", step_time=TokenTime(1.0))
    requests = asks(1, 10, due=20.0), asks(2, 10, due=15.0), asks(3, 10, due=40.0)
    assert order_of(line, *requests, now=3.0) == [2, 1, 3]
    # from here on 2 and then 1 are late, and of two that are as long the first to come goes first
    assert ids(line.merged([], 6.0)) == [1, 3, 2]
    assert ids(line.merged([], 11.0)) == [3, 1, 2]
    line.check()


@pytest.mark.parametrize("patience", [1.0, math.inf])
def test_a_long_prompt_lets_short_ones_past_that_come_while_it_is_computed(patience):
    line = make_line(order="deadline", step_time=TokenTime(1.0))
    long = asks(1, 1000, arrived=0.0, due=patience)
    meanwhile = asks(2, 10, arrived=900.0, due=900.0 + patience)
    after = asks(3, 10, arrived=995.0, due=995.0 + patience)
    assert order_of(line, long, meanwhile, after, now=1200.0) == [2, 1, 3]


def test_a_seated_prompt_is_late_when_what_is_left_of_it_takes_too_long():
    line = make_line(order="deadline", step_time=TokenTime(1.0))
    line.add(one := asks(1, 100, due=120.0))
    seat(line, one)
    line.add(asks(2, 10, due=130.0))
    assert ids(line.merged([one], 21.0)) == [2, 1]
    one.computed = 50
    assert ids(line.merged([one], 21.0)) == [1, 2]


def test_class_batch_goes_after_interactive():
    line = make_line(order="deadline")
    assert order_of(line, asks(1, slo_class="batch"), asks(2, due=9.0), now=3.0) == [2, 1]


def test_an_interrupted_answer_goes_before_promises():
    line = make_line(order="deadline")
    interrupted = asks(5, due=9.0)
    interrupted.first_token_at = 8.0
    assert order_of(line, asks(1, due=50.0), interrupted, now=10.0) == [5, 1]


def served_under_overload(aging_s):
    """In each second two come who can make it, and one of class batch waits; one is served."""
    line = make_line(order="deadline", aging_s=aging_s, max_num_seqs=1, step_time=TokenTime(1.0))
    line.add(asks(0, 1, 1, slo_class="batch"))
    desk = Desk(line)
    for second in range(1, 60):
        for each in range(2):
            arrived = float(second)
            line.add(asks(2 * second + each, 1, 1, arrived=arrived, due=second + 2.5))
        desk.step(float(second))
    return desk


def test_old_ones_of_lower_levels_get_a_turn_but_most_are_for_those_who_can_make_it():
    desk = served_under_overload(aging_s=20.0)
    assert 20 <= desk.started[0] <= 20 + TURN
    in_time = sum(started <= id // 2 + 1.5 for id, started in desk.started.items() if id)
    assert in_time >= len(desk.started) * (TURN - 1) / TURN - 1


def test_young_ones_of_lower_levels_get_none():
    assert 0 not in served_under_overload(aging_s=200.0).started


def test_interactive_requests_go_before_batch_beyond_its_share():
    line = make_line(order="two_pool", batch_share=0.25, max_num_seqs=4)
    for id in range(6):
        line.add(asks(id, slo_class="batch" if id < 3 else "interactive"))
    seated = []
    for request in line.merged([], 0.0):
        seated.append(seat(line, request).id)
    assert seated == [0, 3, 4, 5]


def test_what_one_pool_does_not_want_is_the_others():
    for slo_class in ("batch", "interactive"):
        line = make_line(order="two_pool", batch_share=0.25, max_num_seqs=4)
        for id in range(6):
            line.add(asks(id, slo_class=slo_class))
        assert len([seat(line, request) for request in line.merged([], 0.0)]) == 4


def saturated(share, seats=5, steps=400):
    """Both classes always wait; how many seats and prompt tokens class batch got."""
    line = make_line(
        order="two_pool", batch_share=share, max_num_seqs=seats, max_num_batched_tokens=10
    )
    desk, held, id = Desk(line, budget=10), 0, 0
    for now in range(steps):
        while len(line) < 20:
            slo_class = ("batch", "interactive")[id % 2]
            line.add(asks(id, 10, 5, arrived=float(now), slo_class=slo_class))
            id += 1
        while not any(r.slo_class == "batch" for r in line.requests()):
            line.add(asks(id, 10, 5, arrived=float(now), slo_class="batch"))
            id += 1
        while not any(r.slo_class == "interactive" for r in line.requests()):
            line.add(asks(id, 10, 5, arrived=float(now)))
            id += 1
        desk.step(float(now))
        held += line.order.batch_seats
    prompt = desk.prompt
    return held / steps / seats, prompt.get("batch", 0) / (prompt["batch"] + prompt["interactive"])


def test_class_batch_gets_its_share_of_seats_and_tokens_while_both_wait():
    seats, tokens = saturated(share=0.4)
    assert 0.35 <= seats <= 0.45
    assert 0.35 <= tokens <= 0.45


def test_a_long_batch_prompt_gets_its_share_of_tokens_and_no_more():
    line = make_line(order="two_pool", batch_share=0.2, max_num_seqs=8, max_num_batched_tokens=10)
    desk = Desk(line, budget=10)
    line.add(asks(0, 100_000, 1, slo_class="batch"))
    for now in range(400):
        line.add(asks(now + 1, 10, 1, arrived=float(now)))
        desk.step(float(now))
    share = desk.prompt["batch"] / (desk.prompt["batch"] + desk.prompt["interactive"])
    assert 0.18 <= share <= 0.22


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 50)), max_size=60))
def test_credit_and_debt_of_batch_are_bounded(given):
    line = make_line(order="two_pool", batch_share=0.3, max_num_batched_tokens=20)
    line.add(asks(0))
    line.add(asks(1, slo_class="batch"))
    for is_batch, tokens in given:
        list(line.merged([], 0.0))
        line.charge(asks(9, slo_class="batch" if is_batch else "interactive"), tokens)
        assert abs(line.order.credit) <= 20
