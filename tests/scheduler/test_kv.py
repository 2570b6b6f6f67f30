from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servekit.scheduler.groups import Group, KvSettings
from servekit.scheduler.kv import KvBlocks
from servekit.scheduler.prefix_cache import Hit
from servekit.scheduler.request import Request
from tests.scheduler.kv_world import World, drawn, live

SYSTEM = list(range(900, 908))


def blocks(num_blocks: int = 20, **more: object) -> KvBlocks:
    return KvBlocks(KvSettings(num_blocks=num_blocks, block_size=4, **more))  # type: ignore[arg-type]


def seated(
    kv: KvBlocks, id: int, prompt: list[int], *, salt: bytes = b"", done: int = 0
) -> Request:
    """A request with a seat, of whose prompt `done` tokens are computed; 0: all."""
    request = Request(id, prompt, 8, salt=salt)
    kv.seat(request, kv.lookup(request))
    request.admitted_at = 0.0
    return computed(kv, request, done or len(prompt))


def computed(kv: KvBlocks, request: Request, done: int) -> Request:
    """`done` tokens of it are committed, and one more is known if those were all."""
    request.computed = request.committed = done
    if done == len(request.tokens):
        request.tokens.append(7)
    kv.committed(request)
    return request


def asked(kv: KvBlocks, prompt: list[int], salt: bytes = b"") -> Hit:
    return kv.lookup(Request(99, prompt, 8, salt=salt))


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_every_row_reads_its_own_prefix_whatever_is_shared_copied_merged_or_swapped(seed):
    live(drawn(seed, (Group(),)))


def test_the_worlds_of_these_tests_swap_and_merge():
    worlds = [drawn(seed, (Group(),)) for seed in range(40)]
    for world in worlds:
        live(world)
    assert sum(world.swaps for world in worlds) > 10
    assert sum(world.kv.cache.merged_total for world in worlds) > 10
    assert all(world.kv.query_tokens_total for world in worlds)


def test_blocks_of_an_answer_are_found_eight_at_a_time_and_all_when_it_ends():
    kv = blocks(40)
    one = seated(kv, 1, SYSTEM)
    one.tokens += [7] * 40
    while not kv.reaches(one, len(one.tokens)):
        kv.extend(one)
    found = []
    for full in (2, 9, 10, 11):
        computed(kv, one, 4 * full)
        found.append(len(asked(kv, one.tokens).tables[0]))
    assert found == [2, 2, 10, 10]
    kv.release(one)
    assert len(asked(kv, one.tokens).tables[0]) == 11


def test_a_copy_of_the_wrong_block_does_not_go_unseen():
    world = World(KvSettings(12, 4), Random(1), [[*SYSTEM, 1, 2, 3]])
    for _ in range(2):
        world.arrive(3)
        world.drain()
    wrong = world.kv.take_copies
    world.kv.take_copies = lambda: wrong()._replace(within=[])  # type: ignore[method-assign]
    world.arrive(3)
    with pytest.raises((AssertionError, KeyError)):
        world.drain()


def test_seating_takes_blocks_for_all_known_tokens():
    kv = blocks()
    request = Request(1, list(range(9)), 8)
    assert kv.lacking(request, kv.lookup(request)) == 3
    kv.seat(request, kv.lookup(request))
    assert kv.num_free == 19 - 3
    assert kv.reaches(request, 11)
    assert not kv.reaches(request, 12)
    kv.extend(request)
    assert kv.reaches(request, 12)


def test_a_chunk_of_a_seated_prompt_has_blocks_already():
    kv = blocks()
    request = seated(kv, 1, list(range(9)), done=4)
    assert kv.prepare(request, 9) == 9


def test_a_free_cached_block_is_no_longer_free_once_it_is_shared():
    kv = blocks(num_blocks=4)
    kv.release(seated(kv, 1, [*SYSTEM, 1]))
    request = Request(2, [*SYSTEM, 2], 8)
    hit = kv.lookup(request)
    assert (hit.tokens, kv.lacking(request, hit), kv.num_free) == (8, 3, 3)
    kv.seat(request, hit)
    assert kv.num_free == 0


def test_an_identical_prompt_copies_the_last_block_and_computes_one_token():
    kv = blocks()
    first = seated(kv, 1, [*SYSTEM, 1, 2, 3])
    second = Request(2, [*SYSTEM, 1, 2, 3], 8)
    hit = kv.lookup(second)
    assert hit == Hit(10, (first.tables[0][:2],), first.tables[0][2])
    kv.seat(second, hit)
    assert kv.take_copies().within == [(first.tables[0][2], second.tables[0][2])]
    assert second.computed == second.committed == 10


def test_the_end_of_an_answer_is_copied_by_the_next_turn():
    kv = blocks()
    first = seated(kv, 1, [*SYSTEM, 1])
    computed(kv, first, 10)
    kv.release(first)
    assert asked(kv, [*SYSTEM, 1, 7, 8, 8]).tokens == 10


def test_a_block_that_parts_is_copied_up_to_there():
    kv = blocks()
    first = seated(kv, 1, [*SYSTEM, 1, 2, 3, 4, 5])
    hit = asked(kv, [*SYSTEM, 1, 2, 8, 8, 8, 8])
    assert (hit.tokens, hit.source) == (10, first.tables[0][2])


