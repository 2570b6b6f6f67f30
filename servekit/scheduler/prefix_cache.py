"""What is computed is found again: full blocks by their hash, others by how they begin."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from servekit.scheduler.chains import Chain
from servekit.scheduler.groups import KvSettings
from servekit.scheduler.index import Index
from servekit.scheduler.prefix import (
    Pins,
    extend_hashes,
    hash_of_tail,
    key_of,
    longest_in_groups,
    parent_of,
)
from servekit.scheduler.request import Request
from servekit.scheduler.windows import Windows

WORTH_WAITING = 256
"""Tokens that another is computing for which a request waits in any case; less: if they are half
of what it lacks."""


class Hit(NamedTuple):
    """What of a request is there already: `tokens`, in blocks of each group.

    The last ones of these tokens may be in `source`, a block that begins as the next one must, and
    is to be copied; 0: there is none.
    """

    tokens: int
    tables: tuple[list[int], ...]
    source: int = 0


class PrefixCache:
    """Which blocks of the pool hold what, and which are being computed.

    `next_of` has, for each seated request whose prompt is not computed, the hash of the block that
    it computes next, and `computing` who does so.
    """

    def __init__(self, settings: KvSettings) -> None:
        self.settings = settings
        self.block_size = settings.block_size
        self.whole = len(settings.groups) == 1 and settings.groups[0].window is None
        self.index = Index(settings, self.whole, self.seated)
        self.pool, self.siblings = self.index.pool, self.index.siblings
        self.chains, self.misses = self.index.chains, self.index.misses
        self.windows = Windows(settings, self.pool)
        self.pins = Pins(settings.block_size)
        self.computing: dict[bytes, Request] = {}
        self.next_of: dict[int, bytes] = {}
        self.merged_total = 0

    def lookup(self, request: Request) -> Hit:
        """The longest prefix of its known tokens that is cached; never the last token.

        Somebody has to compute the last token, for its logits give the next.
        """
        size, tokens = self.block_size, request.tokens
        count = (len(tokens) - 1) // size
        if not self.whole:
            extend_hashes(request, count, size)
            groups = self.settings.groups
            tables = longest_in_groups(request.hashes, count, self.pool, groups, size)
            return Hit(len(tables[0]) * size, tables)
        cached = self.index.leading(request, count)
        there = len(cached) * size
        parent = parent_of(request, len(cached))
        if parent in self.siblings.after:
            wanted = tokens[there : min(there + size, len(tokens) - 1)]
            source, common = self.siblings.closest(parent, wanted)
            if common and (common == len(wanted) or common * 4 >= size):
                return Hit(there + common, (cached,), source)
        return Hit(there, (cached,))

    def count(self, request: Request, hit: int) -> None:
        """It is seated for the first time, and so many tokens of its prompt were found."""
        if self.settings.prefix_caching:
            self.misses.count(request, hit, self.index.was_known)
        else:
            self.misses.disabled(request)

    def nothing(self) -> tuple[list[int], ...]:
        """The tables of a request of which nothing is there."""
        return tuple([] for _ in self.settings.groups)

    def surviving(self, request: Request, computed: int) -> tuple[list[int], ...]:
        """Blocks of the first tokens of a swapped request that need not be copied back."""
        if not self.whole or not self.settings.prefix_caching:
            return self.nothing()
        return (self.index.leading(request, computed // self.block_size),)

    def probable_hit(self, request: Request) -> int:
        """Tokens that `lookup` would find in full blocks, most likely; mostly in constant time."""
        if not self.whole:
            return self.lookup(request).tokens
        index, hashes = self.index, request.hashes
        count = (len(request.tokens) - 1) // self.block_size
        found = request.found
        begins = found == 0 or (found > 0 and index.is_known(hashes[found - 1]))
        if not begins or (found < count and index.is_known(hashes[found])):
            found = request.found = len(index.leading(request, count))
        return found * self.block_size

    def is_computed_by_another(self, request: Request, hit: Hit) -> bool:
        size, hashes = self.block_size, request.hashes
        first, count = hit.tokens // size, (len(request.tokens) - 1) // size
        if first >= count:
            return False
        extend_hashes(request, first + 1, size)
        other = self.computing.get(hashes[first])
        if other is None or other is request:
            return False
        for one in (request, other):
            extend_hashes(one, (len(one.tokens) - 1) // size, size)
        both = range(first, min(count, len(other.hashes)))
        alike = bisect_left(both, True, key=lambda index: hashes[index] != other.hashes[index])
        gain = alike * size
        return gain >= WORTH_WAITING or 2 * gain >= len(request.tokens) - hit.tokens

    def seated(self, request: Request) -> None:
        """It computes what follows its `sealed` blocks."""
        request.found = -1
        if request.sealed < (len(request.tokens) - 1) // self.block_size:
            extend_hashes(request, request.sealed + 1, self.block_size)
            content = self.next_of[request.id] = request.hashes[request.sealed]
            self.computing.setdefault(content, request)

    def _no_longer_computing(self, request: Request) -> bool:
        content = self.next_of.pop(request.id, None)
        if content is not None and self.computing.get(content) is request:
            del self.computing[content]
        return content is not None

    def seal(self, request: Request, full: int) -> None:
        """Offer blocks whose every token is computed and committed to whoever asks next.

        A block whose content is known already in another is given back for that one, if no row in
        flight reads it.
        """
        if chain := self._chain_of(request):
            self.chains.offer(chain, request, full)
            return
        extend_hashes(request, full, self.block_size)
        sealed, hashes = request.sealed, request.hashes[request.sealed : full]
        for content in hashes:
            self.index.wake(content)
        for number, table in enumerate(request.tables):
            contents = [key_of(content, number) for content in hashes] if number else hashes
            blocks = table[sealed:full]
            if (self.whole or all(blocks)) and self.pool.remember_all(blocks, contents):
                self._show(request, table, range(sealed, full))
            else:
                self._show(request, table, self._offer(request, number, contents))
        request.sealed = full
        if self._no_longer_computing(request):
            self.seated(request)

    def _chain_of(self, request: Request) -> Chain | None:
        """What its next blocks belong to; None: somebody else has or computes the same, or it is to
        be pinned.
        """
        chain = self.chains.of.get(request.id)
        if chain is not None or not self.whole:
            return chain
        number = request.sealed
        extend_hashes(request, number + 1, self.block_size)
        head = request.hashes[number]
        if self.index.wake(head) or head in self.pool.block_of:
            return None
        if self.pins.prefixes and head in self.pins.of(request.salt):
            return None
        if self.computing.get(head, request) is not request:
            return None
        chain = self.chains.begin(request, self._no_longer_computing(request))
        begin = number * self.block_size
        part = request.tokens[begin : begin + self.block_size]
        self.siblings.add(parent_of(request, number), request.tables[0][number], part)
        return chain

    def _offer(self, request: Request, number: int, contents: list[bytes]) -> list[int]:
        """Its blocks after the sealed ones, one by one; returns where in the table those are that
        nobody knew.
        """
        table, offered = request.tables[number], []
        for index, content in enumerate(contents, request.sealed):
            if not table[index]:
                continue
            if self.pool.remember(table[index], content):
                offered.append(index)
            else:
                self._merge(request, number, index, self.pool.block_of[content])
        return offered

    def _merge(self, request: Request, number: int, index: int, same: int) -> None:
        """Hold `same` instead of its own block with the same content."""
        table = request.tables[number]
        block = table[index]
        self.siblings.drop([block])
        if request.in_flight:
            return
        self.merged_total += 1
        if number in self.windows.filling_most:
            self.windows.merge(table, index, same)
        else:
            table[index] = same
            self.pool.share([same])
            self.pool.give_back([block])

    def _show(self, request: Request, table: list[int], offered: Sequence[int]) -> None:
        """Blocks that are found from now on: let others copy how they begin, and pin some.

        Of many at once the first and the last are worth it: where a prompt parts from what was
        cached, and where it ends.
        """
        size, tokens, hashes = self.block_size, request.tokens, request.hashes
        if self.whole:
            for index in {offered[0], offered[-1]} if offered else ():
                part = tokens[index * size : (index + 1) * size]
                self.siblings.add(parent_of(request, index), table[index], part)
        if self.pins.prefixes:
            pinned = self.pins.of(request.salt)
            self.pool.pinned.update(table[i] for i in offered if hashes[i] in pinned)

    def _tail(self, request: Request, done: int) -> tuple[int, bytes, list[int]] | None:
        """The block that `done` committed tokens end in, the prefix before it and what of it is
        there; None if that is nothing, or something before it is not sealed.
        """
        index, count = divmod(done, self.block_size)
        if not count or not self.whole or request.sealed != index:
            return None
        parent = parent_of(request, index)
        return request.tables[0][index], parent, request.tokens[done - count : done]

    def show_tail(self, request: Request, done: int) -> None:
        """Let others copy the block that its prompt ends in, while it is not full."""
        if chain := self.chains.of.get(request.id):
            if done % self.block_size:
                chain.prompt_end = done
            return
        tail = self._tail(request, done)
        if tail is not None:
            block, parent, tokens = tail
            self.siblings.add(parent, block, tokens)

    def keep(self, request: Request, done: int) -> None:
        """It is about to give its blocks back: let them be found, the last by how it begins."""
        full = done // self.block_size
        if full > request.sealed:
            self.seal(request, full)
        if chain := self.chains.of.get(request.id):
            if done % self.block_size:
                self.chains.end(chain, request.tables[0][full], done)
            return
        tail = self._tail(request, done)
        if tail is not None:
            block, parent, tokens = tail
            if self.pool.remember(block, hash_of_tail(parent, tokens)):
                self.siblings.add(parent, block, tokens)
            else:
                self.siblings.drop([block])

    def leave(self, request: Request) -> None:
        """It computes nothing any more, and holds nothing."""
        self.chains.left(request)
        self._no_longer_computing(request)

    def check(self) -> None:
        self.index.check()
        assert all(self.next_of[r.id] == content for content, r in self.computing.items())
