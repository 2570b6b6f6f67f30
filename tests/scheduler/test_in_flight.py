import pytest

from servekit.scheduler.batch import PLACEHOLDER, Outcome
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
        assert scheduler.commit(batch, executor.run(batch), 0.0).progress == []
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
    (end,) = scheduler.commit(first, executor.run(first), 0.0).progress
    assert end.finish == "stop"
    assert scheduler.busy
    assert scheduler.commit(second, executor.run(second), 0.0).progress == []
    assert not scheduler.busy


def test_who_has_a_row_in_flight_gives_way_only_after_it_is_committed():
    scheduler, executor = make_scheduler(num_blocks=5), FakeExecutor(4)
    both = [request(1, prompt=7, max_tokens=8), request(2, prompt=7, max_tokens=8)]
    for one in both:
        scheduler.add(one)
    batches = [scheduler.plan(0.0), scheduler.plan(0.0)]
    third = scheduler.plan(0.0)
    assert third is None
    assert both[1].tables
    for batch in batches:
        assert batch is not None
        scheduler.commit(batch, executor.run(batch), 0.0)
    batch, rows = planned(scheduler)
    assert [row[0] for row in rows] == [1]
    assert both[1].tables == ()
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
        scheduler.commit(second, Outcome([0], {}), 0.0)


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


def test_what_a_batch_holds_is_not_changed_by_what_happens_after_it():
    scheduler, executor = make_scheduler(), FakeExecutor(4)
    for id in (1, 2, 3):
        scheduler.add(request(id, max_tokens=9))
    step(scheduler, executor)
    batch = scheduler.plan(0.0)
    assert batch is not None
    ids, starts, tokens, tables = (list(column) for column in batch.decodes)
    scheduler.abort(2)
    scheduler.add(request(4))
    scheduler.plan(0.0)
    assert tuple(batch.decodes) == (ids, starts, tokens, tables)
    gains = scheduler.commit(batch, executor.run(batch), 0.0)
    assert gains.ids == [1, 3]


def test_requests_in_lock_step_share_their_columns_from_batch_to_batch():
    scheduler, executor = make_scheduler(block_size=16), FakeExecutor(16)
    for id in (1, 2):
        scheduler.add(request(id, max_tokens=9))
    step(scheduler, executor)
    batches = []
    for _ in range(2):
        batch, _ = planned(scheduler)
        scheduler.commit(batch, executor.run(batch), 0.0)
        batches.append(batch)
    assert batches[0].decodes.ids is batches[1].decodes.ids
    assert batches[1].decodes.starts == [4, 4]


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_the_counts_of_a_request_in_lock_step_follow_its_batches(depth):
    scheduler, executor = make_scheduler(block_size=16), FakeExecutor(16)
    asked = request(1, max_tokens=20)
    scheduler.add(asked)
    batches = [scheduler.plan(0.0) for _ in range(depth)]
    for done in range(1, 6):
        batch = batches.pop(0)
        assert batch is not None
        scheduler.commit(batch, executor.run(batch), 0.0)
        batches.append(scheduler.plan(0.0))
        assert asked.committed == 3 + done - 1
        assert asked.computed == 3 + done + depth - 1
        assert asked.in_flight == depth
        assert asked.wanted == asked.computed + 1


def test_who_was_to_give_way_and_comes_to_be_first_gets_a_row():
    rules = {"reserve": "greedy", "victim": "cheapest"}
    scheduler = make_scheduler(seats=6, budget=6, num_blocks=8, block_size=1, **rules)
    executor = FakeExecutor(1)
    scheduler.add(request(0, prompt=2, max_tokens=1))
    for id in range(1, 5):
        scheduler.add(request(id, prompt=1, max_tokens=2))
    batch, _ = planned(scheduler)
    assert scheduler.plan(0.0) is None
    assert [loser.id for loser in scheduler.shortage.giving] == [1]
    scheduler.commit(batch, executor.run(batch), 0.0)
    assert scheduler.running[0].id == 1
    assert planned(scheduler)[1][0][0] == 1
