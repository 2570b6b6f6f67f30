import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servekit.scheduler.groups import Group, KvSettings
from servekit.scheduler.kv import KvBlocks
from servekit.scheduler.request import Request
from servekit.spec.groups import LayerGroup
from tests.scheduler.kv_world import drawn, live

LONG = list(range(40))


def blocks(*groups: Group, num_blocks: int = 60, step: int = 16, **more: object) -> KvBlocks:
    settings = KvSettings(num_blocks, 4, groups, step_tokens=step, **more)  # type: ignore[arg-type]
    return KvBlocks(settings)


def seated(kv: KvBlocks, id: int, prompt: list[int]) -> Request:
    request = Request(id, prompt, 100)
    kv.seat(request, kv.lookup(request))
    request.admitted_at = 0.0
    return request


def chunk(kv: KvBlocks, request: Request, end: int) -> None:
    """Compute and commit up to `end`; one more token is known if that was all."""
    assert kv.prepare(request, end) == end
    request.computed = request.committed = end
    if end == len(request.tokens):
        request.tokens.append(7)
    kv.committed(request)
    kv.check([request])


def decode(kv: KvBlocks, request: Request) -> None:
    """One more token, in lock step."""
    if not kv.reaches(request, request.computed):
        assert kv.can_extend(request)
        kv.extend(request)
    request.computed = request.committed = request.computed + 1
    request.tokens.append(7)
    kv.committed(request)


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_every_row_reads_its_own_prefix_in_any_mixture_of_groups(seed):
    live(drawn(seed))


@pytest.mark.parametrize(
    ("group", "position", "first"),
    [
        (Group(), 99, 0),
        (Group(1), 9, 9),
        (Group(4), 2, 0),
        (Group(4), 9, 6),
        (Group(4, chunked=True), 7, 4),
        (Group(4, chunked=True), 8, 8),
    ],
)
def test_a_token_sees_its_window_or_its_chunk(group, position, first):
    assert group.seen_from(position) == first


@pytest.mark.parametrize("window", [1, 4, 8, 13])
def test_the_most_that_a_request_holds_is_what_the_planner_counts(window):
    planned = LayerGroup("sliding", layers=1, window=window)
    most = planned.blocks_for(10**6, block_size=4, in_flight=16, drafts=0)
    assert Group(window).most_blocks(4, 16) == most


def test_a_windowed_group_holds_a_window_and_a_step_however_long_the_prompt_is():
    kv = blocks(Group(8))
    request = Request(1, LONG * 5, 8)
    hit = kv.lookup(request)
    assert kv.lacking(request, hit) == (8 - 1 + 16 + 3) // 4 + 1
    kv.seat(request, hit)
    assert 59 - kv.num_free == kv.lacking(request, hit) == 7


def test_what_fell_out_of_the_window_becomes_null_and_is_used_again():
    kv = blocks(Group(8), num_blocks=8)
    request = seated(kv, 1, LONG)
    for end in (16, 32, 40):
        chunk(kv, request, end)
    kinds = [bool(block) for block in request.tables[0]]
    assert kinds == [False] * 6 + [True] * 4
    assert kv.lookup(Request(2, LONG, 1)).tokens == 36


def test_a_prompt_is_not_stopped_by_one_seated_after_it():
    kv = blocks(Group(8), num_blocks=15, prefix_caching=False)
    first = seated(kv, 1, LONG)
    second = seated(kv, 2, LONG)
    assert kv.num_free == 0
    for end in (16, 32, 40):
        for request in (first, second):
            assert kv.prepare(request, end) == end
            request.computed = request.committed = end
            kv.committed(request)


def test_rows_in_flight_keep_what_they_see():
    kv = blocks(Group(8), num_blocks=8)
    request = seated(kv, 1, LONG)
    assert kv.prepare(request, 16) == 16
    request.computed = 16
    assert kv.prepare(request, 32) == 28
    assert all(request.tables[0])


def test_room_for_a_step_is_given_back_once_the_prompt_is_computed():
    kv = blocks(Group(8))
    request = seated(kv, 1, LONG)
    for end in (16, 32, 40):
        chunk(kv, request, end)
    assert 59 - kv.num_free == kv.blocks_for(40) == 4


def test_one_that_decodes_holds_no_more_than_its_window():
    kv = blocks(Group(8), num_blocks=8)
    request = seated(kv, 1, [1, 2, 3])
    chunk(kv, request, 3)
    for _ in range(60):
        decode(kv, request)
        kv.check([request])
        assert 7 - kv.num_free <= kv.blocks_for(60) == 4


def test_a_hit_needs_the_whole_chain_in_full_groups_and_the_window_in_others():
    kv = blocks(Group(), Group(4))
    request = seated(kv, 1, LONG)
    for end in (16, 32, 40):
        chunk(kv, request, end)
    kv.release(request)
    hit = kv.lookup(Request(2, [*LONG, 1], 1))
    assert hit.tokens == 40
    assert all(hit.tables[0])
    assert [bool(block) for block in hit.tables[1]] == [False] * 9 + [True]


def test_a_prefix_whose_window_is_gone_is_found_up_to_where_one_is_left():
    kv = blocks(Group(), Group(4), step=8)
    request = seated(kv, 1, LONG)
    for end in range(8, 41, 8):
        chunk(kv, request, end)
    kv.release(request)
    gone = [kv.pool.block_of[key] for key in kv.pool.block_of if len(key) > 32][-1]
    kept = [key for key, block in kv.pool.block_of.items() if block == gone]
    kv.pool.block_of.pop(kept[0])
    assert kv.lookup(Request(2, [*LONG, 1], 1)).tokens == 36


def test_two_that_share_a_window_part_without_either_being_a_block_short():
    kv = blocks(Group(8), num_blocks=15)
    first = seated(kv, 1, LONG)
    for end in (16, 32, 40):
        chunk(kv, first, end)
    second = seated(kv, 2, [*LONG, 5])
    assert second.computed == 40
    shared = [block for block in second.tables[0] if block]
    assert shared
    assert set(shared) <= set(first.tables[0])
    kv.check([first, second])
    for _ in range(20):
        decode(kv, first)
        kv.check([first, second])
    kv.release(first)
    kv.check([second])
    kv.release(second)
    assert kv.num_free == 14


def test_the_longest_request_is_what_all_groups_together_hold():
    assert blocks(Group(), num_blocks=11).max_servable_tokens == 40
    assert blocks(Group(), Group(), num_blocks=11).max_servable_tokens == 20
    assert blocks(Group(), Group(4), num_blocks=16).max_servable_tokens == 36
    assert blocks(Group(8), num_blocks=8).max_servable_tokens > 10**9
