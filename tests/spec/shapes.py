"""Shapes of published models, as far as sizes depend on them."""

from typing import Any

from servekit.config.schema import Config
from servekit.config.shape import Shape
from tests.conftest import tiny_config, tiny_shape


def published(
    layers: int, hidden: int, heads: tuple[int, int, int], width: int, vocab: int, **more: Any
) -> Shape:
    """`heads` are query heads, key-value heads and their width."""
    query, key_value, head_dim = heads
    numbers = {
        "layers": layers,
        "hidden_size": hidden,
        "heads": query,
        "kv_heads": key_value,
        "head_dim": head_dim,
        "intermediate_size": width,
        "vocab_size": vocab,
        "max_position_embeddings": 131072,
    }
    return tiny_shape(**{**numbers, **more})


LLAMA_8B = published(32, 4096, (32, 8, 128), 14336, 128256)
LLAMA_70B = published(80, 8192, (64, 8, 128), 28672, 128256)
QWEN25_7B = published(28, 3584, (28, 4, 128), 18944, 152064, qkv_bias=True)


CARDS_GIB = {"a100_80g": 79.15, "h100": 79.19, "h200": 139.80, "l4": 22.03}


def deployment(shape: Shape, card: str, **groups: dict[str, Any]) -> Config:
    """A bfloat16 service on a card of the catalogue, the cache taking 90 % of what is free."""
    tree: dict[str, dict[str, Any]] = {
        "model": {"shape": shape, "dtype": "bfloat16", "max_model_len": 8192},
        "scheduler": {"max_num_seqs": 256, "max_num_batched_tokens": 2048},
        "kv": {"dtype": "bfloat16", "capacity_tokens": None, "memory_fraction": 0.9},
        "hardware": {
            "kind": "cuda",
            "name": card,
            "device_names": (card,),
            "memory_gib": CARDS_GIB[card],
            "threads": None,
        },
    }
    return tiny_config(
        **{name: {**tree.get(name, {}), **groups.get(name, {})} for name in tree | groups}
    )
