"""Host memory that the blocks of preempted requests are swapped to."""

from collections.abc import Sequence
from typing import NamedTuple


class Swapped(NamedTuple):
    """Where the blocks of one request are: for each group (index in its table, host block)."""

    computed: int
    blocks: tuple[list[tuple[int, int]], ...]


class HostBlocks:
    """Hands out blocks of host memory, numbered from 0; there is no null block.

    What is given back may still be read or written by the copies that the next batch makes first,
    and is handed out again only once those are on their way.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.free = list(range(num_blocks - 1, -1, -1))
        self.resting: list[int] = []
        self.swapped: dict[int, Swapped] = {}

    def swapped_to(self, computed: int, used: Sequence[range]) -> Swapped | None:
        """Host blocks for `computed` tokens: `used` are indices of each table; None: too few."""
        if sum(map(len, used)) > len(self.free):
            return None
        blocks = tuple([(index, self.free.pop()) for index in group] for group in used)
        return Swapped(computed, blocks)

    def forget(self, request_id: int) -> Swapped | None:
        """Let go of what was swapped of this request; None: nothing was."""
        swapped = self.swapped.pop(request_id, None)
        if swapped is not None:
            self.resting += [host for group in swapped.blocks for _, host in group]
        return swapped

    def copies_taken(self) -> None:
        self.free += self.resting
        self.resting.clear()

    def check(self) -> None:
        held = [
            host
            for swapped in self.swapped.values()
            for group in swapped.blocks
            for _, host in group
        ]
        everyone = sorted(self.free + self.resting + held)
        assert everyone == list(range(self.num_blocks)), "a host block leaked, or is held by two"
