"""Tiny random models of transformers, and the Shape that each is."""

from pathlib import Path
from typing import Any

import torch
from transformers import (
    Dots1Config,
    Dots1ForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    HYV3Config,
    HYV3ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    SolarOpenConfig,
    SolarOpenForCausalLM,
)

from servekit.config.shape import DefaultRope, LinearRope, Llama3Rope, Shape, YarnRope
from tests.conftest import TINY_MOE, tiny_shape

SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "initializer_range": 0.2,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
GEMMA: dict[str, Any] = {
    "activation": "gelu_tanh",
    "norm_unit_offset": True,
    "post_norms": True,
    "scale_embeddings": True,
    "tie_word_embeddings": True,
}


def _default(theta: float) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": theta}


def _llama(shape: dict[str, Any], **config: Any) -> tuple[Any, Any, dict[str, Any]]:
    return LlamaForCausalLM, LlamaConfig(**{**SIZES, **config}), shape


LLAMA3_ROPE = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN_ROPE = {
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 4.0,
    "beta_slow": 1.0,
}


def family(name: str) -> tuple[Any, Any, dict[str, Any]]:
    """Model class, its configuration, and how the tiny shape must be changed."""
    match name:
        case "llama":
            return _llama({})
        case "llama-tied-biased":
            biases = {"qkv_bias": True, "output_bias": True, "mlp_bias": True}
            return _llama(
                {"tie_word_embeddings": True, **biases},
                tie_word_embeddings=True,
                attention_bias=True,
                mlp_bias=True,
            )
        case "llama-llama3-rope":
            return _llama(
                {"rope": Llama3Rope(kind="llama3", theta=1e4, **LLAMA3_ROPE)},
                rope_parameters={"rope_type": "llama3", "rope_theta": 1e4, **LLAMA3_ROPE},
            )
        case "llama-linear-rope":
            return _llama(
                {"rope": LinearRope(kind="linear", theta=1e4, factor=4.0)},
                rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
            )
        case "llama-yarn-rope":
            return _llama(
                {"rope": YarnRope(kind="yarn", theta=1e4, attention_factor=None, **YARN_ROPE)},
                rope_parameters={"rope_type": "yarn", "rope_theta": 1e4, **YARN_ROPE},
            )
        case "qwen2":
            config = Qwen2Config(**SIZES)
            return Qwen2ForCausalLM, config, {"qkv_bias": True}
        case "qwen3":
            return Qwen3ForCausalLM, Qwen3Config(**SIZES), {"qk_norm": True}
        case "mistral":
            config = MistralConfig(**SIZES, sliding_window=6)
            return MistralForCausalLM, config, {"sliding_window": 6}
        case "gemma2":
            config = Gemma2Config(
                **SIZES,
                sliding_window=6,
                query_pre_attn_scalar=16,
                attn_logit_softcapping=5.0,
                final_logit_softcapping=3.0,
                attn_implementation="eager",
            )
            capped = {"attention_logit_softcap": 5.0, "final_logit_softcap": 3.0}
            windows = {"sliding_window": 6, "full_attention_layers": (1,)}
            return (
                Gemma2ForCausalLM,
                config,
                {**GEMMA, **capped, **windows, "attention_scale": 0.25},
            )
        case "gemma3":
            config = Gemma3TextConfig(
                **SIZES,
                sliding_window=6,
                query_pre_attn_scalar=16,
                layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                rope_parameters={
                    "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
                    "sliding_attention": _default(1e4),
                },
            )
            changes = {
                **GEMMA,
                "qk_norm": True,
                "attention_scale": 0.25,
                "sliding_window": 6,
                "full_attention_layers": (1,),
                "rope": LinearRope(kind="linear", theta=1e6, factor=8.0),
                "local_rope": DefaultRope(kind="default", theta=1e4),
            }
            return Gemma3ForCausalLM, config, changes
    return family_with_experts(name)


