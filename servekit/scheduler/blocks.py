"""Who holds which KV block, and what the free ones still remember."""

from collections import Counter, OrderedDict
from collections.abc import Iterable


class BlockPool:
    """Hands out block numbers and counts their holders; it never sees a tensor.

    Block 0 is the null block: padding points at it, nobody owns it. Every other block is in exactly
    one of three places: held (a positive count in `holders`), empty (free, its content worth
    nothing), or evictable (free, but found by the hash of its content until it is handed out
    again). Empty blocks go first, then the evictable one that was given back longest ago. Every
    operation takes constant time a block.
    """

    def __init__(self, num_blocks: int) -> None:
        assert num_blocks >= 2, f"{num_blocks} blocks: one is the null block, one must hold tokens"
        self.num_blocks = num_blocks
        self.holders = [0] * num_blocks
        self.empty = list(range(num_blocks - 1, 0, -1))
        self.evictable: OrderedDict[int, None] = OrderedDict()
        self.block_of: dict[bytes, int] = {}
        self.hash_of: dict[int, bytes] = {}

    @property
    def num_free(self) -> int:
        return len(self.empty) + len(self.evictable)

    @property
    def num_cached(self) -> int:
        return len(self.block_of)

    def take(self, count: int) -> list[int]:
        assert count <= self.num_free, f"asked for {count} blocks, {self.num_free} are free"
        return [self._take_one() for _ in range(count)]

    def _take_one(self) -> int:
        if self.empty:
            block = self.empty.pop()
        else:
            block, _ = self.evictable.popitem(last=False)
            del self.block_of[self.hash_of.pop(block)]
        self.holders[block] = 1
        return block

    def share(self, blocks: Iterable[int]) -> None:
        """Hold blocks that `find` gave, whether somebody holds them or not."""
        for block in blocks:
            if not self.holders[block]:
                del self.evictable[block]
            self.holders[block] += 1

    def give_back(self, blocks: list[int]) -> None:
        """Let go of a block table. Its end is evicted first: a prefix serves more than a suffix."""
        for block in reversed(blocks):
            self.holders[block] -= 1
            if self.holders[block]:
                continue
            if block in self.hash_of:
                self.evictable[block] = None
            else:
                self.empty.append(block)

    def find(self, content: bytes) -> int | None:
        return self.block_of.get(content)

    def is_free(self, block: int) -> bool:
        return not self.holders[block]

    def remember(self, block: int, content: bytes) -> None:
        """Let `find` give this held block; of two with the same content the first stays known."""
        if content not in self.block_of:
            self.block_of[content] = block
            self.hash_of[block] = content

    def check(self, tables: Iterable[list[int]]) -> None:
        """`tables` are the block tables of all that hold blocks."""
        held = Counter(block for table in tables for block in table)
        for block in range(self.num_blocks):
            assert self.holders[block] == held[block], f"block {block} has holders nobody knows"
        free = [*self.empty, *self.evictable]
        in_use = [block for block in range(self.num_blocks) if self.holders[block]]
        assert sorted(free + in_use) == list(range(1, self.num_blocks)), "a block leaked"
        assert not any(block in self.hash_of for block in self.empty), "an empty block is cached"
        assert all(block in self.hash_of for block in self.evictable), "evictable, but never found"
        assert self.block_of == {content: block for block, content in self.hash_of.items()}
