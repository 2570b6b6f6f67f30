"""Why prompt tokens had to be computed: what the prefix cache missed, and for which reason."""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Literal

from servekit.scheduler.request import Request

GHOST_SETS = 8
"""Among which the evicted blocks that are remembered are divided."""

Reason = Literal["first_seen", "evicted", "salt", "unaligned", "disabled"]


class Misses:
    """Counts every prompt token once, when its request is first seated: found or missed.

    first_seen: its block was not seen before; evicted: it was cached and made room, or what is left
    of it is of no use; salt: the prompt begins as one of another salt did, with whom nothing is
    shared; unaligned: of the end of a prompt that is no full block, the last token always among
    it; disabled: there is no prefix cache. Of evicted blocks the newest `remembered` are known, and
    of those before them some.
    """

    def __init__(self, block_size: int, remembered: int) -> None:
        self.block_size = block_size
        self.remembered = remembered
        self.tokens: dict[Reason, int] = dict.fromkeys(
            ("first_seen", "evicted", "salt", "unaligned", "disabled"), 0
        )
        self.hits = 0
        self.ghosts: list[set[int]] = [set()]
        self.older_ghosts: list[set[int]] = []
        """Hashes of contents: to keep the contents themselves would cost more than all else here.
        In some sets, each small enough to be near while it is filled.
        """
        self.salts: OrderedDict[int, bytes | None] = OrderedDict()

    def evict(self, contents: Iterable[bytes]) -> None:
        """Blocks of these contents are no longer there."""
        newest = self.ghosts[-1]
        newest.update(map(hash, contents))
        if len(newest) * GHOST_SETS > self.remembered:
            if sum(map(len, self.ghosts)) > self.remembered:
                self.older_ghosts, self.ghosts = self.ghosts, []
            self.ghosts.append(set())

    def was_evicted(self, content: bytes) -> bool:
        ghost = hash(content)
        return any(ghost in some for some in (*self.ghosts, *self.older_ghosts))

    def disabled(self, request: Request) -> None:
        self.tokens["disabled"] += len(request.prompt)

    def count(self, request: Request, hit: int, was_known: Callable[[Request, int], bool]) -> None:
        """`hit` tokens of the prompt were found; `was_known` asks for a block by its number."""
        size, tokens = self.block_size, self.tokens
        prompt = len(request.prompt)
        whole = (prompt - 1) // size * size
        self.hits += hit
        tokens["unaligned"] += prompt - max(whole, hit)
        if not whole:
            return
        elsewhere = self._under_another_salt(request)
        at, index = hit, hit // size
        while at < whole and was_known(request, index):
            index += 1
            tokens["evicted"] += index * size - at
            at = index * size
        if at < whole:
            tokens["salt" if elsewhere and index == 0 else "first_seen"] += whole - at

    def _under_another_salt(self, request: Request) -> bool:
        """Its first block was seen so; from now on it is known under this salt as well."""
        first = hash(tuple(request.prompt[: self.block_size]))
        salt = self.salts.setdefault(first, request.salt)
        if salt == request.salt:
            if len(self.salts) > self.remembered:
                self.salts.popitem(last=False)
            return False
        self.salts[first] = None
        return True
