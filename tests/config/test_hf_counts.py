"""Parameters of small models of each family, against transformers building them on no device."""

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from servekit.config.architectures.defaults import defaults_of
from servekit.config.hf import read_shape
from servekit.config.shape import Shape
from servekit.spec.model import parameters

DECODER: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
}
LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
}
ROUTED = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 12,
    "n_group": 1,
    "topk_group": 1,
}
LOCAL = {"num_local_experts": 8, "num_experts_per_tok": 2}
NAMED = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 12}
INDEXER = {"index_n_heads": 2, "index_head_dim": 16, "index_topk": 4}
DELTA = {
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
}
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 4, "mamba_n_groups": 2}
STREAMS = {
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 300,
    "num_kv_shared_layers": 1,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}
TOWER = {
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_heads": 2,
    "depth": 2,
    "patch_size": 14,
    "image_size": 56,
}

DECODERS: list[tuple[str, dict[str, Any]]] = [
    ("llama", {"attention_bias": True, "mlp_bias": True}),
    ("mistral", {}),
    ("qwen2", {}),
    ("qwen3", {"attention_bias": True}),
    ("gemma", {"tie_word_embeddings": True}),
    ("gemma2", {"tie_word_embeddings": True}),
    ("gemma3_text", {"tie_word_embeddings": True}),
    ("gemma3n_text", {**STREAMS, "laurel_rank": 4, "activation_sparsity_pattern": [0.0] * 4}),
    ("gemma4_text", {**STREAMS, "use_double_wide_mlp": True, "global_head_dim": 32}),
    (
        "gemma4_text",
        {
            **STREAMS,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
            "global_head_dim": 24,
            "attention_bias": True,
        },
    ),
    (
        "gemma4_text",
        {
            **NAMED,
            "top_k_experts": 2,
            "enable_moe_block": True,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
            "hidden_size_per_layer_input": 0,
            "num_kv_shared_layers": 0,
        },
    ),
    ("phi", {}),
    ("phi3", {}),
    ("granite", {"mlp_bias": True}),
    ("starcoder2", {}),
    ("gpt_neox", {"num_key_value_heads": None}),
    ("falcon", {"ffn_hidden_size": 48, "num_key_value_heads": None}),
    (
        "falcon",
        {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True, "ffn_hidden_size": 48},
    ),
    ("stablelm", {"use_qkv_bias": True, "qk_layernorm": True}),
    ("olmo2", {}),
    ("glm4", {"attention_bias": True}),
    ("exaone4", {}),
    ("seed_oss", {"attention_bias": True, "attention_out_bias": True}),
    ("arcee", {}),
    ("nemotron", {"mlp_bias": True}),
    ("smollm3", {}),
    ("apertus", {}),
    ("hunyuan_v1_dense", {}),
    ("ernie4_5", {"use_bias": True}),
    ("mixtral", LOCAL),
    ("phimoe", LOCAL),
    ("gpt_oss", LOCAL),
    ("granitemoe", LOCAL),
    ("granitemoehybrid", {**LOCAL, **MAMBA, "layer_types": ["mamba", "attention"] * 2}),
    ("qwen2_moe", {**NAMED, "shared_expert_intermediate_size": 20}),
    ("qwen3_moe", {**NAMED, "mlp_only_layers": [1]}),
    ("olmoe", {"num_experts": 8}),
    ("deepseek_v2", {**LATENT, **ROUTED, "n_shared_experts": 2, "first_k_dense_replace": 1}),
    ("deepseek_v3", {**LATENT, **ROUTED, "attention_bias": True}),
    ("deepseek_v32", {**LATENT, **ROUTED, **INDEXER}),
    ("glm_moe_dsa", {**LATENT, **ROUTED, **INDEXER}),
    ("glm_moe_dsa", {**LATENT, **ROUTED, **INDEXER, "index_topk_freq": 2}),
    ("glm_moe_dsa", {**LATENT, **ROUTED, **INDEXER, "index_topk_pattern": "FSSF"}),
    (
        "mimo_v2_flash",
        {
            **ROUTED,
            "v_head_dim": 12,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "mlp_layer_types": ["dense", "sparse"] * 2,
        },
    ),
    ("glm4_moe", {**ROUTED, "attention_bias": True, "use_qk_norm": True}),
    ("dots1", {**ROUTED, "n_shared_experts": 1, "first_k_dense_replace": 1}),
    ("minimax_m2", LOCAL),
    ("ernie4_5_moe", {"moe_num_experts": 8, "moe_k": 2, "moe_intermediate_size": 12}),
    ("llama4_text", {**LOCAL, "interleave_moe_layer_step": 2, "intermediate_size_mlp": 80}),
    ("qwen3_next", {**NAMED, **DELTA, "shared_expert_intermediate_size": 20}),
    ("qwen3_5_text", DELTA),
    ("kimi_linear", {**LATENT, **NAMED, "linear_num_heads": 4, "linear_head_dim": 8}),
    ("mamba", {"state_size": 4}),
    ("mamba2", {"num_heads": 8, "head_dim": 16, "n_groups": 2, "state_size": 4}),
    (
        "jamba",
        {"num_experts": 4, "mamba_d_state": 4, "attn_layer_period": 2, "attn_layer_offset": 1},
    ),
    ("bamba", {**MAMBA, "attn_layer_indices": [1]}),
    (
        "nemotron_h",
        {
            **ROUTED,
            "hybrid_override_pattern": "M*-E",
            "mamba_num_heads": 8,
            "mamba_head_dim": 16,
            "n_groups": 2,
            "ssm_state_size": 4,
            "moe_shared_expert_intermediate_size": 20,
        },
    ),
    ("lfm2", {"layer_types": ["conv", "full_attention"] * 2}),
    ("lfm2_moe", {**NAMED, "layer_types": ["conv", "full_attention"] * 2, "num_dense_layers": 1}),
]

