"""Configurations of the catalogue's models on the catalogue's cards."""

from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from servekit.config.schema import Config, HardwareConfig
from servekit.config.shape import Shape
from tests.conftest import tiny_config

DRAFT = {
    "method": "draft",
    "tokens": 3,
    "acceptance": 0.8,
    "draft_parameters": 1_000_000_000,
    "draft_kv_bytes_per_token": 32768,
}
NGRAM = {"method": "ngram", "tokens": 3, "acceptance": 0.6}
MTP = {"method": "mtp", "tokens": 1, "acceptance": 0.8}

CONF = Path(__file__).resolve().parents[2] / "conf"


def cards() -> list[str]:
    return sorted(file.stem for file in (CONF / "hardware").glob("*.yaml"))


@lru_cache
def card(name: str) -> HardwareConfig:
    tree = yaml.safe_load((CONF / "hardware" / f"{name}.yaml").read_text())
    return HardwareConfig.model_validate(tree)


@lru_cache
def shape_of(name: str) -> Shape:
    tree = yaml.safe_load((CONF / "model" / f"{name}.yaml").read_text())
    return Shape.model_validate(tree["shape"])


def served(model: str, hardware: str, tensor: int = 1, /, **groups: dict[str, Any]) -> Config:
    """In bfloat16, with 8192 tokens in a step and for a request."""
    tree: dict[str, dict[str, Any]] = {
        "model": {"shape": shape_of(model), "dtype": "bfloat16", "max_model_len": 8192},
        "hardware": card(hardware).model_dump(),
        "scheduler": {"max_num_seqs": 256, "max_num_batched_tokens": 8192},
        "kv": {"dtype": "bfloat16"},
        "parallelism": {"tensor": tensor},
    }
    for group, changes in groups.items():
        tree[group] = {**tree.get(group, {}), **changes}
    return tiny_config(**tree)
