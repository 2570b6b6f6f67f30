from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servekit.scheduler.order import TURN
from servekit.scheduler.request import State
from servekit.scheduler.takeover import BURST_S, Takeovers
from servekit.scheduler.waiting import line_of
from tests.scheduler.a_line import Desk, FakeKv, asks, ids, leave, line_settings, seat


class Seats:
    """A full house and who wants in."""

    def __init__(self, order="priority", seats=2, kv=None, **scheduler):
        settings = line_settings(order=order, max_num_seqs=seats, **scheduler)
        self.kv = kv or FakeKv()
        self.line = line_of(settings, self.kv)
        self.takeovers = Takeovers(settings, self.line, self.kv)
        self.running = []

    def runs(self, *requests, computed=8):
        for request in requests:
            self.line.add(request)
            seat(self.line, request, computed=computed)
            self.running.append(request)
        return self

    def due(self, now=100.0, short=lambda request: 0, remaining=lambda request: 50.0):
        found = self.takeovers.due(self.running, now, short, remaining)
        return found and (found.winner.id, ids(found.losers))

    def carry_out(self, now=100.0):
        found = self.takeovers.due(self.running, now, lambda r: 0, lambda r: 50.0)
        for loser in found.losers if found else ():
            self.running.remove(loser)
            leave(self.line, loser)
        if found:
            seat(self.line, found.winner)
            self.running.append(found.winner)
        return found


def test_a_waiting_lower_number_takes_the_seat_of_the_highest():
    house = Seats(seats=3).runs(asks(1, priority=1), asks(2, priority=5), asks(3, priority=0))
    house.line.add(asks(4, priority=0))
    assert house.due() == (4, [2])


def test_of_equal_numbers_the_cheapest_loses_its_seat():
    house = Seats().runs(asks(1, priority=5), computed=80).runs(asks(2, priority=5), computed=8)
    house.line.add(asks(3, priority=0))
    assert house.due() == (3, [2])


def test_never_among_equals():
    house = Seats().runs(asks(5, priority=1), asks(6, priority=1))
    house.line.add(asks(1, priority=1))
    assert house.due() is None


def test_who_got_its_seat_by_waiting_long_keeps_it():
    house = Seats(seats=1, aging_s=10.0)
    house.line.add(old := asks(1, priority=1, arrived=0.0))
    house.line.add(asks(2, priority=0, arrived=20.0))
    house.line.order.chunks = TURN
    assert next(house.line.merged([], 20.0)) is old
    seat(house.line, old)
    house.running.append(old)
    assert house.due() is None


def test_who_waits_for_anothers_prompt_takes_no_seat():
    house = Seats().runs(asks(1, priority=1), asks(2, priority=1))
    house.line.add(asks(3, priority=0))
    house.kv.computed_by_another = {3}
    assert house.due() is None


def test_nobody_takes_a_seat_while_one_is_free_and_it_fits():
    house = Seats(seats=3).runs(asks(1, priority=5), asks(2, priority=5))
    house.line.add(asks(3, priority=0))
    assert house.due() is None


def test_blocks_are_taken_as_well_from_as_few_as_have_them():
    house = Seats(seats=9).runs(*[asks(id, priority=5) for id in range(4)])
    house.line.add(asks(9, priority=0))
    assert house.due(short=lambda request: 3) == (9, [3, 2])


def test_nobody_loses_a_seat_for_one_that_would_not_fit_all_the_same():
    house = Seats(seats=9).runs(*[asks(id, priority=5) for id in range(4)])
    house.line.add(asks(9, priority=0))
    assert house.due(short=lambda request: 9) is None
    assert house.takeovers.left == BURST_S


def test_who_was_preempted_often_keeps_its_seat():
    often, once = asks(1, priority=9), asks(2, priority=5)
    house = Seats(max_preemptions=3).runs(often, once)
    often.preemptions, once.preemptions = 3, 1
    house.line.add(asks(3, priority=0))
    assert house.due() == (3, [2])