MULTIMODAL: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("gemma3", "gemma3_text", {}, {**TOWER, "model_type": "siglip_vision_model"}),
    ("llava", "llama", {"vision_feature_layer": -2}, {**TOWER, "model_type": "clip_vision_model"}),
    (
        "llava_next",
        "granite",
        {"vision_feature_layer": [-1, -2]},
        {**TOWER, "model_type": "siglip_vision_model"},
    ),
    ("mistral3", "mistral", {}, {**TOWER, "model_type": "pixtral"}),
    ("qwen2_vl", "qwen2_vl_text", {}, {**TOWER, "embed_dim": 32, "hidden_size": 64}),
    ("qwen2_5_vl", "qwen2_5_vl_text", {}, {**TOWER, "out_hidden_size": 64}),
    (
        "qwen3_vl",
        "qwen3_vl_text",
        {},
        {**TOWER, "out_hidden_size": 64, "deepstack_visual_indexes": [0, 1]},
    ),
    ("glm4v", "glm4v_text", {}, {**TOWER, "out_hidden_size": 64}),
    ("idefics3", "llama", {}, {**TOWER, "model_type": "idefics3_vision"}),
]


def counted(config: dict[str, Any]) -> int:
    return parameters(Shape.model_validate(read_shape(config))).total


def built(config: dict[str, Any], auto: Any) -> int:
    """Scores are corrected by a buffer in transformers, by a tensor like others in files."""
    kind = config["model_type"]
    given = {key: value for key, value in config.items() if key != "model_type"}
    with torch.device("meta"):
        model = auto.from_config(AutoConfig.for_model(kind, **given))
    corrections = [
        buffer
        for name, buffer in model.named_buffers()
        if name.endswith(("correction_bias", "expert_bias"))
    ]
    return sum(tensor.numel() for tensor in [*model.parameters(), *corrections])


@pytest.mark.parametrize(
    ("kind", "changes"), DECODERS, ids=[f"{kind}-{i}" for i, (kind, _) in enumerate(DECODERS)]
)
def test_a_decoder_has_as_many_parameters_as_in_transformers(
    kind: str, changes: dict[str, Any]
) -> None:
    config = {"model_type": kind, **DECODER, **changes}
    if kind == "falcon":
        del config["head_dim"]  # it has none of its own, and its class takes none
    assert counted(config) == built(config, AutoModelForCausalLM)


@pytest.mark.parametrize(("kind", "text", "changes", "tower"), MULTIMODAL)
def test_a_tower_and_what_projects_its_output_count_too(
    kind: str, text: str, changes: dict[str, Any], tower: dict[str, Any]
) -> None:
    config = {
        "model_type": kind,
        "text_config": {"model_type": text, **DECODER},
        "vision_config": tower,
        "tie_word_embeddings": False,
        **changes,
    }
    assert counted(config) == built(config, AutoModelForImageTextToText)


@pytest.mark.parametrize("kind", sorted({kind for kind, _ in DECODERS}))
def test_a_key_that_a_file_leaves_out_has_the_default_of_transformers(kind: str) -> None:
    table, cls = defaults_of(kind), type(AutoConfig.for_model(kind))
    names = [name for name in table if isinstance(getattr(cls, name, None), int | float | str)]
    assert {name: table[name] for name in names} == {name: getattr(cls, name) for name in names}
    assert "hidden_size" in names or "hidden_size" in table
