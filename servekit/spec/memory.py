"""The one capacity model: what fills a device's memory, and how many tokens the cache then holds.

Plan, gate, engine and metrics all ask `ledger`; nothing else turns bytes into blocks. It is for one
device: with tensor parallelism every rank holds the same amount, so the worst is any.
"""

from dataclasses import dataclass
from typing import Literal

from servekit.config.base import DTYPE_BYTES
from servekit.config.schema import Config
from servekit.spec.model import GIB, ceil_div, kv_bytes_per_token, kv_heads_per_rank, weights_bytes

Standing = Literal["exact", "measured", "modelled", "guess"]
Rule = Literal["kv.memory_gib", "kv.capacity_tokens", "kv.memory_fraction"]

RUNTIME_GIB = {"cpu": 0.6, "cuda": 0.75, "rocm": 0.75}
"""CPU: two processes with interpreter and torch. GPU: context, libraries and allocator slack."""

GATHER_TOKENS = 65536
"""Most context tokens whose keys and values the reference attention copies together; one request
longer than this is copied whole."""

SAMPLER_COPIES = 10
"""Float32 copies of the logits alive at once, at worst: raw, penalised, scaled, probabilities, the
same sorted with their int64 places (three), their running sum, and two temporaries."""


@dataclass(frozen=True, slots=True)
class KvLayout:
    """The paged cache of one device.

    `num_blocks` counts block 0 too, the null block that pads tables and is never owned.
    """

    block_size: int
    bytes_per_block: int
    num_blocks: int

    @property
    def usable_blocks(self) -> int:
        return max(0, self.num_blocks - 1)

    @property
    def capacity_tokens(self) -> int:
        """Also the longest request that can be served at all."""
        return self.usable_blocks * self.block_size

    @property
    def bytes_per_token(self) -> int:
        return self.bytes_per_block // self.block_size

    @property
    def bytes(self) -> int:
        return self.num_blocks * self.bytes_per_block

    def blocks_for(self, tokens: int) -> int:
        return ceil_div(tokens, self.block_size)

    def max_concurrency(self, tokens: int) -> float:
        """Requests of that many tokens that the cache holds at once, nothing shared."""
        return self.usable_blocks / self.blocks_for(tokens)


@dataclass(frozen=True, slots=True)
class Component:
    """One share of the memory; `note` says how its size was found."""

    bytes: int
    standing: Standing
    note: str


@dataclass(frozen=True, slots=True)
class Ledger:
    """Who has the memory of one device. The four components and `unused_bytes` make the total.

    `unused_bytes` is negative by as much as is missing. `pool_is_explicit` is True where the user
    named the size of the cache, so that one shorter than `max_model_len` is what was asked for.
    """

    total_bytes: int
    weights: Component
    activations: Component
    runtime: Component
    kv: Component
    layout: KvLayout
    rule: Rule
    max_model_len: int

    @property
    def components(self) -> dict[str, Component]:
        return {
            "weights": self.weights,
            "activations": self.activations,
            "runtime": self.runtime,
            "kv": self.kv,
        }

    @property
    def used_bytes(self) -> int:
        return sum(component.bytes for component in self.components.values())

    @property
    def unused_bytes(self) -> int:
        return self.total_bytes - self.used_bytes

    @property
    def pool_is_explicit(self) -> bool:
        return self.rule != "kv.memory_fraction"

    @property
    def holds_longest_request(self) -> bool:
        return self.layout.blocks_for(self.max_model_len) <= self.layout.usable_blocks

    @property
    def fits(self) -> bool:
        """Everything is in memory, and the cache holds a request of the length that was promised.

        A cache whose size the user named need only hold something: admission refuses the rest.
        """
        if self.unused_bytes < 0 or self.layout.usable_blocks == 0:
            return False
        return self.holds_longest_request or self.pool_is_explicit

    @property
    def problem(self) -> str | None:
        """Why it does not fit, in one sentence; None if it does."""
        if self.fits:
            return None
        fixed = self.used_bytes - self.kv.bytes
        if fixed > self.total_bytes:
            return (
                f"weights, activations and runtime take {fixed / GIB:.2f} GiB of "
                f"{self.total_bytes / GIB:.2f} GiB, before any KV cache"
            )
        if self.unused_bytes < 0:
            return (
                f"{self.rule} asks for {self.kv.bytes / GIB:.2f} GiB of KV cache, and "
                f"{(self.total_bytes - fixed) / GIB:.2f} GiB of {self.total_bytes / GIB:.2f} GiB "
                "is free after weights, activations and runtime"
            )
        if self.layout.usable_blocks == 0:
            return (
                f"{self.rule} leaves {self.kv.bytes / GIB:.3f} GiB of KV cache, which is not one "
                f"block of {self.layout.block_size} tokens beside the null block"
            )
        return (
            f"the KV cache holds {self.layout.capacity_tokens} tokens, and one request may have "
            f"{self.max_model_len} (model.max_model_len)"
        )


def ledger(config: Config, *, weights_bytes: int | None = None) -> Ledger:
    """What a deployment needs of each device. Pure arithmetic; raises nothing.

    `weights_bytes` is what the loaded weights of one device measure; without it they are planned.
    """
    total = int(config.hardware.memory_gib * GIB)
    weights = weights_component(config, weights_bytes)
    activations = activations_component(config)
    runtime = Component(
        bytes=int(RUNTIME_GIB[config.hardware.kind] * GIB),
        standing="guess",
        note="interpreter and torch" if config.hardware.kind == "cpu" else "context and libraries",
    )
    free = total - weights.bytes - activations.bytes - runtime.bytes
    layout, rule = kv_layout(config, free)
    return Ledger(
        total_bytes=total,
        weights=weights,
        activations=activations,
        runtime=runtime,
        kv=Component(bytes=layout.bytes, standing="exact", note=f"by {rule}"),
        layout=layout,
        rule=rule,
        max_model_len=config.model.max_model_len,
    )