def test_less_than_a_quarter_of_a_block_is_not_worth_a_copy():
    kv = KvBlocks(KvSettings(20, 8))
    seated(kv, 1, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    assert asked(kv, [1, 0, 0, 0, 0, 0, 0, 0, 0]).source == 0
    assert asked(kv, [1, 2, 0, 0, 0, 0, 0, 0, 0]).tokens == 2


def test_a_copy_to_blocks_that_are_given_back_before_is_not_made():
    kv = blocks()
    seated(kv, 1, [*SYSTEM, 1, 2, 3])
    second = Request(2, [*SYSTEM, 1, 2, 3], 8)
    kv.seat(second, kv.lookup(second))
    kv.release(second)
    assert not kv.take_copies()
    assert asked(kv, [*SYSTEM, 1, 2, 3]).source != 0


def test_what_a_released_request_never_received_is_not_offered():
    kv = blocks(num_blocks=7)
    first = seated(kv, 1, [*SYSTEM, 1, 2, 3])
    second = Request(2, [*SYSTEM, 1, 2, 3], 8)
    kv.seat(second, kv.lookup(second))
    kv.release(first)
    kv.release(second)
    assert asked(kv, [*SYSTEM, 1, 2, 3]).source == 3
    kv.check([])


def test_blocks_computed_twice_are_merged():
    kv = blocks()
    twins = [Request(id, [*SYSTEM, id], 8) for id in (1, 2)]
    for twin in twins:
        kv.seat(twin, kv.lookup(twin))
    for twin in twins:
        computed(kv, twin, 9)
    assert twins[0].tables[0][:2] == twins[1].tables[0][:2]
    assert kv.num_free == 19 - 4
    assert kv.cache.merged_total == 2
    kv.check(twins)


def test_blocks_that_a_row_in_flight_reads_are_not_merged():
    kv = blocks()
    twins = [Request(id, [*SYSTEM, id], 8) for id in (1, 2)]
    for twin in twins:
        kv.seat(twin, kv.lookup(twin))
    twins[1].in_flight = 1
    for twin in twins:
        computed(kv, twin, 9)
    assert twins[0].tables[0][:2] != twins[1].tables[0][:2]
    assert kv.cache.merged_total == 0


def test_a_prompt_waits_for_another_that_computes_most_of_what_it_lacks():
    kv = blocks()
    first = Request(1, [*SYSTEM, 1], 8)
    kv.seat(first, kv.lookup(first))
    second = Request(2, [*SYSTEM, 2], 8)
    assert kv.is_computed_by_another(second, kv.lookup(second))
    computed(kv, first, 4)
    assert kv.is_computed_by_another(second, kv.lookup(second))
    computed(kv, first, 9)
    hit = kv.lookup(second)
    assert (hit.tokens, kv.is_computed_by_another(second, hit)) == (8, False)


@pytest.mark.parametrize("end", ["release", "swap_out"])
def test_nobody_waits_for_one_that_lost_its_seat(end):
    kv = blocks(host_blocks=8)
    first = Request(1, [*SYSTEM, *SYSTEM, 1], 8)
    kv.seat(first, kv.lookup(first))
    computed(kv, first, 4)
    second = Request(2, [*SYSTEM, *SYSTEM, 2], 8)
    assert kv.is_computed_by_another(second, kv.lookup(second))
    getattr(kv, end)(first)
    assert not kv.is_computed_by_another(second, kv.lookup(second))


def test_a_small_overlap_is_not_worth_waiting_for():
    kv = blocks()
    first = Request(1, [*SYSTEM, 1], 8)
    kv.seat(first, kv.lookup(first))
    long = Request(2, [*SYSTEM, *range(20)], 8)
    assert not kv.is_computed_by_another(long, kv.lookup(long))


def test_the_probable_hit_follows_what_is_cached():
    kv = blocks(num_blocks=4)
    request = Request(9, [*SYSTEM, 2], 8)
    assert kv.probable_hit(request) == 0
    kv.release(seated(kv, 1, [*SYSTEM, 1]))
    assert kv.probable_hit(request) == 8
    kv.release(seated(kv, 2, [5] * 8))
    assert kv.probable_hit(request) == asked(kv, [*SYSTEM, 2]).tokens == 4


def test_pinned_prefixes_are_evicted_last_under_any_salt():
    kv = blocks(num_blocks=6)
    kv.pin(SYSTEM)
    for salt in (b"", b"tenant"):
        kv.release(seated(kv, 1, [*SYSTEM, 1], salt=salt))
    kv.release(seated(kv, 2, [5] * 4))
    assert [asked(kv, [*SYSTEM, 2], salt).tokens for salt in (b"", b"tenant")] == [8, 8]
    kv.release(seated(kv, 3, [6] * 20))
    assert asked(kv, [*SYSTEM, 2], b"tenant").tokens == 0


def test_freed_and_surviving_are_what_others_do_not_hold_and_what_they_do():
    kv = blocks()
    first = seated(kv, 1, [*SYSTEM, 1])
    assert (kv.freed_by(first), kv.surviving_tokens(first)) == (3, 0)
    second = seated(kv, 2, [*SYSTEM, 2])
    assert (kv.freed_by(second), kv.surviving_tokens(second)) == (1, 8)


def test_without_prefix_caching_nothing_is_found_or_kept():
    kv = blocks(prefix_caching=False)
    kv.release(seated(kv, 1, [*SYSTEM, 1]))
    assert asked(kv, [*SYSTEM, 1]).tokens == 0
    assert kv.cache.index.num_cached == 0
