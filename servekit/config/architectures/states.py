"""States of fixed size: Mamba, Mamba-2, gated delta rule."""

from typing import Any

from servekit.config.architectures.family import Draft
from servekit.config.architectures.values import Values
from servekit.config.base import DTYPE_BYTES
from servekit.errors import ConfigError


def read_state(draft: Draft) -> None:
    layers = [layer for layer, kind in enumerate(draft.kinds) if kind == "state"]
    draft.tree["state"] = None
    if not layers:
        return
    if draft.family.state is None:
        raise ConfigError(
            f"layer_types of model_type {draft.kind!r} name linear layers of a kind that is not "
            "known; write model.shape by hand"
        )
    reader = {
        "mamba1": _mamba1,
        "mamba2": _mamba2,
        "gated_delta": _delta,
        "kda": _kimi,
        "lightning": _lightning,
    }
    state = reader[draft.family.state](draft, len(layers))
    kind = "gated_delta" if draft.family.state == "lightning" else draft.family.state
    draft.tree["state"] = {"kind": kind, "layers": layers, **state}


def _dtype(values: Values, otherwise: str) -> str:
    name = values.word("mamba_ssm_dtype", "mamba_ssm_cache_dtype", "dtype", "torch_dtype")
    name = (name or otherwise).removeprefix("torch.")
    return name if name in DTYPE_BYTES else otherwise


def _mamba1(draft: Draft, layers: int) -> dict[str, Any]:
    values = draft.values
    expanded = values.count_or(2, "mamba_expand", "expand") * draft.hidden
    own = values.found("intermediate_size") and not values.found("mamba_expand")
    inner = values.count("intermediate_size") if own else expanded  # beside an MLP it is the MLP's
    rank = values.get("mamba_dt_rank", "time_step_rank")
    state_size = values.count("mamba_d_state", "state_size")
    dt_rank = -(-draft.hidden // 16)
    if rank not in (None, "auto"):
        dt_rank = values.count("mamba_dt_rank", "time_step_rank")
    if draft.family.state_norms:
        draft.other += layers * (dt_rank + 2 * state_size)
    _bias(draft, layers, 2 * inner + draft.hidden)
    return {
        "inner_size": inner,
        "state_size": state_size,
        "conv_kernel": values.count("mamba_d_conv", "conv_kernel"),
        "dt_rank": dt_rank,
        "dtype": _dtype(values, "bfloat16"),
    }


def _mamba2(draft: Draft, layers: int) -> dict[str, Any]:
    values = draft.values
    heads = values.count("mamba_n_heads", "mamba_num_heads", "num_heads")
    names = ("mamba_d_head", "mamba_head_dim", "state_head_dim")
    head_dim = values.count_or(2, "mamba_expand", "expand") * draft.hidden // heads
    if values.get(*names) not in (None, "auto"):
        head_dim = values.count(*names)
    groups = values.count_or(1, "mamba_n_groups", "n_groups")
    state_size = values.count("mamba_d_state", "ssm_state_size", "state_size")
    inner = heads * head_dim
    _bias(draft, layers, 2 * inner + 2 * groups * state_size + heads + draft.hidden)
    return {
        "heads": heads,
        "head_dim": head_dim,
        "groups": groups,
        "state_size": state_size,
        "conv_kernel": values.count("mamba_d_conv", "conv_kernel"),
        "dtype": _dtype(values, "bfloat16"),
    }


def _bias(draft: Draft, layers: int, outputs: int) -> None:
    if draft.values.flag("mamba_proj_bias") or draft.values.flag("use_bias"):
        draft.other += layers * outputs
        draft.note("projections of the state with biases")


def _delta(draft: Draft, layers: int) -> dict[str, Any]:
    values = draft.values
    return {
        "key_heads": values.count("linear_num_key_heads"),
        "key_head_dim": values.count("linear_key_head_dim"),
        "value_heads": values.count("linear_num_value_heads"),
        "value_head_dim": values.count("linear_value_head_dim"),
        "conv_kernel": values.count("linear_conv_kernel_dim"),
        "dtype": _dtype(values, "bfloat16"),
    }


def _kimi(draft: Draft, layers: int) -> dict[str, Any]:
    nested = draft.values.inner("linear_attn_config").tree
    merged = Values({**draft.values.tree, **{f"linear_{k}": v for k, v in nested.items()}})
    heads, width = merged.count("linear_num_heads"), merged.count("linear_head_dim")
    if merged.flag("linear_use_full_rank_gate"):
        narrow, wide = width * (draft.hidden + heads * width), draft.hidden * heads * width
        draft.other += layers * (wide - narrow)
        draft.note("an output gate of full rank")
    return {
        "key_heads": heads,
        "key_head_dim": width,
        "value_heads": heads,
        "value_head_dim": width,
        "conv_kernel": merged.count("linear_short_conv_kernel_size", "linear_conv_kernel_dim"),
        "dtype": "float32",
    }


def _lightning(draft: Draft, layers: int) -> dict[str, Any]:
    """Linear attention of MiniMax-Text: the projections of a gated delta rule, without its decays
    and its convolution, and with a norm as wide as the values.
    """
    heads, width = int(draft.tree["heads"]), int(draft.tree["head_dim"])
    beside = 2 * heads * draft.hidden + 3 * heads * width + 2 * heads + width
    draft.other += layers * (heads * width - beside)
    return {
        "key_heads": heads,
        "key_head_dim": width,
        "value_heads": heads,
        "value_head_dim": width,
        "conv_kernel": 1,
        "dtype": "float32",
    }
