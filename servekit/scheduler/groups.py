"""Layers that share a block table, and how many blocks a request holds for them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Group:
    """Layers that share a block table; `window` is how far back they look, None: to the start.

    `chunked` ones look back to the start of their own chunk of `window` tokens.
    """

    window: int | None = None
    chunked: bool = False

    def seen_from(self, position: int) -> int:
        """The first position that a token at `position`, or any later one, sees."""
        if self.window is None:
            return 0
        if self.chunked:
            return position - position % self.window
        return max(0, position - self.window + 1)

    def most_blocks(self, block_size: int, in_flight: int) -> int | None:
        """The most blocks that one request holds at any length, with so many tokens under way.

        None: a full group grows without end. As `spec.groups.LayerGroup.blocks_for` counts them,
        and one more for chunks that do not begin with a block.
        """
        if self.window is None:
            return None
        if self.chunked:
            return -(-(self.window + in_flight) // block_size) + bool(self.window % block_size)
        return -(-(self.window - 1 + in_flight) // block_size) + 1


@dataclass(frozen=True, slots=True)
class KvSettings:
    """`num_blocks` counts the null block; `host_blocks` are those that requests are swapped to.

    `step_tokens` of one prompt are computed in a step at most: a prompt in windowed groups is
    seated with blocks for a window and so many tokens.
    """

    num_blocks: int
    block_size: int
    groups: tuple[Group, ...] = (Group(),)
    prefix_caching: bool = True
    host_blocks: int = 0
    step_tokens: int = 2048
