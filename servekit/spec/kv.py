"""How keys, values and states are laid out: bytes of a block, blocks of a request, their number.

Nothing else turns bytes into blocks.
"""

from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import Literal

from servekit.config.schema import Config
from servekit.spec.groups import LayerGroup, layer_groups
from servekit.spec.layer_blocks import (
    block_bytes,
    drafted_bytes_per_token,
    index_bytes_per_token,
    layer_bytes_per_token,
    pages,
)
from servekit.spec.model import GIB, stage_layers
from servekit.spec.state import layer_state_bytes
from servekit.spec.tensors import ceil_div

Rule = Literal["kv.memory_gib", "kv.capacity_tokens", "kv.memory_fraction"]


@dataclass(frozen=True, slots=True)
class KvLayout:
    """The paged cache of one device.

    All blocks have as many bytes; `block_size` is of the groups whose blocks hold fewest tokens.
    `num_blocks` are those that requests may own; the null block, which pads tables, is one more.
    `in_flight` are the tokens of a step and `drafts` the slots a request has for guessed tokens.
    """

    block_size: int
    bytes_per_block: int
    num_blocks: int
    groups: tuple[LayerGroup, ...]
    max_model_len: int
    in_flight: int = 0
    drafts: int = 0

    @property
    def allocated_blocks(self) -> int:
        return self.num_blocks + 1

    @property
    def bytes(self) -> int:
        """Of the blocks that requests may own."""
        return self.num_blocks * self.bytes_per_block

    @property
    def uniform(self) -> bool:
        """Every layer keeps every token: what one tensor with one block table can hold."""
        return [group.kind for group in self.groups] == ["full"]

    @property
    def bytes_per_token(self) -> int:
        """What one more token costs a long request; 0 where every layer carries a state."""
        kinds = [group.kind for group in self.groups]
        if all(kind == "state" for kind in kinds):
            return 0
        return self.bytes_per_block * max(1, kinds.count("full")) // self.full_block_size

    @property
    def full_block_size(self) -> int:
        """Tokens in a block of the layers that keep every token."""
        stretches = [group.stretch for group in self.groups if group.kind == "full"]
        return self.block_size * max(stretches, default=1)

    def blocks_for(self, tokens: int) -> int:
        """Blocks that a request of so many tokens holds, those of guessed tokens too.

        Guesses made at the very end are given slots as well, past `max_model_len`.
        """
        return sum(
            group.blocks_for(
                tokens + self.drafts,
                block_size=self.block_size,
                in_flight=self.in_flight,
                drafts=self.drafts,
            )
            for group in self.groups
        )

    def max_concurrency(self, tokens: int) -> float:
        """Requests of that many tokens that the cache holds at once, nothing shared."""
        return self.num_blocks / self.blocks_for(tokens)

    @property
    def capacity_tokens(self) -> int:
        """Tokens of all requests together, in requests of `max_model_len` if it depends on that."""
        if self.uniform:
            return self.num_blocks * self.block_size
        return self.num_blocks * self.max_model_len // self.blocks_for(self.max_model_len)

    @property
    def longest_request(self) -> int:
        """Tokens of the longest request that the cache alone would allow; 0: not even one token.

        Where no layer keeps everything and a request of `max_model_len` fits, it is that.
        """
        if any(group.kind == "full" for group in self.groups):
            most = self.num_blocks * self.full_block_size
        else:
            most = self.max_model_len
        return bisect_right(range(1, most + 1), self.num_blocks, key=self.blocks_for)


@dataclass(frozen=True, slots=True)
class KvRead:
    """What a decoded token reads, for each token of its context that `window` lets it see.

    In `layers` layers together: keys and values, or the keys of an indexer.
    """

    bytes_per_token: float
    window: int | None
    layers: int
    part: Literal["keys_and_values", "index"] = "keys_and_values"


