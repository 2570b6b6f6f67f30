"""Writes a transformers model as a GGUF file, the way converters do."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "mistral": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "mixtral": gguf.MODEL_ARCH.LLAMA,
    "qwen2_moe": gguf.MODEL_ARCH.QWEN2MOE,
    "qwen3_moe": gguf.MODEL_ARCH.QWEN3MOE,
    "gemma2": gguf.MODEL_ARCH.GEMMA2,
    "gemma3_text": gguf.MODEL_ARCH.GEMMA3,
}

EXPERTS = {
    "expert_count": "num_local_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
}


def interleave(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of each head from halves to pairs, as llama files have them."""
    half = weight.shape[0] // heads // 2
    pairs = weight.reshape(heads, 2, half, -1).swapaxes(1, 2)
    return np.ascontiguousarray(pairs.reshape(weight.shape))


def tensors_of(model: Any) -> dict[str, np.ndarray]:
    """What a GGUF file of this model holds, by the file's names."""
    config = model.config
    names = gguf.get_tensor_name_map(ARCHITECTURES[config.model_type], config.num_hidden_layers)
    dense = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    held = {}
    for name, value in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        weight = value.float().numpy()
        if name.endswith("experts.gate_up_proj"):
            layer = f"blk.{name.split('.')[2]}"
            for part, half in zip(("gate", "up"), np.split(weight, 2, axis=1), strict=True):
                held[f"{layer}.ffn_{part}_exps.weight"] = half
            continue
        if name.endswith("experts.down_proj"):
            held[f"blk.{name.split('.')[2]}.ffn_down_exps.weight"] = weight
            continue
        if name.endswith("shared_expert_gate.weight"):
            weight = weight[0]
        if config.model_type in ("llama", "mistral", "mixtral"):
            if ".q_proj." in name:
                weight = interleave(weight, config.num_attention_heads)
            if ".k_proj." in name:
                weight = interleave(weight, config.num_key_value_heads)
        if config.model_type.startswith("gemma") and name.endswith("norm.weight"):
            weight = weight + 1
        suffixes = (".weight", ".bias")
        # converters know of no layers without experts among others, and name them like any
        held[names.get_name(name, suffixes) or dense.get_name(name, suffixes)] = weight
    return held


def write_gguf(
    path: Path,
    model: Any,
    kind: str = "F32",
    change: Callable[[dict[str, np.ndarray]], object] = lambda tensors: None,
    **metadata: Any,
) -> Path:
    """`kind` is that of the matrices; `change` edits the tensors; `metadata` adds or replaces keys
    below the architecture, with `__` for a dot."""
    config = model.config
    architecture = gguf.MODEL_ARCH_NAMES[ARCHITECTURES[config.model_type]]
    writer = gguf.GGUFWriter(path, architecture)
    values: dict[str, Any] = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention__head_count": config.num_attention_heads,
        "attention__head_count_kv": config.num_key_value_heads,
        "attention__key_length": config.head_dim,
        "attention__layer_norm_rms_epsilon": config.rms_norm_eps,
        **{key: getattr(config, name) for key, name in EXPERTS.items() if hasattr(config, name)},
        **metadata,
    }
    for key, value in values.items():
        full = f"{architecture}.{key.replace('__', '.')}"
        add = {float: writer.add_float32, int: writer.add_uint32, str: writer.add_string}
        add[type(value)](full, value)
    tensors = tensors_of(model)
    change(tensors)
    for name, weight in tensors.items():
        quant = gguf.GGMLQuantizationType[kind if weight.ndim > 1 else "F32"]
        writer.add_tensor(name, gguf.quantize(weight, quant), raw_dtype=quant)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def rounded(model: Any, kind: str) -> Any:
    """The model with its matrices as that kind of quantisation leaves them."""
    quant = gguf.GGMLQuantizationType[kind]
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                kept = gguf.dequantize(gguf.quantize(parameter.numpy(), quant), quant)
                parameter.copy_(torch.from_numpy(kept.reshape(parameter.shape)))
    return model
