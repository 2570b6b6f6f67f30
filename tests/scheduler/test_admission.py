import pytest

from servekit.errors import ContextTooLong, Overloaded, RequestError
from tests.scheduler.fake_executor import FakeExecutor, drain, make_scheduler, request, step


def running(scheduler):
    return [request.id for request in scheduler.running]


def test_more_than_the_model_holds_is_refused_with_the_numbers():
    scheduler = make_scheduler(max_model_len=10)
    with pytest.raises(ContextTooLong, match="7 prompt tokens and 4 to generate make 11") as caught:
        scheduler.add(request(1, prompt=7, max_tokens=4))
    assert caught.value.details["max_model_len"] == 10
    assert not scheduler.busy


def test_more_than_the_kv_cache_holds_is_refused_with_the_numbers():
    scheduler = make_scheduler(num_blocks=3, block_size=4)
    with pytest.raises(ContextTooLong, match="KV cache 8") as caught:
        scheduler.add(request(1, prompt=5, max_tokens=4))
    assert caught.value.details["max_servable_tokens"] == 8


def test_exactly_what_fits_is_served():
    scheduler = make_scheduler(num_blocks=3, block_size=4, max_model_len=8)
    scheduler.add(request(1, prompt=5, max_tokens=3))
    assert len(drain(scheduler, FakeExecutor(4))[1].tokens) == 3


def test_an_empty_prompt_is_refused():
    with pytest.raises(RequestError, match="0 prompt tokens") as caught:
        make_scheduler().add(request(1, prompt=0))
    assert caught.value.param == "prompt"


def test_a_request_for_no_tokens_is_refused():
    with pytest.raises(RequestError, match="max_tokens=0") as caught:
        make_scheduler().add(request(1, max_tokens=0))
    assert caught.value.param == "max_tokens"


def test_when_as_many_wait_as_may_the_next_is_refused():
    scheduler = make_scheduler(max_waiting=1, seats=2)
    for id in (1, 2, 3):
        scheduler.add(request(id))
    with pytest.raises(Overloaded, match="1 requests are waiting and at most 1 may"):
        scheduler.add(request(4))
    step(scheduler, FakeExecutor(4))
    with pytest.raises(Overloaded, match="1 requests are waiting and at most 1 may"):
        scheduler.add(request(4))
    scheduler.abort(1)
    scheduler.add(request(4))


def test_seats_are_given_in_order_of_arrival():
    scheduler = make_scheduler(seats=2)
    for id in (3, 1, 2):
        scheduler.add(request(id))
    scheduler.plan(0.0)
    assert running(scheduler) == [1, 2]


def test_nobody_overtakes_a_prompt_that_does_not_fit_yet():
    scheduler, executor = make_scheduler(num_blocks=6, budget=32), FakeExecutor(4)
    scheduler.add(request(1, prompt=8))
    step(scheduler, executor)
    scheduler.add(request(2, prompt=12, max_tokens=1))
    scheduler.add(request(3, prompt=1, max_tokens=1))
    step(scheduler, executor)
    assert running(scheduler) == [1]


def test_a_prompt_is_seated_only_with_room_for_the_token_after_it():
    scheduler = make_scheduler(num_blocks=5, budget=32)
    scheduler.add(request(1, prompt=8, max_tokens=1))
    scheduler.add(request(2, prompt=8, max_tokens=1))
    scheduler.plan(0.0)
    assert running(scheduler) == [1]


def test_a_continuous_batch_takes_in_a_request_while_another_runs():
    scheduler, executor = make_scheduler(), FakeExecutor(4)
    scheduler.add(request(1))
    step(scheduler, executor)
    scheduler.add(request(2))
    step(scheduler, executor)
    assert running(scheduler) == [1, 2]


def test_a_static_batch_runs_to_its_end_before_the_next_is_seated():
    scheduler, executor = make_scheduler(policy="static"), FakeExecutor(4)
    scheduler.add(request(1, max_tokens=2))
    scheduler.add(request(2, max_tokens=5))
    step(scheduler, executor)
    scheduler.add(request(3))
    seated = []
    while 3 in scheduler.requests:
        seated.append(running(scheduler))
        step(scheduler, executor)
    assert seated[:5] == [[1, 2], [2], [2], [2], []]
    assert seated[5] == [3]


def test_a_static_batch_is_seated_whole_even_if_its_prompts_exceed_a_step():
    scheduler = make_scheduler(policy="static", seats=3, budget=4)
    for id in (1, 2, 3):
        scheduler.add(request(id, prompt=5))
    batch = scheduler.plan(0.0)
    assert batch is not None
    assert batch.num_tokens == 4
    assert running(scheduler) == [1, 2, 3]


def test_a_held_request_is_not_seated_until_released_and_keeps_its_place():
    scheduler, executor = make_scheduler(seats=1), FakeExecutor(4)
    scheduler.add(request(1, max_tokens=2))
    scheduler.add(request(2, max_tokens=2))
    scheduler.add(request(3, max_tokens=2))
    scheduler.hold(1, until=9.0)
    step(scheduler, executor)
    assert running(scheduler) == [2]
    scheduler.release(1)
    step(scheduler, executor)
    step(scheduler, executor)
    assert running(scheduler) == [1]


def test_a_hold_past_its_deadline_ends_with_an_error():
    scheduler = make_scheduler()
    scheduler.add(request(1))
    scheduler.hold(1, until=5.0)
    assert scheduler.next_deadline == 5.0
    assert scheduler.expire(4.9) == []
    (ended,) = scheduler.expire(5.0)
    assert (ended.request_id, ended.finish) == (1, "error")
    assert ended.error == "what the request was held for did not come before its deadline"
    assert not scheduler.busy


def test_holding_or_releasing_an_unknown_request_does_nothing():
    scheduler = make_scheduler()
    scheduler.hold(7, until=1.0)
    scheduler.release(7)
    scheduler.check()
