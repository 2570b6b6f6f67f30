from servekit.scheduler.prefix import extend_hashes
from tests.scheduler.fake_executor import FakeExecutor, alone, drain, make_scheduler, request, step

SYSTEM = list(range(900, 908))


def hashes(tokens: list[int], count: int, salt: bytes = b"") -> list[bytes]:
    asked = request(1, tokens, salt=salt)
    extend_hashes(asked, count, 4)
    return asked.hashes


def test_a_hash_stands_for_everything_up_to_the_end_of_its_block():
    left, right = hashes([1, 2, 3, 4, 5, 6, 7, 8], 2), hashes([9, 2, 3, 4, 5, 6, 7, 8], 2)
    assert left[0] != right[0]
    assert left[1] != right[1]


def test_hashes_are_extended_not_made_again():
    asked = request(1, [1, 2, 3, 4, 5, 6, 7, 8])
    extend_hashes(asked, 1, 4)
    extend_hashes(asked, 2, 4)
    assert asked.hashes == hashes([1, 2, 3, 4, 5, 6, 7, 8], 2)


def test_token_boundaries_count():
    assert hashes([1, 11, 1, 1], 1) != hashes([11, 1, 1, 1], 1)


def test_a_salt_sets_equal_prefixes_apart():
    assert hashes(SYSTEM, 2, b"a") != hashes(SYSTEM, 2, b"b")


def test_a_second_request_computes_only_what_the_first_did_not():
    scheduler, executor = make_scheduler(), FakeExecutor(4)
    scheduler.add(request(1, [*SYSTEM, 1]))
    drain(scheduler, executor)
    scheduler.add(request(2, [*SYSTEM, 2]))
    batch = scheduler.plan(0.0)
    assert batch is not None
    assert (batch.rows[0].start, batch.rows[0].tokens) == (8, [2])
    stats = scheduler.stats()
    assert (stats.prefix_query_tokens_total, stats.prefix_hit_tokens_total) == (18, 8)


def test_progress_says_how_much_of_the_prompt_was_cached():
    scheduler, executor = make_scheduler(), FakeExecutor(4)
    scheduler.add(request(1, [*SYSTEM, 1]))
    assert drain(scheduler, executor)[1].cached_tokens == 0
    scheduler.add(request(2, [*SYSTEM, 2]))
    assert drain(scheduler, executor)[2].cached_tokens == 8


def test_the_last_prompt_token_is_always_computed():
    scheduler, executor = make_scheduler(), FakeExecutor(4)
    scheduler.add(request(1, SYSTEM))
    drain(scheduler, executor)
    scheduler.add(request(2, SYSTEM))
    batch = scheduler.plan(0.0)
    assert batch is not None
    assert (batch.rows[0].start, batch.rows[0].tokens) == (7, SYSTEM[7:])


def test_output_is_cached_too():
    scheduler, executor = make_scheduler(), FakeExecutor(4)
    first = request(1, SYSTEM, max_tokens=6)
    scheduler.add(first)
    said = drain(scheduler, executor)[1].tokens
    scheduler.add(request(2, [*SYSTEM, *said, 7, 7]))
    assert drain(scheduler, executor)[2].cached_tokens == 13


def test_a_block_is_not_cached_before_its_step_is_committed():
    scheduler, executor = make_scheduler(), FakeExecutor(4)
    scheduler.add(request(1, [*SYSTEM, 1]))
    first = scheduler.plan(0.0)
    assert first is not None
    assert scheduler.stats().blocks_cached == 0
    scheduler.commit(first, executor.run(first), 0.0)
    assert scheduler.stats().blocks_cached == 2


def test_equal_prompts_that_come_together_are_computed_once():
    scheduler, executor = make_scheduler(budget=64, seats=8), FakeExecutor(4)
    for id in range(1, 6):
        scheduler.add(request(id, [*SYSTEM, 1, 2]))
    cached = [end.cached_tokens for _, end in sorted(drain(scheduler, executor).items())]
    assert cached == [0, 9, 9, 9, 9]


def test_equal_prompts_computed_at_once_do_not_disturb_each_other():
    scheduler, executor = make_scheduler(budget=32), FakeExecutor(4)
    twins = [request(1, [*SYSTEM, 1], max_tokens=9), request(2, [*SYSTEM, 1], max_tokens=9)]
    for twin in twins:
        scheduler.add(twin)
    ends = drain(scheduler, executor)
    assert [ends[1].tokens, ends[2].tokens] == [alone(twin) for twin in twins]


def test_what_a_failed_step_computed_is_not_cached():
    scheduler, executor = make_scheduler(), FakeExecutor(4)
    scheduler.add(request(1, [*SYSTEM, 1]))
    step(scheduler, executor, fail=[1])
    assert scheduler.stats().blocks_cached == 0


def test_requests_of_different_salts_share_nothing():
    scheduler, executor = make_scheduler(), FakeExecutor(4)
    scheduler.add(request(1, [*SYSTEM, 1], salt=b"a"))
    drain(scheduler, executor)
    scheduler.add(request(2, [*SYSTEM, 1], salt=b"b"))
    assert drain(scheduler, executor)[2].cached_tokens == 0


def test_without_prefix_caching_nothing_is_cached():
    scheduler, executor = make_scheduler(prefix_caching=False), FakeExecutor(4)
    scheduler.add(request(1, SYSTEM))
    drain(scheduler, executor)
    assert scheduler.stats().blocks_cached == 0
