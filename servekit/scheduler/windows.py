"""Block tables of layers that look back only so far: what they no longer see is used again."""

from collections import Counter
from collections.abc import Iterable, Sequence

from servekit.scheduler.blocks import BlockPool
from servekit.scheduler.groups import KvSettings
from servekit.scheduler.request import Request


class Windows:
    """The windowed groups of all requests that have a seat.

    A request has blocks for a window and a step in each of them from the moment it is seated, some
    in its table and some in `spares`, and later uses those again that fell out of the window: it
    never has to wait for another. Where two share a block, one that lets go first would be left a
    block short; for every holder but one, a block is therefore put aside in `aside`.
    """

    def __init__(self, settings: KvSettings, pool: BlockPool) -> None:
        self.block_size = size = settings.block_size
        self.groups = settings.groups
        self.pool = pool
        step = max(settings.step_tokens, 16)
        self.filling_most = {
            number: most
            for number, group in enumerate(self.groups)
            if (most := group.most_blocks(size, step)) is not None
        }
        """Blocks while a prompt is computed, a step's tokens at once; 16: some are in flight."""
        self.settled_most = {
            number: most
            for number, group in enumerate(self.groups)
            if (most := group.most_blocks(size, size)) is not None
        }
        """The same of one that decodes."""
        self.spares: dict[int, dict[int, list[int]]] = {}
        """Of each request, for each of its groups."""
        self.filling: dict[int, int] = {}
        """The tokens that each request was seated to compute, until they are committed."""
        self.aside: list[int] = []
        self.owed = 0
        """Blocks to be put aside for those that were shared just now."""

    def __bool__(self) -> bool:
        return bool(self.filling_most)

    def lacking(self, number: int, length: int, start: int) -> int:
        """Free blocks that seating takes for `length` known tokens, `start` of which are there.

        Those that are found do not make it less: one that is held costs one put aside, one that
        is free is free no longer.
        """
        first = self.groups[number].seen_from(start) // self.block_size
        return min(length // self.block_size + 1 - first, self.filling_most[number])

    def share(self, tables: Sequence[list[int]]) -> None:
        """Hold the blocks found for a request (0: not seen), before any other is taken."""
        for number in self.filling_most:
            seen = [block for block in tables[number] if block]
            self.owed += sum(not self.pool.is_free(block) for block in seen)
            self.pool.share(seen)

    def seat(self, request: Request, start: int) -> None:
        """After `share`: puts aside what that costs, and takes what else it needs as spares."""
        size, length = self.block_size, len(request.tokens)
        self.aside += self.pool.take(self.owed)
        self.owed = 0
        self.filling[request.id] = length
        spares = self.spares[request.id] = {}
        for number, most in self.filling_most.items():
            table = request.tables[number]
            first = self.groups[number].seen_from(start) // size
            table += [0] * (first - len(table))
            count = min(-(-length // size) - first, most) - (len(table) - first)
            spares[number] = self.pool.take(max(0, count))

    def prepare(self, request: Request, end: int) -> int:
        """Lengthen its tables for a chunk up to `end`; returns the end that they reach."""
        size, committed = self.block_size, request.committed
        for number, spare in self.spares[request.id].items():
            table, needed = request.tables[number], -(-end // size)
            lacks = needed - len(table) - len(spare)
            if lacks > 0:
                self._slide(number, table, spare, committed, lacks)
            count = min(needed - len(table), len(spare))
            if count > 0:
                table += spare[-count:]
                del spare[-count:]
            end = min(end, len(table) * size)
        return end

    def lacks_to_extend(self, request: Request, length: int) -> int:
        """Free blocks that it takes for its tables to have `length` entries, one more each."""
        committed, lacks = request.committed, 0
        for number, spare in self.spares[request.id].items():
            table = request.tables[number]
            if len(table) < length and not spare:
                lacks += not self._slide(number, table, spare, committed, 1)
        return lacks

    def extend(self, request: Request, length: int) -> None:
        """One more block in tables of less than `length` entries, its own or, if none, a free one.

        `lacks_to_extend` has been asked, and has used again what is no longer seen.
        """
        for number, spare in self.spares[request.id].items():
            table = request.tables[number]
            if len(table) < length:
                table.append(spare.pop() if spare else self.pool.take(1)[0])

    def _unseen(self, number: int, table: list[int], committed: int) -> range:
        """Blocks in the table that no row sees any more."""
        end = min(self.groups[number].seen_from(committed) // self.block_size, len(table))
        start = end
        while start and table[start - 1]:
            start -= 1
        return range(start, end)

    def _slide(
        self, number: int, table: list[int], spare: list[int], committed: int, count: int
    ) -> int:
        """Make spares of `count` blocks that are not seen any more; returns of how many it did.

        The oldest first; the others stay in the cache as long as they are not needed.
        """
        unseen = self._unseen(number, table, committed)[:count]
        for index in unseen:
            spare.append(self._swap_for_free(table[index]))
            table[index] = 0
        return len(unseen)

    def _swap_for_free(self, block: int) -> int:
        """Let go of a block and have one that nobody holds instead."""
        if self.pool.holders[block] > 1:
            self.pool.give_back([block])
            return self.aside.pop()
        self.pool.give_back([block])
        return self.pool.take(1)[0]

    def merge(self, table: list[int], index: int, same: int) -> None:
        """Hold `same`, which has the same content, instead of the block in the table."""
        ours, table[index] = table[index], same
        if self.pool.is_free(same):
            self.pool.share([same])
            self.pool.give_back([ours])
        else:
            self.pool.share([same])
            self.aside.append(ours)

    def committed(self, request: Request, done: int) -> None:
        """Once its prompt is computed it needs no room for a step's tokens any more."""
        target = self.filling.get(request.id)
        if target is None or done < target:
            return
        del self.filling[request.id]
        for number, spare in self.spares[request.id].items():
            table = request.tables[number]
            unseen = self._unseen(number, table, done)
            held = len(table) - unseen.start + len(spare)
            surplus = max(0, held - self.settled_most[number])
            for index in unseen[:surplus]:
                self._let_go(table[index])
                table[index] = 0
            surplus = min(len(spare), max(0, surplus - len(unseen)))
            self.pool.give_back(spare[len(spare) - surplus :])
            del spare[len(spare) - surplus :]

    def _let_go(self, block: int) -> None:
        shared = self.pool.holders[block] > 1
        self.pool.give_back([block])
        if shared:
            self.pool.give_back([self.aside.pop()])

    def held(self, request: Request) -> int:
        """Blocks that are free once it lets go: one for each that it holds, shared or not."""
        spares = self.spares[request.id]
        return sum(
            len(spare) + sum(map(bool, request.tables[number])) for number, spare in spares.items()
        )

    def release(self, request: Request) -> None:
        pool = self.pool
        self.filling.pop(request.id, None)
        for number, spare in self.spares.pop(request.id).items():
            seen = [block for block in request.tables[number] if block]
            shared = sum(pool.holders[block] > 1 for block in seen)
            pool.give_back(seen)
            pool.give_back(spare)
            pool.give_back([self.aside.pop() for _ in range(shared)])

    def tables(self) -> Iterable[list[int]]:
        """Blocks that are in no table; for `check`."""
        yield self.aside
        for spares in self.spares.values():
            yield from spares.values()

    def check(self, requests: Iterable[Request]) -> None:
        seated = {request.id: request for request in requests if request.tables}
        assert self.spares.keys() == (seated.keys() if self else set()), "spares of nobody"
        assert self.filling.keys() <= self.spares.keys(), "nobody's prompt is computed"
        holders = Counter(
            block
            for request in seated.values()
            for number in self.filling_most
            for block in request.tables[number]
            if block
        )
        assert len(self.aside) == holders.total() - len(holders), "sharing costs no block, or two"
