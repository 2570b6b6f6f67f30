"""Rotary embeddings, in both spellings.

`rope_parameters` (transformers 5, one for all layers or one per layer type), and `rope_theta` with
`rope_scaling` (before).
"""

from typing import Any

from servekit.config.architectures.family import Draft
from servekit.config.architectures.values import Values

KEYS: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": (
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
    ),
    "yarn": (
        "factor",
        "original_max_position_embeddings",
        "beta_fast",
        "beta_slow",
        "attention_factor",
    ),
}
"""Numbers of each kind, named as in transformers and as in `shape`."""

SAME_FOR_TEXT = {"mrope": "default"}
"""Positions in three directions are one for text."""

DEFAULTS: dict[str, Any] = {"beta_fast": 32.0, "beta_slow": 1.0, "attention_factor": None}
PER_LAYER = ("full_attention", "sliding_attention")


def read_ropes(draft: Draft) -> None:
    """Rotary embeddings of full-attention and, where they differ, of sliding-window layers."""
    values = draft.values
    parameters = values.inner("rope_parameters")
    scaling = values.inner("rope_scaling")
    nested = any(parameters.found(key) for key in PER_LAYER)
    shared = parameters.inner("full_attention") if nested else parameters
    theta = {"rope_theta": values.number(draft.family.theta, "rope_theta")}
    whole = Values({**theta, **scaling.tree, **_given(shared)})
    draft.tree["rope"] = _rope(draft, whole)
    draft.tree["local_rope"] = None
    local = parameters.inner("sliding_attention") if nested else Values({})
    local_theta = values.get("rope_local_base_freq")
    if local.tree or local_theta is not None:
        number = values.number(1.0, "rope_local_base_freq")
        other = _rope(draft, Values({"rope_theta": number, **_given(local)}))
        draft.tree["local_rope"] = other if other != draft.tree["rope"] or nested else None


def stretched(values: Values, positions: int) -> int:
    """Positions with yarn's factor, which files often do not count in max_position_embeddings."""
    parameters = Values(
        {**values.inner("rope_scaling").tree, **values.inner("rope_parameters").tree}
    )
    if parameters.get("rope_type", "type") != "yarn":
        return positions
    before = parameters.count_or(positions, "original_max_position_embeddings")
    return max(positions, int(before * parameters.number(1.0, "factor")))


def _given(values: Values) -> dict[str, Any]:
    return {key: value for key, value in values.tree.items() if value is not None}


def _rope(draft: Draft, parameters: Values) -> dict[str, Any]:
    kind = parameters.word("rope_type", "type") or "default"
    if parameters.found("llama_4_scaling_beta"):
        draft.note("attention that grows with the position")
    kind = SAME_FOR_TEXT.get(kind, kind)
    share = rotated_share(draft, parameters)
    if kind not in KEYS:
        draft.note(f"rotary embeddings of type {kind}")
        return {"kind": "other"}
    if share != 1.0:
        draft.note(f"rotary embeddings of {share:.4g} of a head")
        return {"kind": "other"}
    if kind == "yarn" and (parameters.get("mscale") or parameters.tree.get("truncate") is False):
        draft.note("yarn with mscale or without truncation")
        return {"kind": "other"}
    return _scaled(draft, kind, parameters)


def _scaled(draft: Draft, kind: str, parameters: Values) -> dict[str, Any]:
    filled = Values(
        {
            "original_max_position_embeddings": draft.values.get(
                "original_max_position_embeddings", "max_position_embeddings"
            ),
            **DEFAULTS,
            **_given(parameters),
        }
    )
    rope: dict[str, Any] = {"kind": kind, "theta": filled.number(0.0, "rope_theta")}
    for key in KEYS[kind]:
        if key == "original_max_position_embeddings":
            rope[key] = filled.count(key)
        elif key == "attention_factor":
            rope[key] = filled.number(0.0, key) or None
        else:
            filled.needed(f"{kind} rotary embeddings", key)
            rope[key] = filled.number(0.0, key)
    return rope


def rotated_share(draft: Draft, parameters: Values) -> float:
    """Part of a head that is rotated; of latent attention it is the rotated part itself."""
    if draft.tree.get("mla"):
        return 1.0
    key = "partial_rotary_factor"
    share = parameters if parameters.found(key) else draft.values
    dimensions = draft.values.optional("rotary_dim")
    if dimensions and not share.found(key):
        return float(dimensions / draft.tree["head_dim"])
    return share.number(1.0, key)