@pytest.mark.parametrize("order", ["fcfs", "fair", "deadline"])
def test_other_orders_take_no_seats(order):
    house = Seats(order).runs(asks(1, priority=9), asks(2, priority=9, slo_class="batch"))
    house.line.add(asks(3, priority=0))
    assert house.due() is None


def test_none_are_taken_where_the_configuration_allows_none():
    house = Seats(takeovers_per_s=0.0).runs(asks(1, priority=9), asks(2, priority=9))
    house.line.add(asks(3, priority=0))
    assert house.due() is None


def test_none_are_taken_from_a_static_batch():
    house = Seats(policy="static").runs(asks(1, priority=9), asks(2, priority=9))
    house.line.add(asks(3, priority=0))
    assert house.due() is None


def test_so_many_seats_change_hands_a_second_and_a_minute_is_saved_up():
    house = Seats(seats=500, takeovers_per_s=0.5)
    house.runs(*[asks(id, priority=9, arrived=0.0) for id in range(500)])
    for id in range(500, 900):
        house.line.add(asks(id, priority=0, arrived=0.0))

    def taken(now):
        count = 0
        while house.carry_out(now):
            count += 1
        return count

    assert taken(0.0) == 30
    assert taken(1.9) == 0
    assert taken(2.0) == 1
    assert taken(12.0) == 5
    assert taken(1000.0) == 30


def test_interactive_takes_a_seat_from_batch_beyond_its_share():
    house = Seats("two_pool", seats=4, batch_share=0.5)
    house.runs(*[asks(id, slo_class="batch") for id in range(4)])
    for id in range(4, 8):
        house.line.add(asks(id))
    assert [house.carry_out().winner.id for _ in range(2)] == [4, 5]
    assert house.carry_out() is None
    assert sorted(r.slo_class for r in house.running) == ["batch"] * 2 + ["interactive"] * 2


def test_batch_takes_no_seat_of_anybody():
    house = Seats("two_pool", seats=2, batch_share=0.5).runs(asks(1), asks(2))
    house.line.add(asks(3, slo_class="batch"))
    assert house.due() is None


@given(seed=st.integers(0, 2**32))
def test_no_two_ever_take_a_seat_from_each_other(seed):
    random = Random(seed)
    seats = random.randint(1, 3)
    house = Seats(seats=seats, aging_s=random.choice([1.0, 5.0]), max_preemptions=99)
    took: set[tuple[int, int]] = set()
    for id in range(20):
        made = asks(id, priority=random.randint(0, 3))
        if house.line.seats_left:
            house.runs(made)
        else:
            house.line.add(made)
        while found := house.carry_out(now=float(100 * id)):
            for loser in found.losers:
                pair = (found.winner.id, loser.id)
                assert pair not in took, f"seed {seed}"
                assert pair[::-1] not in took, f"seed {seed}"
                took.add(pair)
        assert len(house.running) == seats or len(house.line) == 0


@pytest.mark.parametrize("aging_s", [5.0, 1000.0])
def test_a_high_class_waits_little_under_a_saturating_low_class(aging_s):
    settings = line_settings(order="priority", max_num_seqs=4, aging_s=aging_s, max_preemptions=9)
    kv = FakeKv()
    line = line_of(settings, kv)
    takeovers, desk = Takeovers(settings, line, kv), Desk(line)
    for now in range(600):
        if now % 3 == 0:
            line.add(asks(now, 4, 100, priority=9, arrived=float(now)))
        if now % 10 == 0:
            line.add(asks(10_000 + now, 4, 5, priority=0, arrived=float(now)))
        desk.step(float(now))
        found = takeovers.due(desk.running, float(now), lambda r: 0, lambda r: 50.0)
        for loser in found.losers if found else ():
            desk.running.remove(loser)
            leave(line, loser)
    high = {id: at for id, at in desk.started.items() if id >= 10_000}
    waits = sorted(at - (id - 10_000) for id, at in high.items())
    assert len(high) == 60
    assert waits[-1] <= 5.0
    assert waits[len(waits) // 2] <= 1.0
    assert any(request.state is State.WAITING for request in line.requests())
