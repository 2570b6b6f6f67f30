"""What guessing tokens ahead costs and brings."""

from dataclasses import replace

from servekit.config.schema import Config
from servekit.config.targets import SpeculativeConfig
from servekit.spec.arithmetic import arithmetic, plain
from servekit.spec.collectives import NO_LINKS
from servekit.spec.efficiency import FULL, Efficiency, gemm_of
from servekit.spec.layer_blocks import drafted_bytes_per_token
from servekit.spec.model import RankWeights, Share, rank_weights
from servekit.spec.stages import (
    Attention,
    Products,
    Stage,
    attention,
    expert_products,
    products_of,
)

MTP_LAUNCHES = 5
"""Matrix products of one extra layer: what joins it to the embedding, two of attention, two of
MLP or experts."""


def tokens_per_step(speculative: SpeculativeConfig) -> float:
    """With k guesses that each hold with chance a, given those before: the sum of a^0 to a^k."""
    return float(sum(speculative.acceptance**held for held in range(speculative.tokens + 1)))


def draft_stage(config: Config, efficiency: Efficiency | None) -> Stage | None:
    """One pass of what guesses; None where earlier text does, or nobody. Prompts that a small model
    takes in are not counted.
    """
    method = config.speculative.method
    if method not in ("draft", "mtp"):
        return None
    held = rank_weights(config, config.parallelism.pipeline - 1)
    found: tuple[Products, ...]
    rows: tuple[Attention, ...]
    if method == "draft":
        gemm = gemm_of(efficiency, "16bit")
        found = (products_of(held.draft, "16bit", config.hardware, gemm, launches=1),)
        rows = (_draft_attention(config, efficiency),)
    else:
        found = _mtp_products(config, held, efficiency)
        last = attention(config, config.parallelism.pipeline - 1, efficiency)
        last = last if config.model.shape.indexer else last[-1:]
        rows = tuple(replace(row, layers=1) for row in last)
    return Stage(products=found, attention=rows, state_s=0.0, links=NO_LINKS, activation_bytes=0)


def _draft_attention(config: Config, efficiency: Efficiency | None) -> Attention:
    """All layers of the small model as one, shared out; scores cost nothing beside reading."""
    return Attention(
        layers=1,
        window=float("inf"),
        layer_bytes=float(drafted_bytes_per_token(config)),
        byte_s=1 / (config.hardware.bandwidth_gb_s * 1e9),
        decode_pair_s=0.0,
        prefill_pair_s=0.0,
        decode=efficiency.decode if efficiency else FULL,
        prefill=FULL,
        floor_s=efficiency.decode_floor_s if efficiency else 0.0,
    )


def _mtp_products(
    config: Config, held: RankWeights, efficiency: Efficiency | None
) -> tuple[Products, ...]:
    """One of the model's extra layers, and its head again. Of experts, which are nearly all of such
    a layer, those are read that a token is sent to.
    """
    shape, hardware = config.model.shape, config.hardware
    layers = max(1, shape.mtp_layers)
    weights = held.mtp
    if config.parallelism.pipeline > 1 and not shape.tie_word_embeddings:
        # its own embedding is looked up, not read; as large as the head
        weights = Share(weights.parameters - held.head.parameters, weights.bytes - held.head.bytes)
    one = Share(weights.parameters // layers, weights.bytes // layers)
    kind = arithmetic(config)
    if shape.moe is not None:
        layer = expert_products(config, one, kind, efficiency, launches=MTP_LAUNCHES)
    else:
        gemm = gemm_of(efficiency, kind)
        layer = products_of(one, kind, hardware, gemm, launches=MTP_LAUNCHES)
    table = held.head if held.head.bytes else held.embedding
    gemm = gemm_of(efficiency, plain(config))
    return layer, products_of(table, plain(config), hardware, gemm, launches=1)
