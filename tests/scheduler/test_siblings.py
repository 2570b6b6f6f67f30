from servekit.scheduler.siblings import Siblings, common_start


def test_a_common_start_ends_with_the_shorter_one():
    assert common_start([1, 2, 3], [1, 2, 4]) == 2
    assert common_start([1, 2], [1, 2, 4]) == 2
    assert common_start([], [1]) == 0


def test_the_block_that_agrees_longest_is_closest():
    siblings = Siblings()
    siblings.add(b"p", 1, [5, 6, 0, 0])
    siblings.add(b"p", 2, [5, 6, 7, 0])
    siblings.add(b"q", 3, [5, 6, 7, 8])
    assert siblings.closest(b"p", [5, 6, 7, 8]) == (2, 3)
    assert siblings.closest(b"p", [4, 6]) == (0, 0)
    assert siblings.closest(b"r", [5, 6]) == (0, 0)
    siblings.check()


def test_of_many_after_one_prefix_the_newest_are_known():
    siblings = Siblings(most=2)
    for block in (1, 2, 3):
        siblings.add(b"p", block, [block])
    assert siblings.closest(b"p", [1]) == (0, 0)
    assert siblings.closest(b"p", [2]) == (2, 1)
    siblings.drop([1, 3])
    assert siblings.closest(b"p", [3]) == (0, 0)
    siblings.check()


def test_a_block_is_known_as_what_it_was_said_to_hold_last():
    siblings = Siblings()
    siblings.add(b"p", 1, [5])
    siblings.add(b"p", 1, [5, 6])
    assert siblings.closest(b"p", [5, 6]) == (1, 2)
    siblings.drop([1])
    assert not siblings.after
    siblings.check()
