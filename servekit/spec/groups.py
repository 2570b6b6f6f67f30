"""Which layers share a block table.

The rules are those of vLLM's block pools, and published start-up logs of it are reproduced to the
block. Layers alike in what they keep form a bucket: full attention, sliding-window or chunked
attention, states. Buckets are cut into groups of as many layers, so that a block is as large for
each group, and all groups draw blocks from one pool.
"""

from dataclasses import dataclass
from typing import Literal

from servekit.config.shape import Shape
from servekit.spec.tensors import ceil_div

Kind = Literal["full", "sliding", "chunked", "state"]


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers that share a block table; `layers` are the real ones of all stages, without padding.

    `window` is what a sliding or chunked layer looks back on, tokens. A block holds `stretch` times
    the tokens of the smallest, where layers of another kind keep more bytes of a token.
    """

    kind: Kind
    layers: int
    window: int | None
    stretch: int = 1

    def blocks_for(self, tokens: int, *, block_size: int, in_flight: int, drafts: int) -> int:
        """The most that one request holds while it grows to `tokens`.

        A sliding window need not begin with a block: it may reach into one more. Tokens in flight
        are written before anything that they see is given back.
        """
        block_size *= self.stretch
        if self.kind == "state":
            return 1 + drafts
        if self.window is None:
            return ceil_div(tokens, block_size)
        if self.kind == "chunked":
            return ceil_div(min(self.window + in_flight, tokens), block_size)
        return ceil_div(min(self.window - 1 + in_flight, tokens), block_size) + 1


Bucket = tuple[Kind, int | None, tuple[int, ...]]
"""Kind, window and the layers that are so."""


def buckets(shape: Shape, hybrid: bool) -> list[Bucket]:
    """Layers by what they keep. Without `hybrid` every attention layer keeps every token."""
    by_window: dict[int | None, list[int]] = {}
    for layer in shape.own_kv_layers:
        by_window.setdefault(shape.window(layer) if hybrid else None, []).append(layer)
    found: list[Bucket] = [
        ("full" if window is None else shape.window_kind, window, tuple(layers))
        for window, layers in sorted(by_window.items(), key=lambda item: item[0] or 0)
    ]
    if shape.state is not None and shape.state.layers:
        found.append(("state", None, shape.state.layers))
    return found


def group_size(counts: list[int]) -> int:
    """Layers of a group: as many as the smallest bucket has, if that is much less than the largest.

    Buckets of nearly one size are padded to the largest instead, which wastes less than the many
    groups would.
    """
    smallest, largest = min(counts), max(counts)
    return largest if largest < 1.5 * smallest else smallest


def layer_groups(shape: Shape, hybrid: bool) -> tuple[tuple[LayerGroup, tuple[int, ...]], ...]:
    """Every group with its layers; a bucket's layers are dealt out in turn, as stages want it."""
    found = buckets(shape, hybrid)
    if not found:
        return ()
    size = group_size([len(layers) for _, _, layers in found])
    dealt = []
    for kind, window, layers in found:
        count = ceil_div(len(layers), size)
        for first in range(count):
            members = layers[first::count]
            dealt.append((LayerGroup(kind, len(members), window), members))
    return tuple(dealt)
