"""Who holds which KV block, and what the free ones still remember."""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable
from itertools import islice

AHEAD = 64
"""Blocks that are evicted at once, at most: one by one costs several times as much. Of a small pool
as many as one in 256, so that hardly any content goes before it must.
"""


Content = object
"""What is known of a block: the hash that it is found by, or what keeps it instead."""


def _nobody(blocks: list[int], contents: list[Content]) -> None:
    """Nobody asked to be told."""


class BlockPool:
    """Hands out block numbers and counts their holders; it never sees a tensor.

    Block 0 is the null block: padding points at it, nobody owns it. Every other block is in exactly
    one of four places: held (a positive count in `holders`), empty (free, its content worth
    nothing), evictable (free, but found by the hash of its content until it is handed out again)
    or kept (the same, but pinned). Empty blocks go first, then the evictable one that was given
    back longest ago, then so of the kept ones. Every operation takes constant time a block.

    Lists and not dictionaries hold what is known of a block: there are tens of thousands, and
    memory is what these operations wait for.
    """

    def __init__(
        self, num_blocks: int, evicted: Callable[[list[int], list[Content]], None] = _nobody
    ) -> None:
        """`evicted` is told which blocks are handed out that had a content, and what it was."""
        assert num_blocks >= 2, f"{num_blocks} blocks: one is the null block, one must hold tokens"
        self.num_blocks = num_blocks
        self.ahead = min(AHEAD, num_blocks // 256)
        self.evicted = evicted
        self.holders = [0] * num_blocks
        self.empty = list(range(num_blocks - 1, 0, -1))
        self.kept: OrderedDict[int, None] = OrderedDict()
        self.pinned: set[int] = set()
        """Remembered blocks, added while held, that are kept when they are given back."""
        self.block_of: dict[bytes, int] = {}
        self.content: list[Content | None] = [None] * num_blocks
        """Of a block that is remembered; None: worth nothing."""
        self.turns: deque[tuple[int, list[int]]] = deque()
        """Blocks that became evictable together, the first ones first. Those of them that were
        held again since are still listed: they have another `turn_of`.
        """
        self.turn_of = [0] * num_blocks
        """In which an evictable block is listed."""
        self.turn = 0
        self.listed = 0
        """Blocks in all turns together."""
        self.num_evictable = 0
        self.num_free = num_blocks - 1
        """Empty, evictable and kept ones together; it is asked for all the time."""

    @property
    def num_remembering(self) -> int:
        """Free blocks whose content can be found."""
        return self.num_free - len(self.empty)

    @property
    def evictable(self) -> list[int]:
        """In the order in which they go."""
        return [block for turn, listed in self.turns for block in self._still(turn, listed)]

    def _still(self, turn: int, listed: list[int]) -> list[int]:
        turn_of = self.turn_of
        return [block for block in listed if turn_of[block] == turn]

    def take(self, count: int) -> list[int]:
        assert count <= self.num_free, f"asked for {count} blocks, {self.num_free} are free"
        left = len(self.empty) - count
        if left >= 0:
            blocks = self.empty[left:]
            del self.empty[left:]
            blocks.reverse()
        else:
            evicted = self._evict(max(-left, min(self.ahead, self.num_evictable)))
            blocks = self.empty[::-1] + evicted[:-left]
            self.empty = evicted[: -left - 1 : -1]
        holders = self.holders
        for block in blocks:
            holders[block] = 1
        self.num_free -= count
        return blocks

    def _evict(self, count: int) -> list[int]:
        """The oldest first."""
        blocks = self._oldest(count)
        if len(blocks) < count:
            kept = list(islice(self.kept, count - len(blocks)))
            for block in kept:
                del self.kept[block]
            self.pinned.difference_update(kept)
            blocks += kept
        content, block_of = self.content, self.block_of
        contents = [content[block] for block in blocks]
        for block in blocks:
            content[block] = None
        for gone in contents:
            if gone.__class__ is bytes:
                del block_of[gone]
        self.evicted(blocks, contents)
        return blocks

    def _oldest(self, count: int) -> list[int]:
        """Evictable ones, which are that no more; so many, or all."""
        blocks: list[int] = []
        turns = self.turns
        while turns and (missing := count - len(blocks)):
            turn, listed = turns[0]
            blocks += self._still(turn, listed[:missing])
            self.listed -= min(missing, len(listed))
            del listed[:missing]
            if not listed:
                turns.popleft()
        self.num_evictable -= len(blocks)
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """Hold blocks that `find` gave, whether somebody holds them or not."""
        holders = self.holders
        for block in blocks:
            if not holders[block]:
                self.num_free -= 1
                if block in self.pinned:
                    del self.kept[block]
                else:
                    self.turn_of[block] = 0
                    self.num_evictable -= 1
            holders[block] += 1

    def give_back(self, blocks: list[int]) -> None:
        """Let go of a block table. Its end is evicted first: a prefix serves more than a suffix."""
        holders = self.holders
        counts = list(map(holders.__getitem__, blocks))
        if counts.count(1) == len(counts):
            free = blocks[::-1]
            for block in free:
                holders[block] = 0
        else:
            free = self._let_go(blocks)
        self.num_free += len(free)
        content = self.content
        if empty := [block for block in free if content[block] is None]:
            self.empty += empty
            free = [block for block in free if content[block] is not None]
        if self.pinned:
            self.kept.update(dict.fromkeys(block for block in free if block in self.pinned))
            free = [block for block in free if block not in self.pinned]
        if free:
            self._line_up(free)

    def _let_go(self, blocks: list[int]) -> list[int]:
        """One holder less of each, the last first; returns those that nobody holds any more."""
        holders, free = self.holders, []
        for block in reversed(blocks):
            holders[block] = left = holders[block] - 1
            if not left:
                free.append(block)
        return free

    def _line_up(self, blocks: list[int]) -> None:
        """They are evictable now, after all others. What was held again is sorted out from time to
        time, or a cache that is hit much would list ever more.
        """
        self.turn = turn = self.turn + 1
        turn_of = self.turn_of
        for block in blocks:
            turn_of[block] = turn
        self.turns.append((turn, blocks))
        self.num_evictable += len(blocks)
        self.listed += len(blocks)
        if self.listed > 2 * self.num_blocks:
            still = ((turn, self._still(turn, listed)) for turn, listed in self.turns)
            self.turns = deque(entry for entry in still if entry[1])
            self.listed = self.num_evictable

    def find(self, content: bytes) -> int | None:
        return self.block_of.get(content)

    def is_free(self, block: int) -> bool:
        return not self.holders[block]

    def remember_all(self, blocks: list[int], contents: list[bytes]) -> bool:
        """Let `find` give these held blocks, whose contents differ; False: it gives others for some
        of them, so that each is to be remembered by itself.
        """
        if list(map(self.block_of.setdefault, contents, blocks)) != blocks:
            return False
        content = self.content
        for block, known_by in zip(blocks, contents, strict=True):
            content[block] = known_by
        return True

    def remember(self, block: int, content: bytes) -> bool:
        """Let `find` give this held block; of two with the same content the first stays known.

        Says whether it is this one.
        """
        if self.block_of.setdefault(content, block) != block:
            return False
        self.content[block] = content
        return True

    def forget(self, block: int) -> None:
        """It was remembered, and is worth nothing: held or evictable."""
        self.content[block] = None
        if self.is_free(block):
            self.turn_of[block] = 0
            self.num_evictable -= 1
            self.empty.append(block)

    def check(self, tables: Iterable[list[int]]) -> None:
        """`tables` are the block tables of all that hold blocks."""
        held = Counter(block for table in tables for block in table)
        for block in range(self.num_blocks):
            assert self.holders[block] == held[block], f"block {block} has holders nobody knows"
        evictable = self.evictable
        free = [*self.empty, *evictable, *self.kept]
        assert self.num_free == len(free), "free blocks are miscounted"
        in_use = [block for block in range(self.num_blocks) if self.holders[block]]
        assert sorted(free + in_use) == list(range(1, self.num_blocks)), "a block leaked"
        assert not any(self.content[block] for block in self.empty), "an empty block is cached"
        assert all(self.content[block] for block in (*evictable, *self.kept)), "it is never found"
        hashed = ((block, known) for block, known in enumerate(self.content))
        known = {known: block for block, known in hashed if isinstance(known, bytes)}
        assert self.block_of == known, "what is found is not what is there"
        assert self.num_evictable == len(evictable), "evictable blocks are miscounted"
        assert self.listed == sum(len(listed) for _, listed in self.turns), "the list is miscounted"
        assert all(self.content[block] for block in self.pinned), "pinned, but not cached"
        assert self.pinned.isdisjoint(evictable), "a pinned block is evicted like any other"
        assert self.pinned.issuperset(self.kept), "a block is kept that is not pinned"
