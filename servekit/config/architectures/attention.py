"""Heads, their projections and norms; latent attention."""

from typing import Any

from servekit.config.architectures.family import Draft
from servekit.errors import ConfigError


def read_attention(draft: Draft) -> None:
    values, family = draft.values, draft.family
    if not draft.attention_layers and not values.found("num_attention_heads"):
        draft.tree |= WITHOUT
        return
    heads = values.count("num_attention_heads")
    kv_heads = values.count_or(heads, "num_key_value_heads")
    draft.tree |= {
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": _head_dim(draft, heads),
        "value_head_dim": None,
        **ALIKE,
        "qkv_bias": draft.is_set(family.qkv_bias),
        "output_bias": draft.is_set(family.output_bias),
        "qk_norm": draft.is_set(family.qk_norm),
        "attention_scale": _scale(draft),
        "attention_logit_softcap": _cap(draft, "attn_logit_softcapping"),
        "final_logit_softcap": _cap(draft, "final_logit_softcapping"),
        "mla": None,
    }
    if values.found("kv_lora_rank") and draft.attention_layers:
        _read_latent(draft)
    elif (width := values.optional("v_head_dim")) and width != draft.tree["head_dim"]:
        draft.tree["value_head_dim"] = width


ALIKE: dict[str, Any] = {
    "full_kv_heads": None,
    "full_head_dim": None,
    "full_keys_are_values": False,
}
"""Keys and values are the same in all layers."""

WITHOUT: dict[str, Any] = {
    "heads": 1,
    "kv_heads": 1,
    "head_dim": 2,
    "value_head_dim": None,
    **ALIKE,
    "qkv_bias": False,
    "output_bias": False,
    "qk_norm": False,
    "attention_scale": None,
    "attention_logit_softcap": None,
    "final_logit_softcap": None,
    "mla": None,
}
"""Of a model without attention; its numbers are those of no layer."""


def _head_dim(draft: Draft, heads: int) -> int:
    given = draft.values.optional("head_dim")
    if given is None and draft.hidden < heads:
        raise ConfigError(
            f"num_attention_heads ({heads}) must be at most hidden_size ({draft.hidden})"
        )
    return given or draft.hidden // heads


def _read_latent(draft: Draft) -> None:
    """Queries and keys are nope + rope wide; keys and values come out of one latent vector."""
    values, tree = draft.values, draft.tree
    rope, nope = values.count("qk_rope_head_dim"), values.count("qk_nope_head_dim")
    tree["mla"] = {
        "kv_lora_rank": values.count("kv_lora_rank"),
        "q_lora_rank": values.optional("q_lora_rank"),
        "rope_head_dim": rope,
        "nope_head_dim": nope,
        "indexer": None,
    }
    tree["kv_heads"] = tree["heads"]
    tree["head_dim"] = nope + rope
    tree["value_head_dim"] = values.count_or(draft.hidden // tree["heads"], "v_head_dim")


def _scale(draft: Draft) -> float | None:
    key = draft.family.attention_scale
    if key is None or draft.values.found(key) is None:
        return None
    number = draft.values.number(1.0, key)
    return float(number**-0.5) if key == "query_pre_attn_scalar" else number


def _cap(draft: Draft, key: str) -> float | None:
    return draft.values.number(0.0, key) or None


def read_mlp(draft: Draft) -> None:
    values, family = draft.values, draft.family
    given = values.get("intermediate_size")
    several = isinstance(given, list | tuple)
    draft.tree |= {
        "intermediate_size": _one_width(draft, list(given)) if several else _width(draft),
        "gated_mlp": family.gated,
        "mlp_bias": draft.is_set(family.mlp_bias),
        "activation": _activation(draft),
    }


def _width(draft: Draft) -> int:
    if draft.family.four_times and not draft.values.found("intermediate_size"):
        return 4 * draft.hidden
    if draft.values.found("intermediate_size"):
        return draft.values.count("intermediate_size")
    if draft.values.found("moe_intermediate_size"):
        return draft.values.count("moe_intermediate_size")
    if draft.family.state and "state" in draft.kinds:
        return draft.hidden  # of no layer: there is no MLP
    return draft.values.count("intermediate_size")


def _one_width(draft: Draft, widths: list[Any]) -> int:
    """The same in every layer; what differs is not computed, and counted apart."""
    if len(widths) != draft.layers or not all(isinstance(w, int) and w > 0 for w in widths):
        raise ConfigError(
            f"intermediate_size must be a number, or one for each of {draft.layers} layers"
        )
    least = min(widths)
    if max(widths) != least:
        matrices = 3 if draft.family.gated else 2
        draft.other += sum(matrices * draft.hidden * (width - least) for width in widths)
        draft.note("MLPs of different widths")
    return int(least)


ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "swiglu": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
}


def _activation(draft: Draft) -> str:
    name = draft.values.word("hidden_act") or "silu"
    if name not in ACTIVATIONS:
        draft.note(f"activation {name}")
    return ACTIVATIONS.get(name, "other")
