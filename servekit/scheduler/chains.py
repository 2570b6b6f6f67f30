"""Blocks that nobody but their own request has asked for: only the first of them is hashed.

Prompts begin like others and end like none. To hash each block, and to know it by that, costs a
third of all that is done for a request; so it is done when somebody comes who has the first one.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Any

from servekit.scheduler.blocks import BlockPool
from servekit.scheduler.prefix import chain_hashes
from servekit.scheduler.request import Request


@dataclass(slots=True, eq=False)
class Chain:
    """Full blocks that follow each other in one request, found by the hash of the first, `head`.

    The first one is number `first` of its table. All are held by `owner`, or, once that is None,
    free: they are evicted from the end, and what is left is in `blocks`. There were `ever` of them.
    """

    head: bytes
    first: int
    tokens: list[int]
    """Of the request, from its beginning."""
    owner: Request | None
    computing: bool
    """The owner has full blocks of its prompt to compute."""
    blocks: list[int] = field(default_factory=list)
    ever: int = 0
    offers: list[int] = field(default_factory=list)
    """Where in the table those began that came together."""
    prompt_end: int = 0
    """Tokens of the prompt, if its end was shown in a block of the chain or in the one after."""
    tail: int = 0
    """The block after the last one, which is not full; 0: there is none."""
    tail_end: int = 0
    """Tokens up to the end of what is in it."""

    def hashes(self, block_size: int) -> list[bytes]:
        """Of all blocks that there ever were."""
        start = self.first * block_size
        rest = self.tokens[start + block_size : start + self.ever * block_size]
        return [self.head, *chain_hashes(self.head, rest, block_size)]

    def shown(self) -> list[int]:
        """Those numbers in the table, after the first, whose blocks others may copy the start of:
        the first and the last of each offer, while they are there.
        """
        there = self.first + len(self.blocks)
        ends = pairwise([*self.offers, self.first + self.ever])
        numbers = [number for begin, end in ends for number in (begin, end - 1)]
        return [number for number in dict.fromkeys(numbers) if self.first < number < there]


class Chains:
    """All of them, by their head: those whose blocks are there, and those that are gone."""

    def __init__(self, pool: BlockPool, block_size: int, remembered: int) -> None:
        """Of those that are gone, `remembered` blocks are known, the newest ones."""
        self.pool = pool
        self.block_size = block_size
        self.remembered = remembered
        self.asleep: dict[bytes, Chain] = {}
        self.of: dict[int, Chain] = {}
        """By the request that holds it."""
        self.num_blocks = 0
        """Those that are there, tails among them."""
        self.gone: OrderedDict[bytes, Chain] = OrderedDict()
        self.num_gone = 0

    def begin(self, request: Request, computing: bool) -> Chain:
        """An empty one that `request` holds, after its `sealed` blocks; the first is hashed."""
        first = request.sealed
        chain = Chain(request.hashes[first], first, request.tokens, request, computing)
        self.of[request.id] = self.asleep[chain.head] = chain
        return chain

    def offer(self, chain: Chain, request: Request, full: int) -> None:
        """Blocks of its owner up to number `full` are computed."""
        blocks, content = request.tables[0][request.sealed : full], self.pool.content
        for block in blocks:
            content[block] = chain
        chain.offers.append(request.sealed)
        chain.blocks += blocks
        chain.ever += len(blocks)
        chain.computing = chain.computing and full < (len(request.tokens) - 1) // self.block_size
        self.num_blocks += len(blocks)
        request.sealed = full

    def end(self, chain: Chain, block: int, done: int) -> None:
        """`block`, which comes after it, ends after `done` tokens, and its owner lets go."""
        chain.tail, chain.tail_end = block, done
        self.pool.content[block] = chain
        self.num_blocks += 1

    def left(self, request: Request) -> None:
        """It holds none any more."""
        chain = self.of.pop(request.id, None)
        if chain is not None:
            chain.owner = None

    def wake(self, head: bytes) -> Chain:
        """It is one no longer: its blocks are to be remembered one by one."""
        chain = self.asleep.pop(head)
        self.num_blocks -= len(chain.blocks) + bool(chain.tail)
        if chain.owner is not None:
            del self.of[chain.owner.id]
        return chain

    def evicted(self, blocks: list[int], contents: list[Any]) -> list[bytes]:
        """These blocks are handed out; returns the contents of those in no chain."""
        hashed = []
        at = 0
        for content, group in groupby(contents):
            count = len(list(group))
            if isinstance(content, Chain):
                self._shorten(content, blocks[at : at + count])
            else:
                hashed.append(content)
            at += count
        return hashed

    def _shorten(self, chain: Chain, gone: list[int]) -> None:
        """These are evicted, the last first."""
        self.num_blocks -= len(gone)
        if gone[0] == chain.tail:
            chain.tail = 0
            gone = gone[1:]
        if gone:
            assert chain.blocks[-1] == gone[0], "a chain is evicted from its end"
            del chain.blocks[-len(gone) :]
            if not chain.blocks:
                self._bury(chain)

    def _bury(self, chain: Chain) -> None:
        """Its tokens are kept, to know them should they come again."""
        del self.asleep[chain.head]
        self.exhume(chain.head)
        self.gone[chain.head] = chain
        self.num_gone += chain.ever
        while self.num_gone > self.remembered:
            self.num_gone -= self.gone.popitem(last=False)[1].ever

    def exhume(self, head: bytes) -> Chain | None:
        """One that is gone, which nobody knows of from now on."""
        chain = self.gone.pop(head, None)
        if chain is not None:
            self.num_gone -= chain.ever
        return chain

    def check(self) -> None:
        content = self.pool.content
        for head, chain in self.asleep.items():
            assert head == chain.head, "found by another's hash"
            assert chain.blocks, "a chain of nothing"
            assert all(content[block] is chain for block in chain.blocks), "others are in it"
            assert not chain.tail or content[chain.tail] is chain, "another's tail"
            if chain.owner is not None:
                table = chain.owner.tables[0][chain.first : chain.owner.sealed]
                assert chain.blocks == table, "not what its owner has"
                assert self.of[chain.owner.id] is chain, "its owner does not know it"
        count = sum(len(c.blocks) + bool(c.tail) for c in self.asleep.values())
        assert count == self.num_blocks, "blocks in chains are miscounted"
        assert self.num_gone == sum(c.ever for c in self.gone.values()), "so are those gone"
        assert all(chain.owner for chain in self.of.values()), "held by nobody"
