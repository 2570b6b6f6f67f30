import pytest

from servekit.scheduler.batch import PLACEHOLDER, Outcome
from tests.scheduler.fake_executor import (
    FakeExecutor,
    alone,
    drain,
    make_scheduler,
    next_token,
    request,
    step,
)


def planned(scheduler):
    """(request, start, number of tokens, samples) of each row."""
    batch = scheduler.plan(0.0)
    assert batch is not None
    return batch, [(r.request_id, r.start, len(r.tokens), r.samples) for r in batch.rows]


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
    while not scheduler.preemptions_total:
        step(scheduler, executor)
    assert [r.id for r in scheduler.waiting.line] == [2]
    assert both[1].output == alone(both[1])[: len(both[1].output)] != []
    ends = drain(scheduler, executor)
    assert [both[0].output, both[1].output] == [alone(both[0]), alone(both[1])]
    assert [ends[1].preemptions, ends[2].preemptions] == [0, 1]


def test_a_preempted_request_goes_before_those_that_came_after_it():
    scheduler, executor = make_scheduler(num_blocks=5, seats=2), FakeExecutor(4)
    for id in (1, 2, 3):
        scheduler.add(request(id, prompt=6, max_tokens=8))
    while not scheduler.preemptions_total:
        step(scheduler, executor)
    assert [r.id for r in scheduler.waiting.line] == [2, 3]


def test_nobody_is_seated_in_a_step_in_which_somebody_gave_way():
    scheduler, executor = make_scheduler(num_blocks=5, seats=3), FakeExecutor(4)
    scheduler.add(request(1, prompt=6, max_tokens=8))
    scheduler.add(request(2, prompt=6, max_tokens=8))
    step(scheduler, executor)
    scheduler.add(request(3, prompt=1, max_tokens=1))
    while not scheduler.preemptions_total:
        assert 3 not in [r.id for r in scheduler.running]
        step(scheduler, executor)
    assert [r.id for r in scheduler.running] == [1]


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


def test_the_token_of_a_batch_in_flight_is_a_placeholder_in_the_next():
    scheduler, executor = make_scheduler(), FakeExecutor(4)
    asked = request(1)
    scheduler.add(asked)
    first, second = scheduler.plan(0.0), scheduler.plan(0.0)
    assert first is not None
    assert second is not None
    assert (second.rows[0].start, second.rows[0].tokens) == (3, [PLACEHOLDER])
    for batch in (first, second):
        scheduler.commit(batch, executor.run(batch), 0.0)
    assert asked.output == alone(asked)[:2]


def test_no_row_is_planned_for_a_token_beyond_max_tokens():
    scheduler = make_scheduler()
    scheduler.add(request(1, max_tokens=2))
    assert scheduler.plan(0.0) is not None
    assert scheduler.plan(0.0) is not None
    assert scheduler.plan(0.0) is None


def test_a_request_aborted_in_flight_keeps_its_blocks_until_its_last_batch_is_committed():
    scheduler, executor = make_scheduler(), FakeExecutor(4)
    scheduler.add(request(1))
    batches = [scheduler.plan(0.0), scheduler.plan(0.0)]
    scheduler.abort(1)
    free = []
    for batch in batches:
        assert batch is not None
        free.append(scheduler.stats().blocks_free)
        scheduler.check()
        assert scheduler.commit(batch, executor.run(batch), 0.0) == []
    assert free == [18, 18]
    assert scheduler.stats().blocks_free == 19
    assert not scheduler.busy


def test_what_was_computed_after_a_stop_is_discarded():
    prompt = [1, 2, 3]
    scheduler, executor = make_scheduler(), FakeExecutor(4)
    scheduler.add(request(1, prompt, max_tokens=9, stop_ids=frozenset({next_token(prompt)})))
    first, second = scheduler.plan(0.0), scheduler.plan(0.0)
    assert first is not None
    assert second is not None
    (end,) = scheduler.commit(first, executor.run(first), 0.0)
    assert end.finish == "stop"
    assert scheduler.busy
    assert scheduler.commit(second, executor.run(second), 0.0) == []
    assert not scheduler.busy


