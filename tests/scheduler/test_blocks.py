import pytest

from servekit.scheduler.blocks import BlockPool


def test_the_null_block_is_never_handed_out():
    pool = BlockPool(5)
    assert sorted(pool.take(4)) == [1, 2, 3, 4]
    assert pool.num_free == 0


def test_taking_more_than_is_free_is_our_own_bug():
    pool = BlockPool(3)
    with pytest.raises(AssertionError, match="asked for 3 blocks, 2 are free"):
        pool.take(3)


def test_a_shared_block_returns_only_when_its_last_holder_lets_go():
    pool = BlockPool(2)
    table = pool.take(1)
    pool.share(table)
    pool.give_back(table)
    assert pool.num_free == 0
    pool.check([table])
    pool.give_back(table)
    assert pool.num_free == 1
    pool.check([])


def test_a_free_block_is_found_by_its_content_until_it_is_handed_out_again():
    pool = BlockPool(2)
    (block,) = pool.take(1)
    pool.remember(block, b"content")
    pool.give_back([block])
    assert pool.find(b"content") == block
    assert pool.take(1) == [block]
    assert pool.find(b"content") is None
    pool.check([[block]])


def test_a_found_block_can_be_held_again():
    pool = BlockPool(3)
    (block,) = pool.take(1)
    pool.remember(block, b"content")
    pool.give_back([block])
    pool.share([block])
    assert pool.take(1) != [block]
    assert pool.find(b"content") == block


def test_empty_blocks_are_used_before_cached_ones():
    pool = BlockPool(4)
    first, second = pool.take(2)
    pool.remember(first, b"kept")
    pool.give_back([first, second])
    pool.take(2)
    assert pool.find(b"kept") == first


def test_the_block_given_back_longest_ago_is_evicted_first():
    pool = BlockPool(3)
    first, second = pool.take(2)
    pool.remember(first, b"1")
    pool.remember(second, b"2")
    pool.give_back([second])
    pool.give_back([first])
    pool.take(1)
    assert pool.find(b"2") is None
    assert pool.find(b"1") == first


def test_the_end_of_a_table_is_evicted_before_its_beginning():
    pool = BlockPool(3)
    head, tail = pool.take(2)
    pool.remember(head, b"head")
    pool.remember(tail, b"tail")
    pool.give_back([head, tail])
    pool.take(1)
    assert pool.find(b"tail") is None
    assert pool.find(b"head") == head


def test_of_two_blocks_with_one_content_the_first_stays_known():
    pool = BlockPool(3)
    first, second = pool.take(2)
    pool.remember(first, b"same")
    pool.remember(second, b"same")
    assert pool.find(b"same") == first
    pool.give_back([second])
    pool.check([[first]])
    assert len(pool.block_of) == 1


def test_check_names_a_block_whose_holder_is_unknown():
    pool = BlockPool(3)
    (block,) = pool.take(1)
    with pytest.raises(AssertionError, match=f"block {block} has holders nobody knows"):
        pool.check([])


def test_pinned_blocks_are_evicted_after_all_others():
    pool = BlockPool(4)
    table = pool.take(3)
    for block in table:
        pool.remember(block, bytes([block]))
    pool.pinned.add(table[2])
    pool.give_back(table)
    assert pool.take(2) == [table[1], table[0]]
    assert pool.find(bytes([table[2]])) == table[2]
    pool.check([[table[1], table[0]]])
    assert pool.take(1) == [table[2]]
    assert not pool.pinned


def test_who_asked_is_told_what_is_evicted():
    told: list[tuple[list[int], list[bytes]]] = []
    pool = BlockPool(4, lambda blocks, contents: told.append((blocks, contents)))
    table = pool.take(2)
    pool.remember(table[0], b"content")
    pool.give_back(table)
    pool.take(2)
    assert told == []
    pool.take(1)
    assert told == [([table[0]], [b"content"])]


def test_contents_are_remembered_together_or_else_one_by_one():
    pool = BlockPool(4)
    table = pool.take(3)
    assert pool.remember_all(table[:2], [b"1", b"2"])
    pool.check([table])
    assert not pool.remember_all([table[0], table[2]], [b"2", b"3"])
    assert not pool.remember(table[0], b"2")
    assert pool.remember(table[2], b"3")
    assert [pool.find(content) for content in (b"1", b"2", b"3")] == table
    pool.check([table])


def test_blocks_that_are_found_again_and_again_do_not_lengthen_the_list_of_evictable_ones():
    pool = BlockPool(20)
    table = pool.take(10)
    pool.remember_all(table, [bytes([block]) for block in table])
    pool.give_back(table)
    for _ in range(50):
        pool.share(table[:4])
        pool.give_back(table[:4])
        assert pool.listed <= 2 * pool.num_blocks + 4
        pool.check([])
    pool.take(19 - 10)
    assert pool.take(6) == table[:3:-1]
    assert pool.take(4) == table[3::-1]