def kv_reads(config: Config, stage: int = 0) -> tuple[KvRead, ...]:
    """Reads of one request's cache on one rank, a row for each kind of layer.

    Layers without a cache of their own read that of another. Where an indexer chooses, it reads its
    keys of all tokens, and attention so many tokens as it chooses. A draft model's reads are not
    here.
    """
    shape, parallelism, dtype = config.model.shape, config.parallelism, config.kv.dtype
    here = stage_layers(shape.layers, parallelism.pipeline)[stage]
    windows = [shape.window(layer) for layer in shape.attention_layers if layer in here]
    chooser = shape.indexer
    rows: list[KvRead] = []
    for window in dict.fromkeys(windows):
        count = windows.count(window)
        each = layer_bytes_per_token(shape, dtype, parallelism.tensor, full=window is None)
        seen = window if chooser is None else chooser.top_k
        rows.append(KvRead(bytes_per_token=float(count * each), window=seen, layers=count))
    count = sum(layer in here for layer in shape.indexed_layers)
    if count:
        size = float(count * index_bytes_per_token(shape, dtype))
        rows.append(KvRead(bytes_per_token=size, window=None, layers=count, part="index"))
    return tuple(rows)


def state_bytes(config: Config, stage: int = 0) -> int:
    """States of one request on one rank; a step reads and writes them all."""
    shape, parallelism = config.model.shape, config.parallelism
    if shape.state is None:
        return 0
    here = stage_layers(shape.layers, parallelism.pipeline)[stage]
    count = sum(layer in here for layer in shape.state.layers)
    return count * layer_state_bytes(shape.state, config.model.dtype, parallelism.tensor)


def kv_layout(config: Config, free_bytes: int, stage: int = 0) -> tuple[KvLayout, Rule]:
    """How many blocks one rank of a stage has, and which of the three keys of `kv` said so.

    `free_bytes` is what everything else leaves of the device; only kv.memory_fraction asks for it.
    """
    kv, layout = config.kv, empty_layout(config, stage)
    rule: Rule
    if kv.memory_gib is not None:
        blocks, rule = int(kv.memory_gib * GIB) // layout.bytes_per_block, "kv.memory_gib"
    elif kv.capacity_tokens is not None:
        blocks, rule = blocks_that_hold(layout, kv.capacity_tokens), "kv.capacity_tokens"
    else:
        assert kv.memory_fraction is not None, "the schema wants exactly one size"
        share = int(kv.memory_fraction * max(0, free_bytes))
        blocks, rule = share // layout.bytes_per_block, "kv.memory_fraction"
    return replace(layout, num_blocks=blocks), rule


def blocks_that_hold(layout: KvLayout, tokens: int) -> int:
    """The fewest blocks with which `capacity_tokens` is at least so many."""
    if layout.uniform:
        return ceil_div(tokens, layout.block_size)
    return ceil_div(tokens * layout.blocks_for(layout.max_model_len), layout.max_model_len)


def empty_layout(config: Config, stage: int = 0) -> KvLayout:
    """The layout on one rank of a stage before it is known how many blocks there are.

    Groups are those of the whole model, since all stages follow one block table; a stage holds its
    own layers of each, so the group with most bytes of them here says how large a block is here.
    What a draft model keeps is in every block of the last stage, whichever its group.
    """
    grouped = layer_groups(config.model.shape, config.kv.hybrid)
    held = block_bytes(config, largest_group(config, stage))
    sliding, full = pages(config)
    block_size = min(sliding.tokens, full.tokens)
    stretches = {"full": full.tokens // block_size, "state": 1}
    last = stage == config.parallelism.pipeline - 1
    drafted = full.tokens * drafted_bytes_per_token(config) if last else 0
    return KvLayout(
        block_size=block_size,
        bytes_per_block=max(1, held + drafted),  # 1: a stage of MLPs alone
        num_blocks=0,
        groups=tuple(
            replace(group, stretch=stretches.get(group.kind, sliding.tokens // block_size))
            for group, _ in grouped
        ),
        max_model_len=config.model.max_model_len,
        in_flight=config.scheduler.max_num_batched_tokens,
        drafts=config.speculative.tokens,
    )


def largest_group(config: Config, stage: int = 0) -> tuple[int, ...]:
    """Layers of one stage that share a block table, and keep most bytes in a block."""
    shape = config.model.shape
    here = stage_layers(shape.layers, config.parallelism.pipeline)[stage]
    held = [
        tuple(layer for layer in members if layer in here)
        for _, members in layer_groups(shape, config.kv.hybrid)
    ]
    return max(held, key=lambda layers: block_bytes(config, layers), default=())
