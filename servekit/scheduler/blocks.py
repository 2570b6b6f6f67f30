"""Who holds which KV block, and what the free ones still remember."""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice, repeat

AHEAD = 64
"""Blocks that are evicted at once, at most: one by one costs several times as much. Of a small pool
as many as one in 256, so that hardly any content goes before it must.
"""


def _nobody(blocks: list[int], contents: list[bytes]) -> None:
    """Nobody asked to be told."""


def _each(results: Iterable[object]) -> None:
    """Have them all, for what that does."""
    deque(results, maxlen=0)


class BlockPool:
    """Hands out block numbers and counts their holders; it never sees a tensor.

    Block 0 is the null block: padding points at it, nobody owns it. Every other block is in exactly
    one of four places: held (a positive count in `holders`), empty (free, its content worth
    nothing), evictable (free, but found by the hash of its content until it is handed out again)
    or kept (the same, but pinned). Empty blocks go first, then the evictable one that was given
    back longest ago, then so of the kept ones. Every operation takes constant time a block.
    """

    def __init__(
        self, num_blocks: int, evicted: Callable[[list[int], list[bytes]], None] = _nobody
    ) -> None:
        """`evicted` is told which blocks are handed out that had a content, and what it was."""
        assert num_blocks >= 2, f"{num_blocks} blocks: one is the null block, one must hold tokens"
        self.num_blocks = num_blocks
        self.ahead = min(AHEAD, num_blocks // 256)
        self.evicted = evicted
        self.holders = [0] * num_blocks
        self.empty = list(range(num_blocks - 1, 0, -1))
        self.evictable: OrderedDict[int, None] = OrderedDict()
        self.kept: OrderedDict[int, None] = OrderedDict()
        self.pinned: set[int] = set()
        """Remembered blocks, added while held, that are kept when they are given back."""
        self.block_of: dict[bytes, int] = {}
        self.hash_of: dict[int, bytes] = {}
        self.num_free = num_blocks - 1
        """Empty, evictable and kept ones together; it is asked for all the time."""

    @property
    def num_cached(self) -> int:
        return len(self.block_of)

    def take(self, count: int) -> list[int]:
        assert count <= self.num_free, f"asked for {count} blocks, {self.num_free} are free"
        left = len(self.empty) - count
        if left >= 0:
            blocks = self.empty[left:]
            del self.empty[left:]
            blocks.reverse()
        else:
            evicted = self._evict(max(-left, min(self.ahead, len(self.evictable))))
            blocks = self.empty[::-1] + evicted[:-left]
            self.empty = evicted[: -left - 1 : -1]
        _each(map(self.holders.__setitem__, blocks, repeat(1)))
        self.num_free -= count
        return blocks

    def _evict(self, count: int) -> list[int]:
        """The oldest first."""
        blocks = list(islice(self.evictable, count))
        _each(map(self.evictable.__delitem__, blocks))
        if len(blocks) < count:
            kept = list(islice(self.kept, count - len(blocks)))
            _each(map(self.kept.__delitem__, kept))
            self.pinned.difference_update(kept)
            blocks += kept
        contents = list(map(self.hash_of.pop, blocks))
        _each(map(self.block_of.__delitem__, contents))
        self.evicted(blocks, contents)
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """Hold blocks that `find` gave, whether somebody holds them or not."""
        holders = self.holders
        for block in blocks:
            if not holders[block]:
                del (self.kept if block in self.pinned else self.evictable)[block]
                self.num_free -= 1
            holders[block] += 1

    def give_back(self, blocks: list[int]) -> None:
        """Let go of a block table. Its end is evicted first: a prefix serves more than a suffix."""
        holders, cached = self.holders, self.hash_of
        counts = list(map(holders.__getitem__, blocks))
        if counts.count(1) == len(counts):
            _each(map(holders.__setitem__, blocks, repeat(0)))
            free = blocks[::-1]
        else:
            free = self._let_go(blocks)
        self.num_free += len(free)
        remembered = list(filter(cached.__contains__, free))
        if len(remembered) < len(free):
            self.empty += [block for block in free if block not in cached]
        if self.pinned:
            self.kept.update(dict.fromkeys(b for b in remembered if b in self.pinned))
            remembered = [block for block in remembered if block not in self.pinned]
        self.evictable.update(dict.fromkeys(remembered))

    def _let_go(self, blocks: list[int]) -> list[int]:
        """One holder less of each, the last first; returns those that nobody holds any more."""
        holders, free = self.holders, []
        for block in reversed(blocks):
            holders[block] = left = holders[block] - 1
            if not left:
                free.append(block)
        return free

    def find(self, content: bytes) -> int | None:
        return self.block_of.get(content)

    def is_free(self, block: int) -> bool:
        return not self.holders[block]

    def remember_all(self, blocks: Sequence[int], contents: Sequence[bytes]) -> bool:
        """Let `find` give these held blocks; False, and nothing happens: it gives some already."""
        if not self.block_of.keys().isdisjoint(contents):
            return False
        self.block_of.update(zip(contents, blocks, strict=True))
        self.hash_of.update(zip(blocks, contents, strict=True))
        return True

    def remember(self, block: int, content: bytes) -> bool:
        """Let `find` give this held block; of two with the same content the first stays known.

        Says whether it is this one.
        """
        if self.block_of.setdefault(content, block) != block:
            return False
        self.hash_of[block] = content
        return True

    def check(self, tables: Iterable[list[int]]) -> None:
        """`tables` are the block tables of all that hold blocks."""
        held = Counter(block for table in tables for block in table)
        for block in range(self.num_blocks):
            assert self.holders[block] == held[block], f"block {block} has holders nobody knows"
        free = [*self.empty, *self.evictable, *self.kept]
        assert self.num_free == len(free), "free blocks are miscounted"
        in_use = [block for block in range(self.num_blocks) if self.holders[block]]
        assert sorted(free + in_use) == list(range(1, self.num_blocks)), "a block leaked"
        assert not any(block in self.hash_of for block in self.empty), "an empty block is cached"
        found = [*self.evictable, *self.kept]
        assert all(block in self.hash_of for block in found), "evictable, but never found"
        assert self.block_of == {content: block for block, content in self.hash_of.items()}
        assert self.pinned <= self.hash_of.keys(), "a block is pinned that is not cached"
        assert self.pinned.isdisjoint(self.evictable), "a pinned block is evicted like any other"
        assert self.pinned.issuperset(self.kept), "a block is kept that is not pinned"
