import pytest

from servekit.errors import ContextTooLong
from tests.scheduler.fake_executor import (
    FakeExecutor,
    alone,
    drain,
    make_scheduler,
    next_token,
    planned,
    request,
    step,
)


def test_an_idle_scheduler_plans_nothing():
    scheduler = make_scheduler()
    assert scheduler.plan(0.0) is None
    assert not scheduler.busy


def test_a_long_prompt_is_computed_in_chunks_and_samples_at_its_end():
    scheduler, executor = make_scheduler(budget=4), FakeExecutor(4)
    scheduler.add(request(1, prompt=10))
    seen = []
    for _ in range(3):
        batch, rows = planned(scheduler)
        seen += rows
        scheduler.commit(batch, executor.run(batch), 0.0)
    assert seen == [(1, 0, 4, False), (1, 4, 4, False), (1, 8, 2, True)]


def test_a_last_prompt_token_that_is_left_for_a_step_of_its_own_gives_the_first_token_then():
    scheduler, executor = make_scheduler(budget=4), FakeExecutor(4)
    asked = request(1, prompt=9, max_tokens=5)
    scheduler.add(asked)
    for now in (1.0, 2.0, 3.0, 4.0):
        batch = scheduler.plan(now)
        assert batch is not None
        scheduler.commit(batch, executor.run(batch), now)
    assert asked.first_token_at == 3.0


def test_a_first_token_and_an_end_say_how_long_the_queue_and_the_prompt_took():
    scheduler, executor = make_scheduler(budget=4), FakeExecutor(4)
    asked = request(1, prompt=9, max_tokens=3)
    asked.arrived = 0.5
    scheduler.add(asked)
    told = []
    for now in (1.0, 2.0, 4.0, 5.0, 6.0):
        batch = scheduler.plan(now)
        gains = scheduler.commit(batch, executor.run(batch), now)
        told += [(one.queue_s, one.prefill_s, one.finish) for one in gains.others]
    assert told == [(0.5, 3.0, None), (0.5, 3.0, "length")]


