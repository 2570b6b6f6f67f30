"""Equal prefixes share blocks: a full block is known by a hash of all tokens up to its end."""

from array import array
from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256
from itertools import takewhile
from struct import iter_unpack

from servekit.scheduler.blocks import BlockPool
from servekit.scheduler.groups import Group
from servekit.scheduler.request import Request

TOKEN, TOKEN_BYTES = "I", array("I").itemsize
"""As tokens are hashed."""
nothing_hashed = sha256().copy
"""A new SHA-256; a copy costs less than another."""


@lru_cache(maxsize=4096)
def root(salt: bytes) -> bytes:
    """What stands for the empty prefix of this salt."""
    return sha256(salt).digest()


def parent_of(request: Request, number: int) -> bytes:
    """What stands for the prefix before its block of this number, which is hashed."""
    return request.hashes[number - 1] if number else root(request.salt)


def chain_hashes(parent: bytes, tokens: Sequence[int], block_size: int) -> list[bytes]:
    """Hashes of the full blocks of `tokens`, which follow the prefix that `parent` stands for.

    Each hash covers its parent's and its own tokens, so equal hashes mean equal prefixes. SHA-256,
    because a prompt may be written to collide with another's.
    """
    content = array(TOKEN, tokens)
    del content[len(content) // block_size * block_size :]
    hashes = []
    for (block,) in iter_unpack(f"{block_size * TOKEN_BYTES}s", content):
        state = nothing_hashed()
        state.update(parent + block)
        hashes.append(parent := state.digest())
    return hashes


def extend_hashes(request: Request, count: int, block_size: int) -> None:
    """Hash the first `count` blocks of the request's tokens, those not hashed yet."""
    hashes = request.hashes
    done = len(hashes)
    if count > done:
        parent = parent_of(request, done)
        tokens = request.tokens[done * block_size : count * block_size]
        hashes += chain_hashes(parent, tokens, block_size)


def hash_of_tail(parent: bytes, tokens: list[int]) -> bytes:
    """Of a block that is not full: no other hash covers as many tokens after that parent."""
    return sha256(parent + array(TOKEN, tokens).tobytes()).digest()


def key_of(content: bytes, group: int) -> bytes:
    """What a block of this content is known by; the first group goes by the hash itself."""
    return content if group == 0 else content + group.to_bytes(2, "little")


def longest_in_groups(
    hashes: list[bytes], count: int, pool: BlockPool, groups: Sequence[Group], block_size: int
) -> tuple[list[int], ...]:
    """A table for each group of the longest start that all of them have, `count` blocks at most.

    Groups with full attention need every block of it, windowed ones those that the token after it
    sees; 0 stands for the others.
    """
    for number, group in enumerate(groups):
        if group.window is None:
            known = (pool.find(key_of(content, number)) for content in hashes[:count])
            count = sum(1 for _ in takewhile(bool, known))
    windowed = [number for number, group in enumerate(groups) if group.window is not None]
    settled = False
    while not settled:
        settled = True
        for number in windowed:
            first = groups[number].seen_from(count * block_size) // block_size
            gap = _last_gap(hashes, first, count, pool, number)
            if gap is not None:
                count, settled = gap, False
    tables = []
    for number, group in enumerate(groups):
        first = group.seen_from(count * block_size) // block_size
        seen = [pool.block_of[key_of(content, number)] for content in hashes[first:count]]
        tables.append([0] * first + seen)
    return tuple(tables)


def _last_gap(hashes: list[bytes], first: int, end: int, pool: BlockPool, group: int) -> int | None:
    """The last block of those from `first` to `end` that is not cached."""
    for index in range(end - 1, first - 1, -1):
        if pool.find(key_of(hashes[index], group)) is None:
            return index
    return None


class Pins:
    """Beginnings of prompts, such as system prompts, whose blocks are evicted last."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.prefixes: list[list[int]] = []
        self.by_salt: dict[bytes, frozenset[bytes]] = {}

    def add(self, tokens: Sequence[int]) -> None:
        """Only its full blocks can be found again, under whichever salt."""
        self.prefixes.append(list(tokens))
        self.by_salt.clear()

    def of(self, salt: bytes) -> frozenset[bytes]:
        """Hashes of all blocks that are pinned for requests of this salt."""
        if not self.prefixes:
            return frozenset()
        hashes = self.by_salt.get(salt)
        if hashes is None:
            if len(self.by_salt) == 4096:
                self.by_salt.clear()
            start = root(salt)
            hashes = frozenset(
                content
                for prefix in self.prefixes
                for content in chain_hashes(start, prefix, self.block_size)
            )
            self.by_salt[salt] = hashes
        return hashes
