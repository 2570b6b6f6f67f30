"""Families with layers that carry a state, or neither a state nor keys and values."""

from servekit.config.architectures import extras
from servekit.config.architectures.common import (
    AFTER,
    FUSED,
    PARTIAL,
    QWEN_NORM,
    deepseek_like,
    first_dense,
    plain,
)
from servekit.config.architectures.family import Family

QWEN_HYBRID = plain(
    state="gated_delta",
    qk_norm=True,
    shared_gate=True,
    router="softmax",
    renormalise=True,
    fixed={PARTIAL: 0.25, "full_attention_interval": 4},
    notes=(QWEN_NORM,),
    extras=(extras.attention_gate,),
)

STATEFUL: dict[str, Family] = {
    "mamba": Family(state="mamba1", tied=True, extras=(extras.only_mixers,)),
    "falcon_mamba": Family(state="mamba1", tied=True, extras=(extras.only_mixers,)),
    "mamba2": Family(state="mamba2", extras=(extras.only_mixers,)),
    "jamba": Family(state="mamba1", state_norms=True, notes=("attention without positions",)),
    "bamba": plain(state="mamba2", mlp_bias="mlp_bias", fixed={PARTIAL: 0.5}),
    "granitemoehybrid": plain(
        state="mamba2",
        shared_is_mlp=True,
        attention_scale="attention_multiplier",
        notes=(FUSED,),
    ),
    "nemotron_h": plain(
        state="mamba2",
        gated=False,
        mlp_bias="mlp_bias",
        router_bias=True,
        notes=("attention without positions",),
        extras=(extras.one_part_a_layer,),
    ),
    "qwen3_next": QWEN_HYBRID,
    "qwen3_5_text": QWEN_HYBRID,
    "olmo_hybrid": plain(
        state="gated_delta",
        qk_norm=True,
        fixed={"full_attention_interval": 4},
        notes=(AFTER,),
        extras=(extras.wide_qk_norm,),
    ),
    "kimi_linear": deepseek_like(
        state="kda",
        router_bias=True,
        fixed=first_dense(1),
        extras=(extras.latent_positions_and_gate,),
    ),
    "minimax": Family(
        state="lightning", notes=("lightning attention, read as a gated delta rule",)
    ),
    "lfm2": Family(
        qk_norm=True,
        tied=True,
        theta=1e6,
        extras=(extras.lfm2_width, extras.short_convolutions),
    ),
    "lfm2_moe": Family(
        qk_norm=True,
        tied=True,
        theta=1e6,
        router_bias="use_expert_bias",
        extras=(extras.short_convolutions,),
    ),
}
