"""What can be found in the cache: blocks by their hash, chains of them by the first one's."""

from collections.abc import Callable
from itertools import takewhile

from servekit.scheduler.blocks import BlockPool, Content
from servekit.scheduler.chains import Chain, Chains
from servekit.scheduler.groups import KvSettings
from servekit.scheduler.misses import Misses
from servekit.scheduler.prefix import extend_hashes, hash_of_tail
from servekit.scheduler.request import Request
from servekit.scheduler.siblings import Siblings


class Index:
    """The pool and everything that says what is in its blocks, and what was.

    Where there is one group of layers with full attention (`whole`), nothing is hashed before
    somebody asks who may have the same: what a request computes that nobody knows is a chain.
    """

    def __init__(self, settings: KvSettings, whole: bool, woken: Callable[[Request], None]) -> None:
        """`woken` is told who computes a prompt that was a chain and is one no longer."""
        self.block_size = settings.block_size
        self.whole = whole
        self.woken = woken
        remembered = max(4096, settings.num_blocks)
        self.misses = Misses(settings.block_size, remembered)
        self.siblings = Siblings()
        self.pool = BlockPool(settings.num_blocks, self._evicted)
        self.chains = Chains(self.pool, settings.block_size, remembered)

    @property
    def num_cached(self) -> int:
        """Blocks that can be found, held ones too."""
        return len(self.pool.block_of) + self.chains.num_blocks

    def _evicted(self, blocks: list[int], contents: list[Content]) -> None:
        self.siblings.drop(blocks)
        hashed = self.chains.evicted(blocks, contents)
        self.misses.evict(hashed if self.whole else (content[:32] for content in hashed))

    def leading(self, request: Request, count: int) -> list[int]:
        """Blocks that hold the longest cached start of its tokens, `count` of them at most.

        Where that is not all, the hash of the one after it is among the request's.
        """
        known, hashes = self.pool.block_of, request.hashes
        while True:
            blocks: list[int] = list(takewhile(bool, map(known.get, hashes[:count])))  # type: ignore[arg-type]
            there = len(blocks)
            if there == count or (there < len(hashes) and not self.wake(hashes[there])):
                return blocks
            extend_hashes(request, min(count, 2 * there + 1), self.block_size)

    def is_known(self, content: bytes) -> bool:
        return content in self.pool.block_of or content in self.chains.asleep

    def was_known(self, request: Request, number: int) -> bool:
        """Its block of this number can be found, or could and was evicted."""
        extend_hashes(request, number + 1, self.block_size)
        content = request.hashes[number]
        gone = self.chains.exhume(content)
        if gone is not None:
            self.misses.evict(gone.hashes(self.block_size))
        self.wake(content)
        return content in self.pool.block_of or self.misses.was_evicted(content)

    def wake(self, head: bytes) -> bool:
        """If this is the head of a chain, remember each of its blocks: somebody else has it."""
        if head not in self.chains.asleep:
            return False
        chain = self.chains.wake(head)
        hashes = chain.hashes(self.block_size)
        there = len(chain.blocks)
        self._remember(chain.blocks, hashes[:there])
        self.misses.evict(hashes[there:])
        self._show(chain, hashes)
        owner = chain.owner
        if owner is not None:
            owner.hashes[chain.first : chain.first + chain.ever] = hashes
            if chain.computing:
                self.woken(owner)
        return True

    def _remember(self, blocks: list[int], contents: list[bytes]) -> None:
        """What is known already in another block is forgotten in this one."""
        if self.pool.remember_all(blocks, contents):
            return
        for block, content in zip(blocks, contents, strict=True):
            if not self.pool.remember(block, content):
                self.siblings.drop([block])
                self.pool.forget(block)

    def _show(self, chain: Chain, hashes: list[bytes]) -> None:
        """What others may copy the start of, as if each block had been remembered when it came."""
        size, first, tokens, content = self.block_size, chain.first, chain.tokens, self.pool.content
        for number in chain.shown():
            block, begin = chain.blocks[number - first], number * size
            if content[block] is not None:
                self.siblings.add(hashes[number - first - 1], block, tokens[begin : begin + size])
        if chain.prompt_end:
            self._show_prompt_end(chain, hashes)
        if chain.tail:
            part = tokens[(first + chain.ever) * size : chain.tail_end]
            if self.pool.remember(chain.tail, hash_of_tail(hashes[-1], part)):
                self.siblings.add(hashes[-1], chain.tail, part)
            else:
                self.pool.forget(chain.tail)

    def _show_prompt_end(self, chain: Chain, hashes: list[bytes]) -> None:
        """The block that the prompt ended in, which may be full since."""
        number = chain.prompt_end // self.block_size
        at = number - chain.first
        if at < len(chain.blocks):
            block = chain.blocks[at]
        elif chain.owner is not None:
            block = chain.owner.tables[0][number]
        else:
            return
        if block not in self.siblings.known:
            part = chain.tokens[number * self.block_size : chain.prompt_end]
            self.siblings.add(hashes[at - 1], block, part)

    def check(self) -> None:
        self.siblings.check()
        self.chains.check()
        pool = self.pool
        for block in self.siblings.known:
            assert pool.holders[block] or pool.content[block], f"{block} is copied, but empty"
        chained = sum(isinstance(content, Chain) for content in pool.content)
        assert chained == self.chains.num_blocks, "a block is in a chain that nobody knows"
