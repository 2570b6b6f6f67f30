"""A Hugging Face `config.json`, read into the numbers of `schema.Shape`.

Both spellings of rotary embeddings are read: `rope_parameters` (transformers 5, one for all layers
or one per layer type) and `rope_theta` with `rope_scaling` (before). A key that a file leaves out
has the default of its family in transformers.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from servekit.errors import ConfigError

ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
DTYPES = ("bfloat16", "float16", "float32")


@dataclass(frozen=True, slots=True)
class Family:
    """What a model type means beyond the numbers in its file.

    `defaults` are of keys that its files leave out. `windows`: no layer slides, all do, all but
    every nth, or the upper ones, from `max_window_layers` on where `use_sliding_window` is set.
    `bias_keys`: attention_bias and mlp_bias are looked at.
    """

    windows: str
    defaults: Mapping[str, Any] = field(default_factory=dict)
    qkv_bias: bool = False
    bias_keys: bool = False
    qk_norm: bool = False
    gemma: bool = False


FAMILIES: dict[str, Family] = {
    "llama": Family(windows="none", bias_keys=True),
    "mistral": Family(windows="all", defaults={"sliding_window": 4096}),
    "qwen2": Family(windows="upper", qkv_bias=True),
    "qwen3": Family(windows="upper", defaults={"head_dim": 128}, bias_keys=True, qk_norm=True),
    "gemma3_text": Family(
        windows="pattern",
        bias_keys=True,
        qk_norm=True,
        gemma=True,
        defaults={
            "vocab_size": 262208,
            "hidden_size": 2304,
            "intermediate_size": 9216,
            "num_hidden_layers": 26,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-6,
            "hidden_activation": "gelu_pytorch_tanh",
            "query_pre_attn_scalar": 256,
            "sliding_window": 4096,
            "sliding_window_pattern": 6,
            "tie_word_embeddings": True,
            "rope_theta": 1_000_000.0,
            "rope_local_base_freq": 10_000.0,
        },
    ),
}
NESTED = {"gemma3": "gemma3_text"}
"""Model types whose language model is under `text_config`, and what it is."""


def read_config(path: str) -> dict[str, Any]:
    """The `config.json` at `path`, a file or the folder that holds it.

    Raises ConfigError if it is not there or not JSON.
    """
    file = Path(path).expanduser()
    if file.is_dir():
        file = file / "config.json"
    try:
        loaded = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"{str(file)!r} cannot be read ({error.strerror}); model.config is a Hugging Face "
            "config.json or the folder that holds it"
        ) from error
    except ValueError as error:
        raise ConfigError(f"{str(file)!r} is not JSON: {error}") from error
    if not isinstance(loaded, dict):
        raise ConfigError(f"{str(file)!r} holds no JSON object")
    return loaded


def read_dtype(config: Mapping[str, Any]) -> str:
    """The dtype the weights were saved in."""
    text = config.get("text_config") or {}
    for source in (config, text):
        found = source.get("dtype") or source.get("torch_dtype")
        if found:
            name = str(found).removeprefix("torch.")
            if name in DTYPES:
                return name
            raise ConfigError(f"its dtype is {name}; say model.dtype, one of {', '.join(DTYPES)}")
    raise ConfigError(f"it names no dtype; say model.dtype, one of {', '.join(DTYPES)}")


def read_quantized(config: Mapping[str, Any]) -> dict[str, str] | None:
    """A tree for `schema.Quantized`; None for weights in a plain dtype."""
    return None


def read_shape(config: Mapping[str, Any]) -> dict[str, Any]:
    """A tree for `schema.Shape`; raises ConfigError for what this decoder does not do."""
    try:
        return _read_shape(config)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise ConfigError(f"a value has the wrong type: {error}") from error


def _read_shape(config: Mapping[str, Any]) -> dict[str, Any]:
    family, text = _family(config)
    values = {**family.defaults, **{k: v for k, v in text.items() if v is not None}}
    if "sliding_window" in text and text["sliding_window"] is None:
        values.pop("sliding_window", None)
    _refuse_unsupported(values)
    heads = _needed(values, "num_attention_heads")
    head_dim = values.get("head_dim") or _needed(values, "hidden_size") // heads
    bias = family.bias_keys and bool(values.get("attention_bias", False))
    sliding_window, full_layers = _windows(family, values)
    rope, local_rope = _ropes(family, values)
    scalar = values.get("query_pre_attn_scalar") if family.gemma else None
    return {
        "layers": _needed(values, "num_hidden_layers"),
        "hidden_size": _needed(values, "hidden_size"),
        "heads": heads,
        "kv_heads": values.get("num_key_value_heads") or heads,
        "head_dim": head_dim,
        "value_head_dim": None,
        "intermediate_size": _needed(values, "intermediate_size"),
        "gated_mlp": True,
        "vocab_size": _needed(values, "vocab_size"),
        "max_position_embeddings": _needed(values, "max_position_embeddings"),
        "rms_norm_eps": values.get("rms_norm_eps", 1e-6),
        "activation": _activation(values),
        "tie_word_embeddings": bool(values.get("tie_word_embeddings", False)),
        "qkv_bias": family.qkv_bias or bias,
        "output_bias": bias,
        "mlp_bias": family.bias_keys and bool(values.get("mlp_bias", False)),
        "qk_norm": family.qk_norm,
        "norm_unit_offset": family.gemma,
        "post_norms": family.gemma,
        "scale_embeddings": family.gemma,
        "attention_scale": scalar**-0.5 if scalar else None,
        "attention_logit_softcap": values.get("attn_logit_softcapping"),
        "final_logit_softcap": values.get("final_logit_softcapping"),
        "sliding_window": sliding_window,
        "window_kind": "sliding",
        "full_attention_layers": full_layers,
        "shared_kv_layers": [],
        "mlp_only_layers": [],
        "mixer_only_layers": [],
        "mla": None,
        "moe": None,
        "state": None,
        "mtp_layers": 0,
        "other_parameters": 0,
        "planned_only": [],
        "rope": rope,
        "local_rope": local_rope,
    }


def _family(config: Mapping[str, Any]) -> tuple[Family, Mapping[str, Any]]:
    kind = config.get("model_type")
    text: Mapping[str, Any] = config
    if kind in NESTED:
        text = {**config.get("text_config", {})}
        text.setdefault("tie_word_embeddings", config.get("tie_word_embeddings"))
        kind = NESTED[kind]
    if kind not in FAMILIES:
        known = ", ".join(sorted({*FAMILIES, *NESTED}))
        architecture = ", ".join(config.get("architectures") or []) or "no architecture named"
        raise ConfigError(
            f"model_type {kind!r} ({architecture}) is not supported; supported are {known}"
        )
    return FAMILIES[kind], text


def _refuse_unsupported(values: Mapping[str, Any]) -> None:
    """What would load, but compute something else."""
    if values.get("partial_rotary_factor", 1.0) != 1.0:
        raise ConfigError("partial_rotary_factor is not supported; all of a head must be rotated")
    if values.get("use_bidirectional_attention"):
        raise ConfigError("use_bidirectional_attention is not supported; attention is causal")
    if values.get("quantization_config"):
        method = values["quantization_config"].get("quant_method", "unknown")
        raise ConfigError(
            f"the checkpoint is quantized ({method}); this release loads safetensors in "
            f"{', '.join(DTYPES)}, or a .gguf file"
        )


def _needed(values: Mapping[str, Any], key: str) -> int:
    value = values.get(key)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{key} must be a whole number; it is {value!r}")
    return value


def _activation(values: Mapping[str, Any]) -> str:
    name = values.get("hidden_activation") or values.get("hidden_act", "silu")
    if name not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise ConfigError(f"the activation {name!r} is not supported; supported are {known}")
    return ACTIVATIONS[name]


def _windows(family: Family, values: Mapping[str, Any]) -> tuple[int | None, list[int]]:
    """The window and the layers that see past it; (None, []) if no layer slides."""
    layers = _needed(values, "num_hidden_layers")
    window = values.get("sliding_window")
    if family.windows == "none" or not window:
        return None, []
    if family.windows == "upper" and not values.get("use_sliding_window", False):
        return None, []
    if types := values.get("layer_types"):
        unknown = {*types} - {"full_attention", "sliding_attention"}
        if unknown or len(types) != layers:
            raise ConfigError(
                f"layer_types must name full_attention or sliding_attention for each of {layers} "
                f"layers; it has {len(types)} entries of {', '.join(sorted({*types}))}"
            )
        full = [layer for layer, kind in enumerate(types) if kind == "full_attention"]
    elif family.windows == "pattern":
        full = [i for i in range(layers) if (i + 1) % values["sliding_window_pattern"] == 0]
    elif family.windows == "upper":
        full = list(range(min(layers, values.get("max_window_layers", 28))))
    else:
        full = []
    return (None, []) if len(full) == layers else (window, full)


def _ropes(family: Family, values: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    """Rotary embeddings of full-attention and, where they differ, of sliding-window layers."""
    parameters = values.get("rope_parameters") or {}
    by_layer = "full_attention" in parameters or "sliding_attention" in parameters
    theta = values.get("rope_theta", 10_000.0)
    shared = parameters if not by_layer else parameters.get("full_attention") or {}
    rope = _rope({"rope_theta": theta, **(values.get("rope_scaling") or {}), **shared}, values)
    if not family.gemma:
        return rope, None
    local = parameters.get("sliding_attention") or {}
    local_theta = values["rope_local_base_freq"]
    return rope, _rope({"rope_theta": local_theta, **local}, values)


def _rope(parameters: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if kind not in ROPES:
        raise ConfigError(
            f"rotary embeddings of type {kind!r} are not supported; supported are "
            f"{', '.join(ROPES)}"
        )
    _refuse_unsupported(parameters)
    filled = {
        "original_max_position_embeddings": _needed(values, "max_position_embeddings"),
        **YARN_DEFAULTS,
        **{key: value for key, value in parameters.items() if value is not None},
    }
    if kind == "yarn" and (filled.get("mscale") or not filled.get("truncate", True)):
        raise ConfigError("yarn with mscale or without truncation is not supported")
    missing = [key for key in ROPES[kind] if key not in filled]
    if missing:
        raise ConfigError(f"{kind} rotary embeddings need {', '.join(missing)}")
    return {"kind": kind, "theta": filled["rope_theta"]} | {key: filled[key] for key in ROPES[kind]}


ROPES: dict[str, tuple[str, ...]] = {
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
"""Keys of each kind, named as in transformers and as in `schema`."""

YARN_DEFAULTS: dict[str, Any] = {"beta_fast": 32.0, "beta_slow": 1.0, "attention_factor": None}
