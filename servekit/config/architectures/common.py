"""What the tables of families share: phrases, and the biases and norms that most have."""

from collections.abc import Mapping
from typing import Any

from servekit.config.architectures.family import Family

SIDE_BY_SIDE = "attention and MLP side by side"
FUSED = "fused projections in its files"
AFTER = "norms only after attention and MLP"
LATER_NORM = "norms of queries and keys after rotary embeddings"
QWEN_NORM = "norms that multiply by 1 + weight, but for those of states"
UNIT_NORM = "norms that multiply by 1 + weight"
PAIRS = "rotary embeddings of pairs side by side"
PARTIAL = "partial_rotary_factor"


def plain(**changes: Any) -> Family:
    """Attention and MLP of Llama, biases where the file says so."""
    biases: dict[str, Any] = {"qkv_bias": "attention_bias", "output_bias": "attention_bias"}
    return Family(**{**biases, **changes})


def gemma_like(**changes: Any) -> Family:
    return plain(
        **{
            "tied": True,
            "unit_offset": True,
            "scale_embeddings": True,
            **changes,
        }
    )


def deepseek_like(**changes: Any) -> Family:
    return plain(**{"notes": (PAIRS,), **changes})


def first_dense(dense: int) -> Mapping[str, Any]:
    return {"first_k_dense_replace": dense}