def kv_layout(config: Config, free_bytes: int) -> tuple[KvLayout, Rule]:
    """How many blocks, and which of the three keys of `kv` said so.

    `free_bytes` is what weights, activations and runtime leave of the device.
    """
    kv, tensor = config.kv, config.parallelism.tensor
    block = kv.block_size * kv_bytes_per_token(config.model.shape, kv.dtype, tensor)
    rule: Rule
    if kv.memory_gib is not None:
        blocks, rule = int(kv.memory_gib * GIB) // block, "kv.memory_gib"
    elif kv.capacity_tokens is not None:
        blocks, rule = ceil_div(kv.capacity_tokens, kv.block_size) + 1, "kv.capacity_tokens"
    else:
        assert kv.memory_fraction is not None, "the schema wants exactly one size"
        blocks = int(kv.memory_fraction * max(0, free_bytes)) // block
        rule = "kv.memory_fraction"
    return KvLayout(block_size=kv.block_size, bytes_per_block=block, num_blocks=blocks), rule


def weights_component(config: Config, measured: int | None) -> Component:
    if measured is not None:
        return Component(bytes=measured, standing="measured", note="as loaded")
    model = config.model
    planned = weights_bytes(model.shape, model.dtype, config.parallelism.tensor)
    return Component(bytes=planned, standing="exact", note=f"parameters in {model.dtype}")


def activations_component(config: Config) -> Component:
    """The most that a step at its limits holds: in the decoder, or in the sampler after it.

    In the decoder the residual stream and what the attention of all layers shares stay beside the
    larger of attention and MLP.
    """
    stream = config.scheduler.max_num_batched_tokens * config.model.shape.hidden_size
    resident = stream * DTYPE_BYTES[config.model.dtype] + shared_attention_bytes(config)
    decoder = resident + max(attention_bytes(config), mlp_bytes(config))
    peak = max(decoder, sampler_bytes(config))
    return Component(bytes=peak, standing="modelled", note="one step at its limits")


def shared_attention_bytes(config: Config) -> int:
    """Room for keys and values gathered from the cache; slots of all contexts; masks.

    Slots (int64) and a mask of new tokens by positions are made for each kind of layer, full and
    sliding-window; the mask is two booleans and a value while it is made.
    """
    shape, element = config.model.shape, DTYPE_BYTES[config.model.dtype]
    tokens, longest = config.scheduler.max_num_batched_tokens, config.model.max_model_len
    kinds = len({shape.window(layer) for layer in range(shape.layers)})
    masks = kinds * tokens * longest * (element + 2)
    slots = kinds * config.scheduler.max_num_seqs * longest * 8
    return masks + slots + gathered_bytes(config)


def attention_bytes(config: Config) -> int:
    """Normed input, queries, keys and values before and after rope, output; and their norm.

    Scores, too, where a soft cap keeps them from being fused: three float32 copies.
    """
    shape = config.model.shape
    tokens = config.scheduler.max_num_batched_tokens
    heads = shape.heads // config.parallelism.tensor
    kv_heads = kv_heads_per_rank(shape, config.parallelism.tensor)
    width = 2 * shape.hidden_size + (6 * heads + 5 * kv_heads) * shape.head_dim
    rows = tokens * width * DTYPE_BYTES[config.model.dtype]
    norm = tokens * shape.hidden_size * 4
    softcap = shape.attention_logit_softcap is not None
    scores = 3 * heads * tokens * config.model.max_model_len * 4 if softcap else 0
    return rows + norm + scores


def gathered_bytes(config: Config) -> int:
    """Copies of cached keys and values, for as many requests at once as `GATHER_TOKENS` allows.

    Copied again where the cache has another dtype than the model, and on a GPU with each key head
    repeated for its query heads, which its fused kernels want.
    """
    shape, element = config.model.shape, DTYPE_BYTES[config.model.dtype]
    tensor, longest = config.parallelism.tensor, config.model.max_model_len
    tokens = min(config.scheduler.max_num_seqs * longest, max(longest, GATHER_TOKENS))
    copied = kv_heads_per_rank(shape, tensor) * DTYPE_BYTES[config.kv.dtype]
    if config.kv.dtype != config.model.dtype:
        copied += kv_heads_per_rank(shape, tensor) * element
    if config.hardware.kind != "cpu":
        copied += shape.heads // tensor * element
    return tokens * 2 * copied * shape.head_dim


def mlp_bytes(config: Config) -> int:
    """Normed input and output, gate and up together, the activated gate, and their product."""
    shape = config.model.shape
    width = ceil_div(shape.intermediate_size, config.parallelism.tensor)
    tokens = config.scheduler.max_num_batched_tokens
    rows = tokens * (2 * shape.hidden_size + 4 * width) * DTYPE_BYTES[config.model.dtype]
    norm = tokens * shape.hidden_size * 4
    return rows + norm


def sampler_bytes(config: Config) -> int:
    """Logits of every running request over the whole vocabulary, in float32, and their copies."""
    return config.scheduler.max_num_seqs * config.model.shape.vocab_size * 4 * SAMPLER_COPIES
