"""Parameters are counted as transformers builds them, for every kind of layer."""

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from servekit.spec.model import parameters
from tests.conftest import tiny_shape

CONFIG: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 6,
}
MLA = {"kv_lora_rank": 16, "rope_head_dim": 4, "nope_head_dim": 8, "indexer": None}
LATENT_SHAPE = {"kv_heads": 4, "head_dim": 12, "value_head_dim": 6}
MOE = {
    "experts": 8,
    "experts_per_token": 2,
    "intermediate_size": 24,
    "shared_intermediate_size": 0,
    "shared_gate": False,
    "router": "softmax",
    "renormalise": True,
    "routed_scale": 1.0,
    "router_bias": False,
    "expert_bias": False,
    "dense_layers": (),
}
DELTA = {
    "layers": (0, 1, 2),
    "key_heads": 4,
    "key_head_dim": 8,
    "value_heads": 4,
    "value_head_dim": 8,
    "conv_kernel": 4,
    "dtype": "float32",
}
DELTA_CONFIG = {
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 6,
    "linear_conv_kernel_dim": 4,
}
THREE_AND_ONE = ["linear_attention"] * 3 + ["full_attention"]
MAMBA2 = {
    "kind": "mamba2",
    "heads": 8,
    "head_dim": 8,
    "groups": 2,
    "state_size": 16,
    "conv_kernel": 4,
    "dtype": "float32",
}

FAMILIES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "mixtral": (
        "mixtral",
        {"num_local_experts": 8, "num_experts_per_tok": 2},
        {"moe": {**MOE, "intermediate_size": 48}},
    ),
    "qwen3 with experts": (
        "qwen3_moe",
        {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
        {"moe": MOE, "qk_norm": True},
    ),
    "gpt-oss": (
        "gpt_oss",
        {"num_local_experts": 8, "num_experts_per_tok": 2, "attention_bias": True},
        {
            "moe": {**MOE, "intermediate_size": 48, "router_bias": True, "expert_bias": True},
            "qkv_bias": True,
            "output_bias": True,
            "other_parameters": 4 * 4,
        },
    ),
    "deepseek-v2": (
        "deepseek_v2",
        {
            **LATENT,
            "q_lora_rank": None,
            "n_routed_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "n_shared_experts": 2,
            "first_k_dense_replace": 1,
            "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
        },
        {
            **LATENT_SHAPE,
            "mla": {**MLA, "q_lora_rank": None},
            "moe": {**MOE, "shared_intermediate_size": 48, "dense_layers": (0,)},
        },
    ),
    "deepseek-v3": (
        "deepseek_v3",
        {
            **LATENT,
            "q_lora_rank": 20,
            "n_routed_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
            "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
        },
        {
            **LATENT_SHAPE,
            "mla": {**MLA, "q_lora_rank": 20},
            "moe": {
                **MOE,
                "shared_intermediate_size": 24,
                "router_bias": True,
                "dense_layers": (0,),
            },
        },
    ),
    "qwen3-next": (
        "qwen3_next",
        {
            **DELTA_CONFIG,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 40,
            "layer_types": THREE_AND_ONE,
        },
        {
            "qk_norm": True,
            "moe": {**MOE, "shared_intermediate_size": 40, "shared_gate": True},
            "state": {
                "kind": "gated_delta",
                **DELTA,
                "key_heads": 2,
                "value_head_dim": 6,
            },
            "other_parameters": 32 * 4 * 8,
        },
    ),
    "kimi-linear": (
        "kimi_linear",
        {
            **LATENT,
            "q_lora_rank": None,
            "linear_head_dim": 8,
            "linear_num_heads": 4,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "n_shared_experts": 1,
            "layer_types": THREE_AND_ONE,
            "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
        },
        {
            **LATENT_SHAPE,
            "mla": {**MLA, "q_lora_rank": None},
            "moe": {
                **MOE,
                "shared_intermediate_size": 24,
                "router_bias": True,
                "dense_layers": (0,),
            },
            "state": {"kind": "kda", **DELTA},
        },
    ),
    "mamba": (
        "mamba",
        {
            "state_size": 16,
            "expand": 2,
            "conv_kernel": 4,
            "time_step_rank": 3,
            "intermediate_size": 64,
        },
        {
            "mixer_only_layers": (0, 1, 2, 3),
            "state": {
                "kind": "mamba1",
                "layers": (0, 1, 2, 3),
                "inner_size": 64,
                "state_size": 16,
                "conv_kernel": 4,
                "dt_rank": 3,
                "dtype": "float32",
            },
        },
    ),
    "mamba-2": (
        "mamba2",
        {"num_heads": 8, "head_dim": 8, "n_groups": 2, "state_size": 16, "expand": 2},
        {
            "mixer_only_layers": (0, 1, 2, 3),
            "state": {**MAMBA2, "layers": (0, 1, 2, 3)},
        },
    ),
    "nemotron-h": (
        "nemotron_h",
        {
            "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"],
            "mamba_num_heads": 8,
            "mamba_head_dim": 8,
            "n_groups": 2,
            "ssm_state_size": 16,
            "n_routed_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "moe_shared_expert_intermediate_size": 40,
        },
        {
            "gated_mlp": False,
            "mixer_only_layers": (0, 2),
            "mlp_only_layers": (1, 3),
            "moe": {
                **MOE,
                "shared_intermediate_size": 40,
                "router_bias": True,
                "dense_layers": (3,),
            },
            "state": {**MAMBA2, "layers": (0,)},
        },
    ),
}


@pytest.mark.parametrize(("kind", "config", "shape"), FAMILIES.values(), ids=FAMILIES)
def test_transformers_builds_as_many_parameters(
    kind: str, config: dict[str, Any], shape: dict[str, Any]
) -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**CONFIG, **config}))
    built = {name: tensor.numel() for name, tensor in model.named_parameters()}
    corrections = {
        name: tensor.numel()
        for name, tensor in model.named_buffers()
        if name.endswith("e_score_correction_bias")
    }
    expected = sum({**built, **corrections}.values())
    assert parameters(tiny_shape(layers=4, **shape)).total == expected, built
