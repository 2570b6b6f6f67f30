"""How the weights of a checkpoint are quantized: `quantization_config` of its config.json."""

from collections.abc import Mapping
from typing import Any

from servekit.config.architectures.reader import text_of
from servekit.config.architectures.values import Values
from servekit.errors import ConfigError

ALGORITHMS = {
    "FP8": "fp8",
    "FP8_PER_CHANNEL_PER_TOKEN": "fp8",
    "FP8_PB_WO": "fp8_block",
    "NVFP4": "nvfp4",
    "NVFP4_AWQ": "nvfp4",
    "W4A8_NVFP4_FP8": "nvfp4",
    "W4A16_NVFP4": "nvfp4",
    "MXFP4": "mxfp4",
    "W4A8_MXFP4_FP8": "mxfp4",
    "W4A16_AWQ": "int4_g128",
    "INT8_SQ": "int8",
    "W8A8_SQ_PER_CHANNEL": "int8",
}
"""Of NVIDIA ModelOpt."""

BY_HAND = "give model.quantized=null and quantization.weights, or model.quantized.weights by hand"


def read(config: Mapping[str, Any]) -> dict[str, str] | None:
    """A tree for `schema.Quantized`; None for weights in a plain dtype. Raises ConfigError for a
    method, a width or a group that is not among the formats that can be planned.
    """
    whole = Values(config)
    found = whole.inner("quantization_config")
    if not found.tree:
        found = Values(text_of(config)).inner("quantization_config")
    if not found.tree:
        return None
    method = (found.word("quant_method", "quant_type") or _guessed(found)).replace("_", "-")
    reader = METHODS.get(method)
    if reader is None:
        raise ConfigError(
            f"its quantization_config is of quant_method {method!r}; known are "
            f"{', '.join(METHODS)}: {BY_HAND}"
        )
    return {"weights": reader(found), "scope": _scope(found, config)}


def _guessed(found: Values) -> str:
    if found.found("quant_algo"):
        return "modelopt"
    return "compressed-tensors" if found.found("config_groups") else "unknown"


def _fp8(found: Values) -> str:
    if found.found("moe_quant_algo"):
        return _modelopt(found)
    return "fp8_block" if found.get("weight_block_size") else "fp8"


def _integer(bits: int, group: int) -> str:
    """Of groups along the inputs: 128, or 32; -1 is a scale for each output."""
    if bits == 8:
        return "int8"
    if bits == 4 and group in (32, 128):
        return f"int4_g{group}"
    if bits == 4 and (group > 128 or group == -1):
        return "int4_g128"
    raise ConfigError(
        f"its weights are of {bits} bits in groups of {group}; known are 8 bits, and 4 in groups "
        f"of 32 or 128: {BY_HAND}"
    )


def _awq(found: Values) -> str:
    return _integer(found.count_or(4, "bits", "w_bit"), _group(found, "group_size"))


def _gptq(found: Values) -> str:
    bits, group = found.count_or(4, "bits"), _group(found, "group_size")
    return "gptq_g128" if bits == 4 and group == 128 else _integer(bits, group)


def _group(found: Values, key: str) -> int:
    if found.tree.get(key) == -1:
        return -1
    return found.count_or(128, key, "q_group_size")


def _compressed(found: Values) -> str:
    groups = [_group_format(found, name) for name in found.inner("config_groups").tree]
    if not groups:
        raise ConfigError(f"its quantization_config has no config_groups: {BY_HAND}")
    return _narrowest(groups)


NARROW_FIRST = ("mxfp4", "nvfp4", "gptq_g128", "int4_g128", "int4_g32", "int8", "fp8_block", "fp8")


def _narrowest(formats: list[str]) -> str:
    """Of a mixture the narrowest: it is where most weights are."""
    return min(formats, key=NARROW_FIRST.index)


def _group_format(found: Values, name: str) -> str:
    group = found.inner("config_groups").inner(name)
    weights = group.inner("weights")
    bits, kind = weights.count("num_bits"), weights.word("type") or "int"
    if kind == "float" and bits == 8:
        blocks = weights.get("strategy") == "block" or weights.get("block_structure")
        return "fp8_block" if blocks else "fp8"
    if kind == "float" and bits == 4:
        return "nvfp4" if weights.count_or(16, "group_size") == 16 else "mxfp4"
    if weights.get("strategy") in ("channel", "tensor") and bits == 4:
        return "int4_g128"
    return _integer(bits, _group(weights, "group_size"))


def _modelopt(found: Values) -> str:
    name = (found.word("moe_quant_algo", "quant_algo") or "").upper()
    if name == "MIXED_PRECISION":
        layers = found.inner("quantized_layers")
        names = {(layers.inner(layer).word("quant_algo") or "").upper() for layer in layers.tree}
        known = [ALGORITHMS[algorithm] for algorithm in names if algorithm in ALGORITHMS]
        if known:
            return _narrowest(known)
    if name not in ALGORITHMS:
        if found.found("config_groups"):
            return _compressed(found)
        raise ConfigError(
            f"its quant_algo is {name or 'not named'}; known are {', '.join(ALGORITHMS)}: {BY_HAND}"
        )
    return ALGORITHMS[name]


def _mxfp4(found: Values) -> str:
    return "mxfp4"


METHODS = {
    "fp8": _fp8,
    "fbgemm-fp8": _fp8,
    "compressed-tensors": _compressed,
    "awq": _awq,
    "gptq": _gptq,
    "auto-round": _gptq,
    "mxfp4": _mxfp4,
    "modelopt": _modelopt,
    "modelopt-fp4": _modelopt,
}

KEPT = (
    "ignore",
    "exclude_modules",
    "modules_to_not_convert",
    "ignored_layers",
)
NOT_ATTENTION = ("norm", "indexer", "visual", "vision", "audio", "mtp.")
"""What else has it in its name: parts of it, and attention outside the decoder's layers."""


def _scope(found: Values, config: Mapping[str, Any]) -> str:
    """Experts or MLPs only, where attention of all layers is among what is left in a plain dtype:
    Llama 3.1 405B in fp8 is as large as 8 bits for its MLPs and 16 for its attention.
    """
    if found.get("moe_quant_algo") or found.get("quant_method") == "mxfp4":
        return "experts"
    narrow = "experts" if _has_experts(config) else "mlps"
    for key in KEPT:
        kept = found.get(key)
        if isinstance(kept, list) and _keeps_attention(kept):
            return narrow
    layers = found.inner("quantized_layers").tree
    if layers and all("expert" in name for name in layers):
        return "experts"
    return "linears"


def _has_experts(config: Mapping[str, Any]) -> bool:
    text = Values(text_of(config))
    names = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
    return bool(text.get(*names))


def _keeps_attention(kept: list[Any]) -> bool:
    """By a pattern for all layers, or by the name of nearly every layer's attention."""
    names = [str(name) for name in kept if "attn" in str(name) or "attention." in str(name)]
    names = [name for name in names if not any(other in name for other in NOT_ATTENTION)]
    patterns = [name for name in names if "*" in name and not any(c.isdigit() for c in name)]
    patterns += [name for name in names if name.startswith("re:")]
    layers = {part for name in names for part in name.split(".") if part.isdigit()}
    return bool(patterns) or len(layers) > 8