def test_who_has_a_row_in_flight_gives_way_only_after_it_is_committed():
    scheduler, executor = make_scheduler(num_blocks=5), FakeExecutor(4)
    both = [request(1, prompt=7, max_tokens=8), request(2, prompt=7, max_tokens=8)]
    for one in both:
        scheduler.add(one)
    batches = [scheduler.plan(0.0), scheduler.plan(0.0)]
    third = scheduler.plan(0.0)
    assert third is None
    assert both[1].blocks
    for batch in batches:
        assert batch is not None
        scheduler.commit(batch, executor.run(batch), 0.0)
    batch, rows = planned(scheduler)
    assert [row[0] for row in rows] == [1]
    assert both[1].blocks == []
    scheduler.commit(batch, executor.run(batch), 0.0)
    drain(scheduler, executor)
    assert [one.output for one in both] == [alone(one) for one in both]


def test_batches_are_committed_in_the_order_they_were_planned():
    scheduler = make_scheduler()
    scheduler.add(request(1))
    scheduler.plan(0.0)
    second = scheduler.plan(0.0)
    assert second is not None
    with pytest.raises(AssertionError, match="batch 1 comes before batch 2"):
        scheduler.commit(second, Outcome({1: [0]}), 0.0)


def with_drafts(drafts, **changes):
    """A request after its prompt, about to verify `drafts`."""
    scheduler, executor = make_scheduler(), FakeExecutor(4)
    asked = request(1, **changes)
    scheduler.add(asked)
    step(scheduler, executor)
    truth = alone(asked)
    asked.drafts = drafts(truth)
    return scheduler, executor, asked, truth


@pytest.mark.parametrize("right", [0, 1, 2, 3])
def test_drafts_give_as_many_tokens_as_were_right_and_one_more(right):
    scheduler, executor, asked, truth = with_drafts(
        lambda truth: [*truth[1 : 1 + right], *[t + 1 for t in truth[1 + right : 4]]],
        max_tokens=9,
    )
    (progress,) = step(scheduler, executor)
    assert progress.tokens == truth[1 : right + 2]
    assert asked.computed == len(asked.tokens) - 1
    drain(scheduler, executor)
    assert asked.output == truth


def test_while_drafts_are_in_flight_their_request_is_not_planned():
    scheduler, _, _, _ = with_drafts(lambda truth: truth[1:3], max_tokens=9)
    assert scheduler.plan(0.0) is not None
    assert scheduler.plan(0.0) is None


def test_drafts_never_reach_beyond_max_tokens():
    scheduler, _, _, _ = with_drafts(lambda truth: truth[1:] * 5, max_tokens=4)
    _, rows = planned(scheduler)
    assert rows == [(1, 3, 3, True)]


def test_drafts_for_a_token_that_is_not_known_yet_are_dropped():
    scheduler, _, asked, _ = with_drafts(lambda truth: [], max_tokens=9)
    scheduler.plan(0.0)
    asked.drafts = [1, 2]
    _, rows = planned(scheduler)
    assert rows == [(1, 4, 1, True)]
    assert asked.drafts == []


def test_a_stop_token_among_accepted_drafts_cuts_off_what_follows():
    truth = alone(request(1, max_tokens=9))
    scheduler, executor, asked, _ = with_drafts(lambda _: truth[1:6], max_tokens=9)
    asked.stop_ids = frozenset({truth[3]})
    asked.min_tokens = 3
    (end,) = step(scheduler, executor)
    assert (end.tokens, end.finish) == (truth[1:4], "stop")


def test_nobody_gives_way_for_drafts():
    scheduler, executor = make_scheduler(num_blocks=4), FakeExecutor(4)
    first, second = request(1, prompt=3, max_tokens=8), request(2, prompt=5, max_tokens=3)
    scheduler.add(first)
    scheduler.add(second)
    step(scheduler, executor)
    first.drafts = alone(first)[1:7]
    _, rows = planned(scheduler)
    assert rows == [(1, 3, 1, True), (2, 5, 1, True)]


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
