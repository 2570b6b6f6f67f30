"""What a model weighs: its parameters, and the bytes of weights that each rank holds.

Exact arithmetic on the configuration; `layers` and `mixers` say which tensors a layer has.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import get_args

from servekit.config.base import DTYPE_BYTES
from servekit.config.schema import Config, ParallelismConfig
from servekit.config.shape import Shape
from servekit.spec.formats import bits_per_weight
from servekit.spec.layers import LayerKind, layer_kinds, layer_tensors
from servekit.spec.tensors import Part, Split, Tensor, ceil_div, heads_per_rank

GIB = 1024**3
SCOPES: Mapping[str, tuple[Part, ...]] = {
    "mlps": ("mlp", "shared_experts", "experts"),
    "experts": ("experts",),
}
"""Parts whose projections are in `quantization.weights`, where not all are."""
VOCAB_ALIGNMENT = 64
"""Rows that the vocabulary of each tensor-parallel rank is padded to a multiple of."""
MXFP4_WIDTH, MXFP4_HIDDEN = 128, 256
"""What mxfp4 kernels pad the width of an expert and the residual stream to a multiple of."""


def kv_heads_per_rank(shape: Shape, tensor: int, *, full: bool = False) -> int:
    """Key and value heads that one rank holds in a layer."""
    return heads_per_rank(shape.heads_of(full=full).kv_heads, tensor)


def vocab_rows_per_rank(shape: Shape, tensor: int) -> int:
    """Rows of embedding and head on one rank; padded only where they are shared out."""
    if tensor == 1:
        return shape.vocab_size
    return ceil_div(shape.vocab_size, VOCAB_ALIGNMENT * tensor) * VOCAB_ALIGNMENT


def stage_layers(layers: int, pipeline: int) -> tuple[range, ...]:
    """The layers of each stage. Those left over go to the last stage but one, then to those before
    it: the last stage has the head, the first the embedding.
    """
    each, left = divmod(layers, pipeline)
    sizes = [each + (pipeline - 1 - left <= stage < pipeline - 1) for stage in range(pipeline)]
    ends = [sum(sizes[: stage + 1]) for stage in range(pipeline)]
    return tuple(range(end - size, end) for size, end in zip(sizes, ends, strict=True))


@dataclass(frozen=True, slots=True)
class Parameters:
    """Counts of the whole model, a part over all layers together.

    `head` is 0 where it is the embedding itself. `active` is what one token passes through: of
    the experts those it is sent to, the head also where it is tied, and no embedding.
    """

    embedding: int
    attention: int
    state: int
    mlp: int
    experts: int
    shared_experts: int
    routers: int
    norms: int
    head: int
    mtp: int
    other: int
    active: int

    @property
    def total(self) -> int:
        """The count that is published, which leaves out the layers that guess further tokens."""
        return sum(getattr(self, part) for part in PARTS if part != "mtp")


@dataclass(frozen=True, slots=True)
class Share:
    """A part of the weights on one rank."""

    parameters: int
    bytes: int

    def __add__(self, other: "Share") -> "Share":
        return Share(self.parameters + other.parameters, self.bytes + other.bytes)


NOTHING = Share(0, 0)


@dataclass(frozen=True, slots=True)
class RankWeights:
    """What one rank of a stage holds. `rotary` are tables of cosines and sines, `draft` is a small
    model that guesses tokens.
    """

    embedding: Share
    attention: Share
    state: Share
    mlp: Share
    experts: Share
    shared_experts: Share
    routers: Share
    norms: Share
    head: Share
    mtp: Share
    other: Share
    rotary: Share
    draft: Share

    @property
    def bytes(self) -> int:
        return sum(getattr(self, part.name).bytes for part in fields(self))

    @property
    def linear(self) -> Share:
        """All of the layers but the routed experts: what every step reads whole."""
        always = (self.attention, self.state, self.mlp, self.shared_experts)
        return sum((*always, self.routers, self.norms), NOTHING)


PARTS = tuple(part.name for part in fields(RankWeights) if part.name not in ("rotary", "draft"))
"""Those that have parameters of the model."""
IN_LAYERS: tuple[Part, ...] = get_args(Part)


def parameters(shape: Shape) -> Parameters:
    """Of the model as published, whatever it is spread over."""
    experts = shape.moe.experts if shape.moe else 0
    split = Split(tensor=1, experts=experts, expert_tensor=1)
    sums = dict.fromkeys(IN_LAYERS, 0)
    for kind, layers in Counter(layer_kinds(shape)).items():
        for tensor in layer_tensors(shape, kind, split):
            sums[tensor.part] += layers * tensor.parameters
    sums["norms"] += shape.hidden_size
    table = shape.vocab_size * shape.hidden_size
    passed = sum(sums.values()) - sums["experts"] + table
    if shape.moe is not None:
        passed += sums["experts"] * shape.moe.experts_per_token // shape.moe.experts
    return Parameters(
        embedding=table,
        head=0 if shape.tie_word_embeddings else table,
        mtp=sum(tensor.parameters for tensor in mtp_tensors(shape, split)),
        other=shape.other_parameters,
        active=passed,
        **sums,
    )


def rank_weights(config: Config, stage: int = 0) -> RankWeights:
    """Weights as one rank of that stage holds them, in `quantization.weights`.

    Embedding, head, norms, routers and biases stay in `model.dtype`. Whatever is outside the
    decoder, such as a vision tower, stays in 16 bits and is shared out like layers.
    Where embedding and head are one table, the first stage and the last hold a copy each.
    """
    shape, parallelism = config.model.shape, config.parallelism
    split, weigh = rank_split(shape, parallelism), scale(config)
    first, last = stage == 0, stage == parallelism.pipeline - 1
    sums = dict.fromkeys(IN_LAYERS, NOTHING)
    own = stage_layers(shape.layers, parallelism.pipeline)[stage]
    for kind, layers in Counter(layer_kinds(shape)[own.start : own.stop]).items():
        for tensor in layer_tensors(shape, kind, split):
            share = weigh(tensor)
            sums[tensor.part] += Share(layers * share.parameters, layers * share.bytes)
    if last:
        sums["norms"] += weigh(Tensor("norms", outputs=shape.hidden_size))
    rows = vocab_rows_per_rank(shape, parallelism.tensor) * shape.hidden_size
    table = Share(rows, rows * DTYPE_BYTES[config.model.dtype])
    has_head = last and not (first and shape.tie_word_embeddings)
    others = ceil_div(shape.other_parameters, parallelism.tensor) if first else 0
    return RankWeights(
        embedding=table if first else NOTHING,
        head=table if has_head else NOTHING,
        mtp=mtp_share(config, split, table) if last else NOTHING,
        other=Share(others, 2 * others),
        rotary=rotary_share(config),
        draft=draft_share(config) if last else NOTHING,
        **sums,
    )


def rank_split(shape: Shape, parallelism: ParallelismConfig) -> Split:
    return Split(
        tensor=parallelism.tensor,
        experts=ceil_div(shape.moe.experts, parallelism.expert) if shape.moe else 0,
        expert_tensor=parallelism.expert_tensor,
    )


def scale(config: Config) -> Callable[[Tensor], Share]:
    """What tensors of this deployment weigh.

    In float32 are norms with a unit offset, 1 added, and routers that score by sigmoid.
    """
    shape, dtype = config.model.shape, config.model.dtype
    weights, scope = config.quantization.weights, config.quantization.scope
    element = DTYPE_BYTES[dtype]
    norm_element = 4 if shape.norm_unit_offset else element
    expert_padding = mxfp4_padding(config) if weights == "mxfp4" else 1.0

    def weigh(tensor: Tensor) -> Share:
        count = tensor.parameters
        if tensor.part == "norms":
            return Share(count, count * tensor.repeats * norm_element)
        if tensor.part == "routers" and shape.moe is not None and shape.moe.router == "sigmoid":
            return Share(count, count * 4)
        is_expert = tensor.part == "experts"
        if not tensor.is_projection or (scope != "linears" and tensor.part not in SCOPES[scope]):
            return Share(count, count * element)
        # experts of one layer are one tensor to their kernel, with a scale for each of them
        inputs = tensor.inputs * tensor.outputs if is_expert else tensor.inputs
        bits = bits_per_weight(weights, dtype, inputs)
        return Share(count, round(count * bits * (expert_padding if is_expert else 1) / 8))

    return weigh


def mxfp4_padding(config: Config) -> float:
    """Weights that kernels hold for each of an expert on one rank, at least 1."""
    shape = config.model.shape
    if shape.moe is None:
        return 1.0
    width = ceil_div(shape.moe.intermediate_size, config.parallelism.expert_tensor)
    padded = ceil_div(width, MXFP4_WIDTH) * MXFP4_WIDTH
    padded *= ceil_div(shape.hidden_size, MXFP4_HIDDEN) * MXFP4_HIDDEN
    return padded / (width * shape.hidden_size)


def mtp_tensors(shape: Shape, split: Split) -> Iterator[Tensor]:
    """Of all layers that guess further tokens, as DeepSeek-V3 has them: each a layer like the last,
    a projection of hidden state and embedding together, their norms and a final one. Embedding and
    head are those of the model. They have an indexer where the model has any.
    """
    last: LayerKind = layer_kinds(shape)[-1]
    if shape.indexer is not None:
        last = replace(last, indexed=True)
    for _ in range(shape.mtp_layers):
        yield from layer_tensors(shape, last, split)
        yield Tensor("mlp", outputs=shape.hidden_size, inputs=2 * shape.hidden_size)
        yield Tensor("norms", outputs=shape.hidden_size, copies=3)


def mtp_share(config: Config, split: Split, table: Share) -> Share:
    """Held where they guess; apart from the first stage they need an embedding of their own."""
    shape = config.model.shape
    if config.speculative.method != "mtp":
        return NOTHING
    alone = config.parallelism.pipeline > 1 and not shape.tie_word_embeddings
    tensors: Iterable[Tensor] = mtp_tensors(shape, split)
    return sum(map(scale(config), tensors), table if alone else NOTHING)


def rotary_share(config: Config) -> Share:
    """Of every position in 16 bits, a table for each base, as kernels on a GPU read them; the CPU
    path computes them for the tokens of a step. Linear scaling makes its table longer by its
    factor: published start-up logs of Gemma 3 have half a GiB more than its parameters.
    """
    shape = config.model.shape
    if config.hardware.kind == "cpu" or not shape.attention_layers:
        return NOTHING
    width = shape.mla.rope_head_dim if shape.mla else shape.heads_of(full=True).head_dim
    widths = ((shape.rope, width), (shape.local_rope, shape.head_dim))
    columns = sum(
        columns * (rope.factor if rope.kind == "linear" else 1)
        for rope, columns in widths
        if rope is not None
    )
    count = int(shape.max_position_embeddings * columns)
    return Share(count, 2 * count)


def draft_share(config: Config) -> Share:
    """A small model in 16 bits, shared out like the large one."""
    count = ceil_div(config.speculative.draft_parameters or 0, config.parallelism.tensor)
    return Share(count, 2 * count)
