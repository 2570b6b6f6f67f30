"""One name for each number, where families spell it differently."""

from collections.abc import Mapping
from typing import Any

SPELLINGS: dict[str, tuple[str, ...]] = {
    "hidden_size": ("n_embd", "n_embed", "d_model", "dim"),
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("n_head", "n_heads"),
    "num_key_value_heads": (
        "n_head_kv",
        "n_kv_heads",
        "num_kv_heads",
        "kv_n_heads",
        "num_attention_groups",
        "multi_query_group_num",
    ),
    "head_dim": ("kv_channels", "attention_head_dim"),
    "intermediate_size": ("n_inner", "ffn_hidden_size", "block_ff_dim", "ffn_dim"),
    "vocab_size": ("padded_vocab_size",),
    "max_position_embeddings": (
        "model_max_length",
        "n_positions",
        "n_ctx",
        "max_seq_len",
        "seq_length",
        "max_sequence_length",
    ),
    "rms_norm_eps": (
        "layer_norm_eps",
        "layer_norm_epsilon",
        "layernorm_epsilon",
        "norm_eps",
        "norm_epsilon",
    ),
    "hidden_act": ("hidden_activation", "mlp_hidden_act", "activation_function", "activation"),
    "tie_word_embeddings": ("tie_embedding",),
    "layer_types": ("layers_block_type",),
    "sliding_window_pattern": ("_sliding_window_pattern",),
    "rope_theta": ("rotary_emb_base", "rope_base", "global_rope_theta"),
    "rope_local_base_freq": ("swa_rope_theta", "local_rope_theta"),
    "partial_rotary_factor": ("rotary_pct", "rope_pct"),
    "num_experts": ("n_routed_experts", "num_local_experts", "moe_num_experts"),
    "num_experts_per_tok": (
        "num_experts_per_token",
        "experts_per_token",
        "moe_k",
        "moe_topk",
        "moe_top_k",
        "top_k_experts",
    ),
    "n_shared_experts": ("num_shared_experts", "moe_num_shared_experts", "num_shared_expert"),
    "shared_expert_intermediate_size": (
        "moe_shared_expert_intermediate_size",
        "shared_intermediate_size",
        "share_expert_dim",
        "share_expert_dims",
    ),
    "routed_scaling_factor": ("router_scaling_factor",),
    "first_k_dense_replace": ("num_dense_layers",),
    "num_nextn_predict_layers": (
        "mtp_num_hidden_layers",
        "mtp_num_layers",
        "num_mtp_modules",
        "num_mtp_layers",
    ),
}


def spelled(tree: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The tree under the names above, and what each of those is called in the file."""
    renamed, spellings = dict(tree), {}
    for name, others in SPELLINGS.items():
        if renamed.get(name) is None:
            other = next((other for other in others if tree.get(other) is not None), None)
            if other is not None:
                renamed[name], spellings[name] = tree[other], other
    return renamed, spellings