def family_with_experts(name: str) -> tuple[Any, Any, dict[str, Any]]:
    """As `family`; six experts, of which a token passes through two."""
    chosen = {"num_experts_per_tok": 2, "moe_intermediate_size": 24}
    rope = {"rope_parameters": _default(1e4)}
    match name:
        case "mixtral":
            sizes = {**SIZES, **rope, "num_local_experts": 6, "sliding_window": 6}
            moe = {**TINY_MOE, "intermediate_size": 48}
            return (
                MixtralForCausalLM,
                MixtralConfig(**sizes),
                {"moe": moe, "sliding_window": 6},
            )
        case "qwen2-moe":
            config = Qwen2MoeConfig(
                **SIZES,
                **chosen,
                num_experts=6,
                shared_expert_intermediate_size=40,
                mlp_only_layers=[1],
            )
            shared = {"shared_intermediate_size": 40, "shared_gate": True}
            moe = {**TINY_MOE, **shared, "renormalise": False, "dense_layers": (1,)}
            return Qwen2MoeForCausalLM, config, {"moe": moe, "qkv_bias": True}
        case "qwen3-moe":
            config = Qwen3MoeConfig(
                **SIZES, **chosen, num_experts=6, norm_topk_prob=True, decoder_sparse_step=2
            )
            moe = {**TINY_MOE, "dense_layers": (0, 2)}
            return Qwen3MoeForCausalLM, config, {"moe": moe, "qk_norm": True}
        case "dots1":
            config = Dots1Config(
                **SIZES,
                **chosen,
                n_routed_experts=6,
                n_shared_experts=2,
                first_k_dense_replace=1,
                routed_scaling_factor=2.5,
            )
            moe = _sigmoid(shared=48, scale=2.5, dense=(0,)) | {"renormalise": False}
            return Dots1ForCausalLM, config, {"moe": moe, "qk_norm": True}
        case "solar-open":
            config = SolarOpenConfig(
                **SIZES, **chosen, **rope, n_routed_experts=6, n_shared_experts=1
            )
            return SolarOpenForCausalLM, config, {"moe": _sigmoid(shared=24)}
        case "hy-v3":
            config = HYV3Config(
                **SIZES,
                **chosen,
                **rope,
                num_experts=6,
                num_shared_experts=1,
                first_k_dense_replace=1,
            )
            moe = _sigmoid(shared=24, scale=2.826, dense=(0,))
            return HYV3ForCausalLM, config, {"moe": moe, "qk_norm": True}
    raise KeyError(name)


def _sigmoid(shared: int, scale: float = 1.0, dense: tuple[int, ...] = ()) -> dict[str, Any]:
    return {
        **TINY_MOE,
        "router": "sigmoid",
        "router_bias": True,
        "routed_scale": scale,
        "shared_intermediate_size": shared,
        "dense_layers": dense,
    }


WITH_EXPERTS = ("mixtral", "qwen2-moe", "qwen3-moe", "dots1", "solar-open", "hy-v3")
FAMILIES = (
    "llama",
    "llama-tied-biased",
    "llama-llama3-rope",
    "llama-linear-rope",
    "llama-yarn-rope",
    "qwen2",
    "qwen3",
    "mistral",
    "gemma2",
    "gemma3",
    *WITH_EXPERTS,
)


def save(name: str, folder: Path, **options: Any) -> tuple[Any, Shape]:
    """Saves a random model of the family; returns it with its Shape."""
    torch.manual_seed(0)
    model_class, config, changes = family(name)
    model = model_class(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:  # norms begin as ones, biases as zeros: tell them apart
                parameter.add_(0.2 * torch.randn(parameter.shape))
        for name, buffer in model.named_buffers():
            if name.endswith("correction_bias"):
                buffer.add_(0.1 * torch.randn(buffer.shape))
    model.save_pretrained(folder, **options)
    return model, tiny_shape(**changes)
