"""The tensors of what mixes tokens in a layer: attention, latent attention, states of fixed size.

Queries, heads and channels are cut among the ranks; what makes the latent vectors is on every rank.
"""

from collections.abc import Iterator

from servekit.config.parts import GatedDelta, Indexer, Mamba1, Mamba2, Mla
from servekit.config.shape import Shape
from servekit.spec.tensors import Split, Tensor, heads_per_rank, projection


def attention(shape: Shape, split: Split, *, shares_kv: bool, full: bool) -> Iterator[Tensor]:
    """Queries, keys, values and output; a layer that reads another's cache has no keys or values.

    Query and key heads are normed by one weight [head_dim], held for every head. `full` layers see
    everything; their heads may be others, and their keys the values, before norm and rope.
    """
    hidden, heads, bias = shape.hidden_size, split.of(shape.heads), shape.qkv_bias
    sizes = shape.heads_of(full=full)
    yield from projection("attention", hidden, heads * sizes.head_dim, bias=bias)
    yield from projection("attention", heads * sizes.value_head_dim, hidden, bias=shape.output_bias)
    if shape.qk_norm:
        yield Tensor("norms", outputs=sizes.head_dim, repeats=heads)
    if shares_kv:
        return
    kv_heads = heads_per_rank(sizes.kv_heads, split.tensor)
    yield from projection("attention", hidden, kv_heads * sizes.head_dim, bias=bias)
    if not (full and shape.full_keys_are_values):
        yield from projection("attention", hidden, kv_heads * sizes.value_head_dim, bias=bias)
    if shape.qk_norm:
        yield Tensor("norms", outputs=sizes.head_dim, repeats=kv_heads)


def latent_attention(shape: Shape, mla: Mla, split: Split) -> Iterator[Tensor]:
    """Down to a latent vector and up again to every head, as DeepSeek-V2 has it."""
    hidden, heads = shape.hidden_size, split.of(shape.heads)
    queries = heads * (mla.nope_head_dim + mla.rope_head_dim)
    value_head = shape.value_head_dim or mla.nope_head_dim
    bias = shape.qkv_bias
    if mla.q_lora_rank is None:
        yield from projection("attention", hidden, queries, bias=bias)
    else:
        yield from projection("attention", hidden, mla.q_lora_rank, bias=bias)
        yield Tensor("norms", outputs=mla.q_lora_rank)
        yield from projection("attention", mla.q_lora_rank, queries)
    latent = mla.kv_lora_rank + mla.rope_head_dim
    yield from projection("attention", hidden, latent, bias=bias)
    yield Tensor("norms", outputs=mla.kv_lora_rank)
    keys_and_values = heads * (mla.nope_head_dim + value_head)
    yield from projection("attention", mla.kv_lora_rank, keys_and_values)
    yield from projection("attention", heads * value_head, hidden, bias=shape.output_bias)


def indexer(shape: Shape, mla: Mla, index: Indexer) -> Iterator[Tensor]:
    """Queries from the compressed ones; a key with a LayerNorm, and a weight for each head.

    Every rank has it whole. Engines fuse key and weights, and keep them in 16 bits.
    """
    queries = index.heads * index.head_dim
    yield from projection("attention", mla.q_lora_rank or shape.hidden_size, queries)
    yield Tensor("attention", outputs=index.head_dim + index.heads, inputs=shape.hidden_size)
    yield Tensor("norms", outputs=2 * index.head_dim)


def state_layer(shape: Shape, split: Split) -> Iterator[Tensor]:
    match shape.state:
        case Mamba1() as state:
            yield from mamba1(shape.hidden_size, state, split)
        case Mamba2() as state:
            yield from mamba2(shape.hidden_size, state, split)
        case GatedDelta(kind="gated_delta") as state:
            yield from gated_delta(shape.hidden_size, state, split)
        case GatedDelta() as state:
            yield from kimi_delta(shape.hidden_size, state, split)


def mamba1(hidden: int, state: Mamba1, split: Split) -> Iterator[Tensor]:
    """Selective state space: a channel's input, output and step size come from the token."""
    inner = split.of(state.inner_size)
    yield from projection("state", hidden, 2 * inner)
    yield Tensor("state", outputs=inner, inputs=state.conv_kernel)
    yield Tensor("state", outputs=inner)  # bias of the convolution
    yield from projection("state", inner, state.dt_rank + 2 * state.state_size)
    yield from projection("state", state.dt_rank, inner, bias=True)
    yield Tensor("state", outputs=inner, inputs=state.state_size)  # A
    yield Tensor("state", outputs=inner)  # D
    yield from projection("state", inner, hidden)


def mamba2(hidden: int, state: Mamba2, split: Split) -> Iterator[Tensor]:
    """One step size a head, input and output maps shared by a group of heads, a gated norm."""
    heads = split.of(state.heads)
    inner = heads * state.head_dim
    convolved = inner + 2 * split.of(state.groups) * state.state_size
    yield from projection("state", hidden, inner + convolved + heads)
    yield Tensor("state", outputs=convolved, inputs=state.conv_kernel)
    yield Tensor("state", outputs=convolved)  # bias of the convolution
    yield Tensor("state", outputs=heads, copies=3)  # A, D, bias of the step size
    yield Tensor("state", outputs=inner)  # norm
    yield from projection("state", inner, hidden)


def gated_delta(hidden: int, state: GatedDelta, split: Split) -> Iterator[Tensor]:
    """Queries, keys, values and output gate; a decay and a write strength for each value head."""
    keys = split.of(state.key_heads) * state.key_head_dim
    heads = split.of(state.value_heads)
    values = heads * state.value_head_dim
    yield from projection("state", hidden, 2 * keys + 2 * values)
    yield Tensor("state", outputs=2 * heads, inputs=hidden)
    yield Tensor("state", outputs=2 * keys + values, inputs=state.conv_kernel)
    yield Tensor("state", outputs=heads, copies=2)  # A, bias of the step size
    yield Tensor("state", outputs=state.value_head_dim)  # norm
    yield from projection("state", values, hidden)


def kimi_delta(hidden: int, state: GatedDelta, split: Split) -> Iterator[Tensor]:
    """As above with a decay for each channel; both gates pass through one head's width."""
    keys = split.of(state.key_heads) * state.key_head_dim
    heads = split.of(state.value_heads)
    values = heads * state.value_head_dim
    yield from projection("state", hidden, 2 * keys + values)
    yield Tensor("state", outputs=2 * keys + values, inputs=state.conv_kernel)
    for inner, outer in ((state.key_head_dim, keys), (state.value_head_dim, values)):
        yield from projection("state", hidden, inner)
        yield from projection("state", inner, outer)
    yield Tensor("state", outputs=heads, inputs=hidden)  # write strength
    yield Tensor("state", outputs=keys)  # bias of the step size
    yield Tensor("state", outputs=heads)  # A
    yield Tensor("state", outputs=state.value_head_dim)  # norm
    yield from projection("state", values, hidden)
