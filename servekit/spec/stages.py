"""What one rank of each pipeline stage reads, computes and exchanges in a step, in seconds at peak.

`latency` asks these numbers a thousand times for a plan, so everything that does not depend on the
step is done here once.
"""

import math
from dataclasses import dataclass, replace

from servekit.config.base import DTYPE_BYTES
from servekit.config.schema import Config, HardwareConfig
from servekit.config.shape import Shape
from servekit.spec.arithmetic import arithmetic, plain, rate
from servekit.spec.collectives import NO_LINKS, Links, links
from servekit.spec.efficiency import FULL, Arithmetic, Curve, Efficiency, Gemm, experts_of, gemm_of
from servekit.spec.kv import KvRead, kv_reads, state_bytes
from servekit.spec.model import Share, rank_weights, stage_layers

STATE_SHARE = 0.8
"""Of the bandwidth that updates of states reach; a guess."""
IMBALANCE = 1.2
"""Load of the fullest rank over the mean, where ranks hold whole experts; a guess."""


@dataclass(frozen=True, slots=True)
class Products:
    """Weights that are read together and multiplied with the tokens of a step."""

    read_s: float
    """all of them, at the full bandwidth"""
    token_s: float
    """one token of this copy, at the full rate"""
    memory: Curve
    compute: Curve
    floor_s: float
    """launches times the shortest launch"""
    sampled: bool = False
    """only tokens that logits are wanted of"""
    hit: float = 1.0
    """share of the weights that one token passes through"""
    group: float = 1.0
    """tokens that come here for each of this copy's: of other copies too, and more on the fullest
    rank"""


@dataclass(frozen=True, slots=True)
class Attention:
    """Layers alike in what they see; `window` is infinite where they see everything, and as much as
    an indexer chooses where there is one.
    """

    layers: int
    window: float
    layer_bytes: float
    """keys and values of a token in one layer"""
    byte_s: float
    decode_pair_s: float
    """a query and a key in one layer, at the rate that kernels reach at best"""
    prefill_pair_s: float
    """a query and a key in one layer, at the full rate"""
    decode: Curve
    prefill: Curve
    floor_s: float


@dataclass(frozen=True, slots=True)
class Stage:
    products: tuple[Products, ...]
    attention: tuple[Attention, ...]
    state_s: float
    """reading and writing the states of a request"""
    links: Links
    activation_bytes: float
    """of a token"""
    reduces: int = 0
    exchanges: int = 0
    exchange_share: float = 0.0
    """bytes that one exchange of experts sends, over those of the activations"""
    hops: int = 0
    """to the next stage"""


def stages(config: Config, efficiency: Efficiency | None) -> tuple[Stage, ...]:
    """Of every pipeline stage; without a table of efficiencies, at peak and without exchanges."""
    return tuple(_stage(config, stage, efficiency) for stage in range(config.parallelism.pipeline))


def _stage(config: Config, stage: int, efficiency: Efficiency | None) -> Stage:
    shape, parallelism = config.model.shape, config.parallelism
    here = stage_layers(shape.layers, parallelism.pipeline)[stage]
    wide = parallelism.expert > parallelism.tensor
    experts = sum(layer in here for layer in shape.moe_layers)
    share = 0.0
    if wide and shape.moe is not None:
        others = (parallelism.expert - 1) / parallelism.expert
        share = min(shape.moe.experts_per_token, parallelism.expert) * others / parallelism.tensor
    state = 2 * state_bytes(config, stage) / (config.hardware.bandwidth_gb_s * 1e9)
    return Stage(
        products=_products(config, stage, efficiency),
        attention=attention(config, stage, efficiency),
        state_s=state / (STATE_SHARE if efficiency else 1.0),
        links=links(config) if efficiency else NO_LINKS,
        activation_bytes=shape.hidden_size * DTYPE_BYTES[config.model.dtype],
        reduces=_reduces(shape, here) + (stage == 0),  # the embedding is shared out too
        exchanges=2 * experts if wide else 0,
        exchange_share=share,
        hops=int(stage < parallelism.pipeline - 1),
    )


def _reduces(shape: Shape, here: range) -> int:
    """All-reduces of a token: one after each mixer and one after each MLP."""
    mixers = sum(layer not in shape.mlp_only_layers for layer in here)
    return mixers + sum(layer not in shape.mixer_only_layers for layer in here)


def _products(config: Config, stage: int, efficiency: Efficiency | None) -> tuple[Products, ...]:
    shape, hardware = config.model.shape, config.hardware
    here = stage_layers(shape.layers, config.parallelism.pipeline)[stage]
    held = rank_weights(config, stage)
    kind = arithmetic(config)
    linears = plain(config) if config.quantization.scope == "experts" else kind
    found = [
        products_of(
            held.linear,
            linears,
            hardware,
            gemm_of(efficiency, linears),
            launches=_launches(shape, here),
        )
    ]
    if held.experts.bytes:
        layers = sum(layer in here for layer in shape.moe_layers)
        found.append(expert_products(config, held.experts, kind, efficiency, launches=2 * layers))
    if stage == config.parallelism.pipeline - 1:
        head = held.head if held.head.bytes else held.embedding
        found.append(
            products_of(
                head,
                plain(config),
                hardware,
                gemm_of(efficiency, plain(config)),
                launches=1,
                sampled=True,
            )
        )
    return tuple(found)