def test_a_running_request_decodes_before_another_prompt_gets_the_rest_of_the_budget():
    scheduler, executor = make_scheduler(budget=4), FakeExecutor(4)
    scheduler.add(request(1, prompt=3))
    step(scheduler, executor)
    scheduler.add(request(2, prompt=20))
    for start in (0, 3):
        batch, rows = planned(scheduler)
        assert rows == [(1, 3 + start // 3, 1, True), (2, start, 3, False)]
        scheduler.commit(batch, executor.run(batch), 0.0)


def test_an_older_prompt_in_chunks_does_not_take_a_younger_decode_its_token():
    scheduler, executor = make_scheduler(budget=4, seats=2), FakeExecutor(4)
    scheduler.add(request(2, prompt=4, max_tokens=9))
    step(scheduler, executor)
    scheduler.add(request(1, prompt=20))
    step(scheduler, executor)
    _, rows = planned(scheduler)
    assert rows == [(2, 5, 1, True), (1, 3, 3, False)]


def test_a_stop_token_ends_it_and_is_the_last_of_its_tokens():
    asked = request(1, [1, 2, 3], max_tokens=50, stop_ids=frozenset({0}))
    scheduler = make_scheduler()
    scheduler.add(asked)
    end = drain(scheduler, FakeExecutor(4))[1]
    assert (end.finish, end.stop_token, end.tokens[-1]) == ("stop", 0, 0)
    assert end.tokens.count(0) == 1


def test_a_stop_token_before_min_tokens_is_a_token_like_any_other():
    asked = request(1, [1, 2, 3], max_tokens=50, min_tokens=12, stop_ids=frozenset({0, 1}))
    scheduler = make_scheduler()
    scheduler.add(asked)
    end = drain(scheduler, FakeExecutor(4))[1]
    assert len(end.tokens) > 12
    assert end.tokens == alone(asked)


def test_max_tokens_ends_it_with_length():
    scheduler = make_scheduler()
    scheduler.add(request(1, max_tokens=2))
    end = drain(scheduler, FakeExecutor(4))[1]
    assert (end.finish, end.stop_token, len(end.tokens)) == ("length", None, 2)


def test_a_stop_token_that_is_also_the_last_allowed_is_a_stop():
    prompt = [1, 2, 3]
    last = next_token(prompt)
    scheduler = make_scheduler()
    scheduler.add(request(1, prompt, max_tokens=1, stop_ids=frozenset({last})))
    assert drain(scheduler, FakeExecutor(4))[1].finish == "stop"


def test_when_blocks_run_out_the_last_arrived_gives_way_and_loses_nothing_it_said():
    scheduler, executor = make_scheduler(num_blocks=5), FakeExecutor(4)
    both = [request(1, prompt=6, max_tokens=8), request(2, prompt=6, max_tokens=8)]
    for one in both:
        scheduler.add(one)
    while not scheduler.stats().preemptions_total:
        step(scheduler, executor)
    assert [r.id for r in scheduler.line.requests()] == [2]
    assert both[1].output == alone(both[1])[: len(both[1].output)] != []
    ends = drain(scheduler, executor)
    assert [both[0].output, both[1].output] == [alone(both[0]), alone(both[1])]
    assert [ends[1].preemptions, ends[2].preemptions] == [0, 1]


def test_a_preempted_request_goes_before_those_that_came_after_it():
    scheduler, executor = make_scheduler(num_blocks=5, seats=2), FakeExecutor(4)
    for id in (1, 2, 3):
        scheduler.add(request(id, prompt=6, max_tokens=8))
    while not scheduler.stats().preemptions_total:
        step(scheduler, executor)
    assert [r.id for r in scheduler.line.requests()] == [2, 3]


def test_nobody_is_seated_in_a_step_in_which_somebody_gave_way():
    scheduler, executor = make_scheduler(num_blocks=5), FakeExecutor(4)
    for id, prompt in ((0, 1), (1, 7), (2, 7)):
        scheduler.add(request(id, prompt=prompt, max_tokens=9))
    scheduler.hold(0, until=9.0)
    step(scheduler, executor)
    step(scheduler, executor)
    scheduler.release(0)
    step(scheduler, executor)
    assert [r.id for r in scheduler.line.requests()] == [0, 2]
    assert scheduler.stats().blocks_free == 1


def test_a_failed_request_ends_with_the_reason_and_its_mates_go_on():
    scheduler, executor = make_scheduler(), FakeExecutor(4)
    scheduler.add(request(1))
    scheduler.add(request(2))
    progress = step(scheduler, executor, fail=[1])
    assert [(p.request_id, p.finish, p.error) for p in progress] == [
        (1, "error", "boom"),
        (2, None, None),
    ]
    assert list(drain(scheduler, executor)) == [2]
    assert scheduler.stats().blocks_free == scheduler.stats().blocks_total


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_an_abort_frees_everything_at_once(steps):
    scheduler, executor = make_scheduler(budget=4), FakeExecutor(4)
    scheduler.add(request(1, prompt=8, max_tokens=9))
    for _ in range(steps):
        step(scheduler, executor)
    ended = scheduler.abort(1)
    assert ended is not None
    assert (ended.request_id, ended.finish) == (1, "abort")
    scheduler.check()
    assert not scheduler.busy
    assert scheduler.stats().blocks_free == scheduler.stats().blocks_total
    assert scheduler.stats().waiting_tokens == 0


def test_a_held_request_can_be_aborted():
    scheduler = make_scheduler()
    scheduler.add(request(1))
    scheduler.hold(1, until=5.0)
    scheduler.abort(1)
    scheduler.check()
    assert not scheduler.busy


def test_aborting_what_nobody_knows_does_nothing():
    scheduler = make_scheduler()
    assert scheduler.abort(7) is None
    scheduler.add(request(1))
    scheduler.abort(1)
    assert scheduler.abort(1) is None


def test_the_times_of_first_seat_and_first_token_are_kept():
    scheduler, executor = make_scheduler(), FakeExecutor(4)
    asked = request(1)
    scheduler.add(asked)
    batch = scheduler.plan(3.0)
    assert batch is not None
    scheduler.commit(batch, executor.run(batch), 4.5)
    step(scheduler, executor)
    assert (asked.admitted_at, asked.first_token_at) == (3.0, 4.5)


def test_stats_count_who_runs_and_who_waits():
    scheduler, executor = make_scheduler(seats=1), FakeExecutor(4)
    for id in (1, 2, 3):
        scheduler.add(request(id, prompt=5))
    scheduler.hold(3, until=1.0)
    step(scheduler, executor)
    stats = scheduler.stats()
    assert (stats.running, stats.waiting, stats.held, stats.waiting_tokens) == (1, 2, 1, 10)
    assert (stats.blocks_total, stats.blocks_free, stats.blocks_cached) == (19, 17, 1)
    assert (stats.block_size, stats.steps_total) == (4, 1)


def test_the_block_table_of_a_row_outlives_the_request_that_gave_way():
    scheduler, executor = make_scheduler(), FakeExecutor(4)
    scheduler.add(request(1, prompt=5))
    batch = scheduler.plan(0.0)
    assert batch is not None
    table = list(batch.rows[0].tables[0])
    scheduler.commit(batch, executor.run(batch), 0.0)
    scheduler.abort(1)
    assert batch.rows[0].tables[0] == table


def test_an_interactive_request_is_due_within_the_slo_and_one_of_class_batch_never():
    scheduler = make_scheduler(slo={"ttft_ms": 500.0})
    asked, patient = request(1), request(2, slo_class="batch")
    scheduler.add(asked)
    scheduler.add(patient)
    assert (asked.due, patient.due) == (1.5, float("inf"))


def test_stats_count_what_was_thrown_away_and_what_was_refused():
    scheduler, executor = make_scheduler(num_blocks=5, reserve="greedy"), FakeExecutor(4)
    with pytest.raises(ContextTooLong):
        scheduler.add(request(9, prompt=900))
    for id in (1, 2):
        scheduler.add(request(id, prompt=6, max_tokens=8))
    while not scheduler.stats().preemptions_total:
        step(scheduler, executor)
    stats = scheduler.stats()
    assert stats.refused_total == {"context_length_exceeded": 1}
    assert stats.preempted_tokens_total == 8
    assert sum(stats.prefix_miss_tokens_total.values()) == 12
    assert (stats.swaps_total, stats.takeovers_total) == (0, 0)


def test_a_preempted_request_is_swapped_where_that_is_faster_and_reads_what_it_had():
    class Slow:
        def seconds(self, decodes, context, prefill=()):
            return 1.0 + sum(new for new, _ in prefill)

    scheduler = make_scheduler(
        num_blocks=5, reserve="greedy", host_blocks=9, block_copy_s=1e-6, step_time=Slow()
    )
    executor = FakeExecutor(4)
    both = [request(id, prompt=6, max_tokens=8) for id in (1, 2)]
    for one in both:
        scheduler.add(one)
    drain(scheduler, executor)
    stats = scheduler.stats()
    assert stats.swaps_total == stats.preemptions_total == 1
    assert stats.preempted_tokens_total == 0
    assert [one.output for one in both] == [alone(one) for one in both]


def test_who_has_a_lower_priority_number_takes_a_seat_from_one_who_decodes():
    scheduler, executor = make_scheduler(seats=1, order="priority"), FakeExecutor(4)
    slow, urgent = request(1, max_tokens=9, priority=1), request(2, priority=0)
    scheduler.add(slow)
    step(scheduler, executor)
    step(scheduler, executor)
    scheduler.add(urgent)
    step(scheduler, executor)
    assert [r.id for r in scheduler.running] == [2]
    drain(scheduler, executor)
    assert scheduler.stats().takeovers_total == 1
    assert [slow.output, urgent.output] == [alone(slow), alone(urgent)]
