"""The virtual token counter, alone and with a desk that serves."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servekit.scheduler.fair import MANY_TENANTS, OUTPUT_WEIGHT
from tests.scheduler.a_line import Desk, FakeKv, asks, ids, leave, make_line, seat


def fair(seats=4, **weights):
    return make_line(order="fair", max_num_seqs=seats, tenant_weights=weights)


def test_tenants_take_turns_and_each_is_first_come_first_served():
    line = fair(seats=9)
    for id in range(4):
        line.add(asks(id, 10, tenant="greedy"))
    for id in range(4, 6):
        line.add(asks(id, 10, tenant="modest"))
    got = []
    for request in line.merged([], 9.0):
        seat(line, request)
        request.computed = 10
        line.charge(request, 10)
        got.append(request.id)
    assert got == [0, 4, 1, 5, 2, 3]


def test_cached_tokens_are_free_and_output_costs_twice():
    line = fair()
    line.add(one := asks(1, 10, tenant="a"))
    seat(line, one, computed=4)
    one.computed = 10
    line.charge(one, 6)
    assert line.order.served["a"] == 6
    one.tokens += [0, 0, 0]
    line.ended(one)
    assert line.order.served["a"] == 6 + 3 * OUTPUT_WEIGHT


def test_a_weight_of_two_makes_tokens_half_as_dear():
    line = fair(a=2.0)
    line.add(one := asks(1, 10, tenant="a"))
    seat(line, one)
    one.computed = 10
    line.charge(one, 10)
    assert line.order.served["a"] == 5


def test_what_a_preemption_lost_is_not_charged_again():
    line = fair()
    line.add(one := asks(1, 10, tenant="a"))
    seat(line, one)
    one.computed = 10
    line.charge(one, 10)
    one.tokens += [0]
    leave(line, one)
    seat(line, one)
    one.computed = 11
    line.charge(one, 11)
    one.tokens += [0]
    line.ended(one)
    assert line.order.served["a"] == 10 + 2 * OUTPUT_WEIGHT


def test_output_of_running_requests_counts_though_nobody_said_so():
    line = fair()
    for id, tenant in enumerate("ab"):
        line.add(asks(id, 10, 99, tenant=tenant))
    one, _ = [seat(line, request) for request in line.merged([], 0.0)]
    one.tokens += [0] * 5
    line.add(asks(3, tenant="b"))
    line.add(asks(2, tenant="a"))
    assert ids(line.merged([], 9.0)) == [3, 2]


def test_who_comes_back_has_saved_nothing_up():
    line = fair(seats=99)
    line.add(asks(0, 1, tenant="idle"))
    seat(line, next(line.merged([], 0.0)))
    line.order.served["busy"] = 0.0
    for id in range(1, 4):
        line.add(asks(id, tenant="busy"))
    line.order.served["busy"] = 1000.0
    line.add(asks(9, tenant="idle"))
    assert line.order.served["idle"] == 1000.0


def test_who_comes_to_an_empty_line_starts_where_the_last_left():
    line = fair(seats=99)
    line.add(one := asks(0, 1, tenant="busy"))
    line.order.served["busy"] = 70.0
    seat(line, one)
    line.add(asks(1, tenant="new"))
    assert line.order.served["new"] == 70.0


def test_a_preempted_request_does_not_lift_its_tenant():
    line = fair()
    line.add(one := asks(0, tenant="a"))
    seat(line, one)
    line.add(asks(1, tenant="b"))
    line.order.served["b"] = 50.0
    leave(line, one)
    assert line.order.served["a"] < 50.0


def test_a_long_prompt_of_one_shares_the_room_with_those_of_others():
    line = fair(seats=9)
    desk = Desk(line, budget=10)
    line.add(asks(0, 10_000, 1, tenant="long"))
    for now in range(100):
        line.add(asks(now + 1, 10, 1, arrived=float(now), tenant="short"))
        desk.step(float(now))
    assert desk.prompt["long"] > 200
    assert desk.prompt["short"] > 200


def test_one_tenant_that_does_not_fit_leaves_looks_for_the_others():
    line = make_line(order="fair", max_skip_ahead=3, max_num_seqs=9)
    for id in range(9):
        line.add(asks(id, tenant="huge"))
    line.add(asks(9, tenant="small"))
    seated = []
    for request in line.merged([], 0.0):
        if request.tenant == "huge":
            line.passed(request, 0.0)
        else:
            seated.append(seat(line, request).id)
    assert seated == [9]


def test_accounts_of_tenants_that_are_gone_are_thrown_away():
    line = fair(seats=1)
    for id in range(MANY_TENANTS * 3):
        line.add(one := asks(id, tenant=f"t{id}"))
        seat(line, one)
        line.ended(one)
    assert len(line.order.served) <= MANY_TENANTS + 1


def traffic(rates, weights, seed, steps=1500):
    """What is served, and asked for, by tenant, when each asks so many times a step: four seats,
    long and short ones.
    """
    random = Random(seed)
    line = make_line(order="fair", max_num_seqs=4, tenant_weights=weights, max_skip_ahead=4)
    desk, id, asked = Desk(line, budget=12), 0, dict.fromkeys(rates, 0)
    for now in range(steps):
        for tenant, rate in rates.items():
            for _ in range(int(rate) + (random.random() < rate % 1)):
                prompt, output = random.randint(1, 20), random.randint(1, 10)
                line.add(asks(id, prompt, output, arrived=float(now), tenant=tenant))
                asked[tenant] += prompt + OUTPUT_WEIGHT * output
                id += 1
        desk.step(float(now))
    line.check()
    served = {t: desk.prompt[t] + OUTPUT_WEIGHT * desk.output[t] for t in rates}
    return served, asked


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_who_asks_ten_times_as_much_is_served_no_more(seed):
    served, _ = traffic({"modest": 0.6, "greedy": 6.0}, {}, seed)
    assert served["greedy"] == pytest.approx(served["modest"], rel=0.05), f"seed {seed}"


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_tenants_that_always_wait_are_served_by_weight(seed):
    served, _ = traffic({"a": 2.0, "b": 2.0, "c": 2.0}, {"a": 3.0, "b": 2.0}, seed)
    assert served["a"] / served["c"] == pytest.approx(3, rel=0.05), f"seed {seed}"
    assert served["b"] / served["c"] == pytest.approx(2, rel=0.05), f"seed {seed}"


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_who_asks_less_than_its_share_gets_it_all_and_the_rest_is_for_others(seed):
    served, asked = traffic({"modest": 0.1, "greedy": 6.0}, {}, seed)
    alone, _ = traffic({"greedy": 6.0}, {}, seed)
    assert served["modest"] >= 0.95 * asked["modest"], f"seed {seed}"
    assert sum(served.values()) >= 0.95 * alone["greedy"], f"seed {seed}"


@given(seed=st.integers(0, 2**32), most=st.integers(1, 20))
def test_counters_of_those_who_always_wait_stay_within_what_can_be_under_way(seed, most):
    random = Random(seed)
    seats, longest, output = 3, most, 8
    line = make_line(FakeKv(), order="fair", max_num_seqs=seats)
    desk, id = Desk(line, budget=max(4, most)), 0
    bound = 2 * seats * (longest + OUTPUT_WEIGHT * output) + longest
    for now in range(60):
        for tenant in "ab":
            while sum(r.tenant == tenant for r in line.requests()) < 4:
                prompt, tokens = random.randint(1, longest), random.randint(1, output)
                line.add(asks(id, prompt, tokens, arrived=float(now), tenant=tenant))
                id += 1
        desk.step(float(now))
        served = line.order.served
        assert abs(served["a"] - served["b"]) <= bound, f"seed {seed}"
