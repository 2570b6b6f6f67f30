"""The KV cache as the scheduler keeps its books: which request holds which blocks."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

from servekit.scheduler.batch import Copies, no_copies
from servekit.scheduler.books import check_books
from servekit.scheduler.groups import KvSettings
from servekit.scheduler.prefix_cache import Hit, PrefixCache
from servekit.scheduler.request import Request
from servekit.scheduler.swap import HostBlocks, Swapped

SEALED_AT_ONCE = 8
"""Blocks of an answer that are offered to others together, or when it ends."""
ENDLESS = 2**40
"""Tokens: where no group keeps everything, no request is too long."""


class KvBlocks:
    """Block tables of requests, out of one pool; the one thing of the cache that a scheduler calls.

    A waiting request is looked up, and seated if the blocks that it lacks are free; then it has
    blocks for all its known tokens. It extends its tables as it decodes, says what was committed,
    and is released or swapped out in the end. Copies that follow from this are for the next batch.
    """

    def __init__(self, settings: KvSettings) -> None:
        self.settings = settings
        self.block_size = settings.block_size
        self.cache = PrefixCache(settings)
        self.pool = self.cache.pool
        self.windows = self.cache.windows
        self.caching = settings.prefix_caching
        self.windowed = bool(self.windows)
        self.sealed_at_once = 1 if self.windowed else SEALED_AT_ONCE
        """A block that slides out of a window must have been."""
        self.full = [n for n, group in enumerate(settings.groups) if group.window is None]
        self.shortest = 0 if not self.windowed else next(iter(self.windows.filling_most))
        """The group whose tables reach least far while a prompt is computed."""
        self.host = HostBlocks(settings.host_blocks)
        self.copies: Copies = no_copies()
        self.awaiting_copies: set[int] = set()
        """Requests to whose blocks something is to be copied."""
        lengths = range(1, settings.num_blocks * self.block_size if self.full else ENDLESS)
        self.max_servable_tokens = bisect_right(
            lengths,
            settings.num_blocks - 1,
            key=lambda tokens: self.blocks_for(tokens, filling=True),
        )
        """Of a request that has the cache to itself."""
        self.query_tokens_total = 0
        self.swaps_total = 0

    @property
    def num_free(self) -> int:
        return self.pool.num_free

    @property
    def num_host_free(self) -> int:
        return len(self.host.free)

    @property
    def hit_tokens_total(self) -> int:
        """Of prompts, when first seated."""
        return self.cache.misses.hits

    def blocks_for(self, tokens: int, *, filling: bool = False) -> int:
        """Blocks of all groups that one request of so many tokens holds as it decodes, or, with
        `filling`, while its prompt is computed.
        """
        windows, count = self.windows, -(-tokens // self.block_size)
        most = windows.filling_most if filling else windows.settled_most
        return count * len(self.full) + sum(min(count, each) for each in most.values())

    def pin(self, tokens: Sequence[int]) -> None:
        """Evict the blocks of this beginning of prompts after all others, whatever their salt."""
        self.cache.pins.add(tokens)

    def lookup(self, request: Request) -> Hit:
        """What of its known tokens is cached, never the last; swapped: all it had computed."""
        swapped = self.host.swapped.get(request.id)
        if swapped is not None:
            return Hit(swapped.computed, self.cache.surviving(request, swapped.computed))
        if not self.caching:
            return Hit(0, self.cache.nothing())
        return self.cache.lookup(request)

    def probable_hit(self, request: Request) -> int:
        """The tokens that `lookup` finds in full blocks, most likely; mostly in constant time."""
        if swapped := self.host.swapped.get(request.id):
            return swapped.computed
        return self.cache.probable_hit(request) if self.caching else 0

    def is_computed_by_another(self, request: Request, hit: Hit) -> bool:
        """A running request computes much of what this one lacks: worth waiting for."""
        if self.is_swapped(request):
            return False
        return self.cache.is_computed_by_another(request, hit)

    def lacking(self, request: Request, hit: Hit) -> int:
        """Free blocks that seating takes: those for its known tokens and the next one."""
        length, holders = len(request.tokens), self.pool.holders
        needed, count = length // self.block_size + 1, 0
        for number in self.full:
            table = hit.tables[number]
            count += needed - len(table) + [holders[block] for block in table].count(0)
        if not self.windowed:
            return count
        numbers = self.windows.filling_most
        return count + sum(self.windows.lacking(number, length, hit.tokens) for number in numbers)

    def seat(self, request: Request, hit: Hit) -> None:
        """Takes blocks for all known tokens, which `lacking` said there are.

        All at once, so that a prompt computed in chunks is never stopped half way by one seated
        after it. What is cached is shared and counts as computed; what was swapped comes back. The
        first time, before `admitted_at` is set, its prompt tokens are counted as found or missed.
        """
        swapped = self.host.forget(request.id)
        if swapped is None and request.admitted_at is None:
            self.query_tokens_total += len(request.prompt)
            self.cache.count(request, hit.tokens)
        for number in self.full:
            self.pool.share(hit.tables[number])
        if self.windowed:
            self.windows.share(hit.tables)
        count = -(-len(request.tokens) // self.block_size)
        tables = list(hit.tables)
        for number in self.full:
            tables[number] = tables[number] + self.pool.take(count - len(tables[number]))
        request.tables = tuple(tables)
        request.sealed = len(hit.tables[0])
        if self.windowed:
            self.windows.seat(request, hit.tokens)
        if swapped is not None:
            self._bring_back(request, swapped)
        else:
            request.computed = request.committed = hit.tokens
            if hit.source and hit.source != tables[0][request.sealed]:
                self.copies.within.append((hit.source, tables[0][request.sealed]))
                self.awaiting_copies.add(request.id)
            if self.caching:
                self.cache.seated(request)

    def prepare(self, request: Request, end: int) -> int:
        """Have blocks for a prompt chunk up to `end`; returns up to where it has them.

        That is less in windowed groups while the rows before it are in flight, whose blocks it is
        to use again; they are its own, and it waits for nobody else.
        """
        return self.windows.prepare(request, end) if self.windowed else end

    def reaches(self, request: Request, position: int) -> bool:
        """It has a block for this position, in each group."""
        return position < len(request.tables[self.shortest]) * self.block_size

    def can_extend(self, request: Request) -> bool:
        """There are as many blocks as `extend` takes; windowed groups use their own again."""
        length = len(request.tables[self.shortest]) + 1
        lacks = sum(len(request.tables[number]) < length for number in self.full)
        if self.windowed:
            lacks += self.windows.lacks_to_extend(request, length)
        return lacks <= self.pool.num_free

    def extend(self, request: Request) -> None:
        """One more block at the end of each table; `can_extend` has been asked."""
        length = len(request.tables[self.shortest]) + 1
        for number in self.full:
            if len(request.tables[number]) < length:
                request.tables[number].extend(self.pool.take(1))
        if self.windowed:
            self.windows.extend(request, length)

    def extend_all(self, requests: list[Request]) -> bool:
        """A block for the next position of each, if it has none; there are enough. False, and
        nothing happens, where windows have to be asked.
        """
        if not self.windowed:
            size = self.block_size
            ends = [
                table for r in requests for table in r.tables if len(table) * size <= r.computed
            ]
            for table, block in zip(ends, self.pool.take(len(ends)), strict=True):
                table.append(block)
        return not self.windowed

    def committed(self, request: Request) -> None:
        """Some of its tokens were: offers what is new to whoever asks next.

        There is nothing to do but at the end of a block and at that of a prompt.
        """
        done = request.committed
        if self.caching:
            full = done // self.block_size
            at_once = self.sealed_at_once if done > len(request.prompt) else 1
            if full - request.sealed >= at_once:
                self.cache.seal(request, full)
            if done == len(request.prompt):
                self.cache.show_tail(request, done)
        if self.windowed:
            self.windows.committed(request, done)

    def filled(self, requests: Iterable[Request]) -> None:
        """The same of requests that decode and have just come to the end of a block."""
        if self.windowed:
            for request in requests:
                self.committed(request)
        elif self.caching:
            size, at_once = self.block_size, self.sealed_at_once
            for request in requests:
                full = request.committed // size
                if full - request.sealed >= at_once:
                    self.cache.seal(request, full)

    def release(self, request: Request) -> None:
        """Gives all its blocks back, those in host memory too; nothing of it may be in flight."""
        self.host.forget(request.id)
        if request.id in self.awaiting_copies:
            self._cancel_copies(request)
        elif self.caching and request.tables:
            self.cache.keep(request, request.committed)
        self.cache.leave(request)
        if not request.tables:
            return
        for number in self.full:
            self.pool.give_back(request.tables[number])
        if self.windowed:
            self.windows.release(request)
        request.tables = ()

    def _cancel_copies(self, request: Request) -> None:
        """Nothing may be written any more to blocks that are somebody else's from now on."""
        blocks = {block for table in request.tables for block in table}
        for copies in (self.copies.from_host, self.copies.within):
            copies[:] = [pair for pair in copies if pair[1] not in blocks]
        self.awaiting_copies.remove(request.id)

    def is_swapped(self, request: Request) -> bool:
        return request.id in self.host.swapped

    def swap_out(self, request: Request) -> bool:
        """Releases its blocks, but keeps what is computed in host memory; nothing is in flight.

        False, and nothing happens, if there is not enough of that, or nothing to keep.
        """
        done = request.committed
        if not done or request.id in self.awaiting_copies:
            return False
        reach = -(-done // self.block_size)
        firsts = [group.seen_from(done) // self.block_size for group in self.settings.groups]
        swapped = self.host.swapped_to(done, [range(first, reach) for first in firsts])
        if swapped is None:
            return False
        for table, kept in zip(request.tables, swapped.blocks, strict=True):
            self.copies.to_host.extend((table[index], host) for index, host in kept)
        self.release(request)
        self.host.swapped[request.id] = swapped
        request.sealed = 0
        self.swaps_total += 1
        return True

    def _bring_back(self, request: Request, swapped: Swapped) -> None:
        """Into its new blocks, but for those that were found in the cache."""
        if self.windowed:
            self.windows.prepare(request, swapped.computed)
        for table, kept in zip(request.tables, swapped.blocks, strict=True):
            copies = [(host, table[index]) for index, host in kept if index >= request.sealed]
            self.copies.from_host.extend(copies)
        self.awaiting_copies.add(request.id)

    def freed_by(self, request: Request) -> int:
        """Blocks that are free once it is released, if those that it shares come first."""
        count = self.windows.held(request) if self.windowed else 0
        for number in self.full:
            table = request.tables[number]
            count += len(table) - self._shared(request, table)
        return count

    def surviving_tokens(self, request: Request) -> int:
        """Tokens that are there, come what may, when it is released: others hold them too."""
        shared = [self._shared(request, request.tables[number]) for number in self.full]
        return min(shared, default=0) * self.block_size

    def _shared(self, request: Request, table: list[int]) -> int:
        """Leading blocks that somebody else holds."""
        holders, sealed = self.pool.holders, range(request.sealed)
        return bisect_left(sealed, True, key=lambda index: holders[table[index]] == 1)

    def take_copies(self) -> Copies:
        """Those that the next batch has to make before its step."""
        copies, self.copies = self.copies, no_copies()
        self.awaiting_copies.clear()
        self.host.copies_taken()
        return copies

    def check(self, requests: Iterable[Request]) -> None:
        """Everything that is always true of the blocks; for tests."""
        check_books(self, list(requests))
