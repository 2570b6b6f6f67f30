"""How keys, values and states are laid out: bytes of a block, blocks of a request, their number.

Nothing else turns bytes into blocks.
"""

from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import Literal

from servekit.config.base import DTYPE_BYTES
from servekit.config.schema import Config, KvDtype
from servekit.config.shape import Shape
from servekit.spec.groups import LayerGroup, layer_groups
from servekit.spec.model import GIB, ceil_div, kv_heads_per_rank, stage_layers
from servekit.spec.state import layer_state_bytes

Rule = Literal["kv.memory_gib", "kv.capacity_tokens", "kv.memory_fraction"]


@dataclass(frozen=True, slots=True)
class KvLayout:
    """The paged cache of one device.

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
        return self.bytes_per_block * max(1, kinds.count("full")) // self.block_size

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
            most = self.num_blocks * self.block_size
        else:
            most = self.max_model_len
        return bisect_right(range(1, most + 1), self.num_blocks, key=self.blocks_for)


def head_bytes(dtype: KvDtype, width: int) -> int:
    """One key or value head of one token, with its scales.

    fp8 has one scale a tensor, which is nothing; int8 and int4 a float32 for each head of each
    token; nvfp4 one byte for 16 values.
    """
    match dtype:
        case "fp8":
            return width
        case "int8":
            return width + 4
        case "int4":
            return ceil_div(width, 2) + 4
        case "nvfp4":
            return ceil_div(width, 2) + ceil_div(width, 16)
    return width * DTYPE_BYTES[dtype]


def layer_bytes_per_token(shape: Shape, dtype: KvDtype, tensor: int = 1) -> int:
    """What one attention layer keeps of one token on one of `tensor` ranks.

    Latent attention keeps one vector for keys and values and all heads, so every rank has it whole.
    """
    if shape.mla is not None:
        return head_bytes(dtype, shape.mla.kv_lora_rank + shape.mla.rope_head_dim)
    value_dim = shape.value_head_dim or shape.head_dim
    both = head_bytes(dtype, shape.head_dim) + head_bytes(dtype, value_dim)
    return kv_heads_per_rank(shape, tensor) * both


@dataclass(frozen=True, slots=True)
class KvRead:
    """What a decoded token reads, for each token of its context that `window` lets it see."""

    bytes_per_token: float
    window: int | None


def kv_reads(config: Config, stage: int = 0) -> tuple[KvRead, ...]:
    """Reads of one request's cache on one rank, a row for each kind of layer.

    Layers without a cache of their own read that of another. A draft model's reads are not here.
    """
    shape, parallelism = config.model.shape, config.parallelism
    per_layer = layer_bytes_per_token(shape, config.kv.dtype, parallelism.tensor)
    here = stage_layers(shape.layers, parallelism.pipeline)[stage]
    windows = [shape.window(layer) for layer in shape.attention_layers if layer in here]
    return tuple(
        KvRead(bytes_per_token=float(windows.count(window) * per_layer), window=window)
        for window in dict.fromkeys(windows)
    )


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
    own layers of each, so the group with most of them here says how large a block is here. What a
    draft model keeps is in every block of the last stage, whichever its group.
    """
    shape, parallelism, limit = config.model.shape, config.parallelism, config.model.max_model_len
    here = stage_layers(shape.layers, parallelism.pipeline)[stage]
    grouped = layer_groups(shape, config.kv.hybrid)
    widest = max((sum(layer in here for layer in members) for _, members in grouped), default=0)
    block_size, page = block_and_page(config)
    drafted = drafted_bytes_per_token(config) if stage == parallelism.pipeline - 1 else 0
    return KvLayout(
        block_size=block_size,
        bytes_per_block=max(1, widest * page + block_size * drafted),  # 1: a stage of MLPs alone
        num_blocks=0,
        groups=tuple(group for group, _ in grouped),
        max_model_len=limit,
        in_flight=config.scheduler.max_num_batched_tokens,
        drafts=config.speculative.tokens,
    )


def drafted_bytes_per_token(config: Config) -> int:
    """Keys and values of those who guess: a small model, or the model's own extra layers."""
    shape, tensor = config.model.shape, config.parallelism.tensor
    if config.speculative.method == "mtp":
        return shape.mtp_layers * layer_bytes_per_token(shape, config.kv.dtype, tensor)
    return ceil_div(config.speculative.draft_kv_bytes_per_token or 0, tensor)


def block_and_page(config: Config) -> tuple[int, int]:
    """Tokens in a block, and the bytes that one layer has in it.

    Beside layers with a state, blocks are made of so many times kv.block_size tokens that a state
    is no larger than one; where there is nothing else, a block is a state and holds any request.
    """
    shape, tensor = config.model.shape, config.parallelism.tensor
    per_token = layer_bytes_per_token(shape, config.kv.dtype, tensor)
    unit = config.kv.block_size
    if shape.state is None or not shape.state.layers:
        return unit, unit * per_token
    state = layer_state_bytes(shape.state, config.model.dtype, tensor)
    if not shape.attention_layers:
        return config.model.max_model_len, state
    block_size = unit * ceil_div(state, unit * per_token)
    return block_size, block_size * per_token