def products_of(
    share: Share,
    kind: Arithmetic,
    hardware: HardwareConfig,
    gemm: Gemm,
    *,
    launches: int,
    sampled: bool = False,
) -> Products:
    return Products(
        read_s=share.bytes / (hardware.bandwidth_gb_s * 1e9),
        token_s=2 * share.parameters / rate(hardware, kind),
        memory=gemm.memory,
        compute=gemm.compute,
        floor_s=launches * gemm.floor_s,
        sampled=sampled,
    )


def expert_products(
    config: Config,
    share: Share,
    kind: Arithmetic,
    efficiency: Efficiency | None,
    *,
    launches: int,
) -> Products:
    """Whole experts of all copies' tokens, or a part of every expert for this copy's tokens.

    At best the other copies are idle, and every rank of the group works for this one.
    """
    moe = config.model.shape.moe
    assert moe is not None, "only a model with experts has their products"
    gemm = experts_of(efficiency, kind)
    whole = products_of(share, kind, config.hardware, gemm, launches=launches)
    hit = moe.experts_per_token / moe.experts
    group = _expert_load(config) if efficiency else 1.0
    return replace(whole, token_s=whole.token_s * hit * group, hit=hit, group=group)


def _expert_load(config: Config) -> float:
    """Tokens that come to the fullest rank's experts for each token of this copy."""
    parallelism = config.parallelism
    uneven = IMBALANCE if parallelism.expert > 1 else 1.0
    return uneven * parallelism.expert_group / parallelism.tensor


def _launches(shape: Shape, here: range) -> int:
    """Matrix products of the layers, those of routed experts apart: queries, keys and values are
    one, gate and up are one.
    """
    mixer = 2 if shape.mla is None else 5
    states = shape.state.layers if shape.state else ()
    shared = bool(shape.moe and shape.moe.shared_intermediate_size)
    return (
        mixer * sum(layer in here for layer in shape.attention_layers)
        + 2 * sum(layer in here for layer in shape.indexed_layers)
        + 3 * sum(layer in here for layer in states)
        + 2 * sum(layer in here for layer in shape.dense_layers)
        + (1 + 2 * shared) * sum(layer in here for layer in shape.moe_layers)
    )


def attention(config: Config, stage: int, efficiency: Efficiency | None) -> tuple[Attention, ...]:
    """A row for each kind of attention layer of the stage; the last is of an indexer, if any."""
    shape, hardware = config.model.shape, config.hardware
    fp8 = efficiency is None and config.kv.dtype == "fp8" and hardware.fp8_tflops is not None
    peak = rate(hardware, "fp8" if fp8 else "16bit")
    best = math.exp(max(efficiency.prefill.log_y)) if efficiency else 1.0
    decode = decode_curve(config, efficiency)
    found = []
    for read in kv_reads(config, stage):
        decode_flops, prefill_flops = _pair_flops(shape, config.parallelism.tensor, read)
        window = math.inf if read.window is None else float(read.window)
        if shape.window_kind == "chunked":
            window /= 2  # a token is on average in the middle of its chunk
        found.append(
            Attention(
                layers=read.layers,
                window=window,
                layer_bytes=read.bytes_per_token / read.layers,
                byte_s=1 / (hardware.bandwidth_gb_s * 1e9),
                decode_pair_s=decode_flops / peak / best,
                prefill_pair_s=prefill_flops / peak,
                decode=decode,
                prefill=efficiency.prefill if efficiency else FULL,
                floor_s=efficiency.decode_floor_s if efficiency else 0.0,
            )
        )
    return tuple(found)


def decode_curve(config: Config, efficiency: Efficiency | None) -> Curve:
    if efficiency is None:
        return FULL
    return efficiency.decode if config.kv.dtype in DTYPE_BYTES else efficiency.decode_narrow


def _pair_flops(shape: Shape, tensor: int, read: KvRead) -> tuple[float, float]:
    """Operations of one query and one key, all heads of a rank, in decoding and in a prompt.

    Decoded queries of latent attention meet the latent vector itself, as key and as value; prompts
    are computed with heads in full, except of chosen tokens, which are others for each query. An
    indexer has all its heads on every rank.
    """
    heads = max(1.0, shape.heads / tensor)
    if shape.mla is None:
        sizes = shape.heads_of(full=read.window is None)
        both = 2 * heads * (sizes.head_dim + sizes.value_head_dim)
        return both, both
    chooser = shape.mla.indexer
    if chooser is not None and read.part == "index":
        scores = 2.0 * chooser.heads * chooser.head_dim
        return scores, scores
    latent, rope = shape.mla.kv_lora_rank, shape.mla.rope_head_dim
    absorbed = 2 * heads * (2 * latent + rope)
    if chooser is not None:
        return absorbed, absorbed
    full = shape.mla.nope_head_dim + rope + (shape.value_head_dim or shape.mla.nope_head_dim)
    return absorbed, 2 * heads * full
