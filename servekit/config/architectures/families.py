"""Every model type that is known."""

from servekit.config.architectures.dense import DENSE
from servekit.config.architectures.family import Family
from servekit.config.architectures.older import OLDER
from servekit.config.architectures.sparse import SPARSE
from servekit.config.architectures.stateful import STATEFUL

SAME: dict[str, str] = {
    "internlm3": "llama",
    "smollm": "llama",
    "kimi_k2": "deepseek_v3",
    "axk1": "deepseek_v3",
    "qwen2_vl_text": "qwen2",
    "qwen2_vl": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen2_5_vl": "qwen2",
    "qwen3_vl_text": "qwen3",
    "qwen3_vl": "qwen3",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
    "qwen3_omni_moe_text": "qwen3_moe",
    "qwen3_5_moe_text": "qwen3_5_text",
    "glm4v_moe_text": "glm4_moe",
    "minimax_m3_vl_text": "minimax_m3",
    "minimax_m3_vl": "minimax_m3",
    "step3p7": "step3p5",
    "step3p7_text": "step3p5",
    "gemma4_unified_text": "gemma4_text",
}
"""Model types whose decoder is that of another, but for numbers that a file leaves out."""

FAMILIES: dict[str, Family] = {**DENSE, **SPARSE, **STATEFUL, **OLDER}

NESTED: dict[str, str] = {
    "gemma3": "gemma3_text",
    "gemma3n": "gemma3n_text",
    "gemma4": "gemma4_text",
    "gemma4_unified": "gemma4_unified_text",
    "mistral3": "mistral",
    "llava": "llama",
    "llava_next": "llama",
    "llava_onevision": "qwen2",
    "internvl": "qwen2",
    "internvl_chat": "qwen2",
    "qwen2_vl": "qwen2_vl_text",
    "qwen2_5_vl": "qwen2_5_vl_text",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "llama4": "llama4_text",
    "mllama": "mllama_text_model",
    "kimi_vl": "deepseek_v3",
    "kimi_k25": "deepseek_v3",
    "kimi_k3": "kimi_linear",
    "minimax_m3_vl": "minimax_m3_vl_text",
    "glm4v": "glm4v_text",
    "glm4v_moe": "glm4v_moe_text",
    "glm46v": "glm4v_text",
    "step3p7": "step3p5",
    "cohere2_vision": "cohere2",
    "aya_vision": "cohere2",
    "idefics3": "llama",
    "smolvlm": "llama",
    "paligemma": "gemma",
    "ovis2": "qwen2",
}
"""Model types with a decoder nested in them, and what it is where it does not say."""
