"""Keys that change what is computed, in any file: named, so that nothing runs wrong."""

from typing import Any

from servekit.config.architectures.family import Draft

NEUTRAL: dict[str, tuple[tuple[Any, ...], str]] = {
    "embedding_multiplier": ((1,), "embeddings that are multiplied"),
    "scale_emb": ((1,), "embeddings that are multiplied"),
    "residual_multiplier": ((1,), "residuals that are multiplied"),
    "scale_depth": ((), "residuals that are multiplied"),
    "logits_scaling": ((1,), "logits that are divided"),
    "logit_scale": ((1,), "logits that are multiplied"),
    "lm_head_multiplier": ((1,), "logits that are multiplied"),
    "dim_model_base": ((), "logits that are divided"),
    "mup_enabled": ((False,), "embeddings that are multiplied"),
    "clip_qkv": ((), "queries, keys and values that are clipped"),
    "alibi": ((False,), "ALiBi"),
    "use_bidirectional_attention": ((False, "vision"), "attention in both directions"),
    "attention_value_scale": ((1,), "values that are scaled"),
    "use_gemma_norm": ((False,), "norms that multiply by 1 + weight"),
    "attn_logit_cap": ((), "attention scores that are capped"),
}
"""Values of a key that change nothing, and what any other means."""


def read_oddities(draft: Draft) -> None:
    for key, (neutral, phrase) in NEUTRAL.items():
        value = draft.values.get(key)
        if value is not None and not any(value == same for same in neutral):
            draft.note(phrase)
    if draft.values.get("position_embedding_type") in ("nope", "none", "alibi", "learned_absolute"):
        draft.note("attention without rotary embeddings")
        draft.tree["rope"] = {"kind": "other"}
