from servekit.scheduler.groups import Group, KvSettings
from servekit.scheduler.kv import KvBlocks
from servekit.scheduler.request import Request

SYSTEM = list(range(900, 908))


def blocks(num_blocks: int = 20, host_blocks: int = 8, **more: object) -> KvBlocks:
    settings = KvSettings(num_blocks=num_blocks, block_size=4, host_blocks=host_blocks, **more)  # type: ignore[arg-type]
    return KvBlocks(settings)


def running(kv: KvBlocks, id: int, prompt: list[int]) -> Request:
    """It has computed its prompt, and the copies of that are under way."""
    request = Request(id, prompt, 8)
    kv.seat(request, kv.lookup(request))
    request.admitted_at = 0.0
    request.computed = request.committed = len(prompt)
    request.tokens.append(7)
    kv.committed(request)
    kv.take_copies()
    return request


def test_a_swapped_request_comes_back_with_all_it_had_computed():
    kv = blocks(prefix_caching=False)
    request = running(kv, 1, list(range(9)))
    before = list(request.tables[0])
    assert kv.swap_out(request)
    assert request.tables == ()
    assert (kv.num_free, kv.num_host_free, kv.swaps_total) == (19, 5, 1)
    out = kv.take_copies()
    assert [block for block, _ in out.to_host] == before
    hit = kv.lookup(request)
    assert (hit.tokens, kv.lacking(request, hit)) == (9, 3)
    kv.seat(request, hit)
    assert request.committed == request.computed == 9
    back = kv.take_copies()
    assert [host for host, _ in back.from_host] == [host for _, host in out.to_host]
    assert [block for _, block in back.from_host] == request.tables[0]
    assert kv.num_host_free == 8
    kv.check([request])


def test_what_is_still_cached_is_not_copied_back():
    kv = blocks()
    request = running(kv, 1, [*SYSTEM, 1])
    kept = request.tables[0][:2]
    kv.swap_out(request)
    kv.take_copies()
    kv.seat(request, kv.lookup(request))
    assert request.tables[0][:2] == kept
    assert [block for _, block in kv.take_copies().from_host] == request.tables[0][2:]
    kv.check([request])


def test_a_request_that_host_memory_has_no_room_for_keeps_its_blocks():
    kv = blocks(host_blocks=2)
    request = running(kv, 1, list(range(9)))
    assert not kv.swap_out(request)
    assert len(request.tables[0]) == 3
    assert not kv.take_copies()


def test_there_is_nothing_to_keep_of_one_that_has_computed_nothing():
    kv = blocks()
    request = Request(1, list(range(9)), 8)
    kv.seat(request, kv.lookup(request))
    assert not kv.swap_out(request)


def test_one_that_is_just_coming_back_is_not_swapped_out_before_it_is_there():
    kv = blocks()
    request = running(kv, 1, list(range(9)))
    kv.swap_out(request)
    kv.take_copies()
    kv.seat(request, kv.lookup(request))
    assert not kv.swap_out(request)
    kv.take_copies()
    assert kv.swap_out(request)


def test_a_host_block_is_written_again_only_after_a_batch_that_reads_it():
    kv = blocks(host_blocks=3)
    first, second = running(kv, 1, list(range(9))), running(kv, 2, list(range(50, 59)))
    kv.swap_out(first)
    kv.take_copies()
    kv.seat(first, kv.lookup(first))
    assert not kv.swap_out(second)
    kv.take_copies()
    assert kv.swap_out(second)


def test_one_that_ends_while_swapped_gives_its_host_blocks_back():
    kv = blocks()
    request = running(kv, 1, list(range(9)))
    kv.swap_out(request)
    kv.take_copies()
    kv.release(request)
    kv.take_copies()
    assert (kv.num_host_free, kv.is_swapped(request)) == (8, False)
    kv.check([])


def test_blocks_given_back_before_their_copy_are_not_written():
    kv = blocks(prefix_caching=False)
    request = running(kv, 1, list(range(9)))
    kv.swap_out(request)
    kv.take_copies()
    kv.seat(request, kv.lookup(request))
    kv.release(request)
    assert not kv.take_copies()


def test_of_a_windowed_group_only_what_is_still_seen_is_swapped():
    kv = blocks(groups=(Group(), Group(4)))
    request = Request(1, list(range(17)), 8)
    kv.seat(request, kv.lookup(request))
    kv.prepare(request, 17)
    request.computed = request.committed = 17
    kv.committed(request)
    assert kv.swap_out(request)
    assert len(kv.take_copies().to_host) == 5 + 2
    kv.seat(request, kv.lookup(request))
    assert [bool(block) for block in request.tables[1]] == [False] * 3 + [True] * 2
    assert {block for _, block in kv.take_copies().from_host} == {
        *request.tables[0],
        *request.tables[1][3:],
    }
    kv.check([request])
