"""`engine.kernels` and what goes with it."""

from typing import Any

import pytest

from servekit.config.compose import load
from servekit.config.engine import KERNEL_OPS, EngineConfig
from servekit.errors import ConfigError
from servekit.kernels.table import OPS


def engine(*words: str) -> EngineConfig:
    return load(list(words)).config.engine


def test_the_operations_of_the_configuration_are_those_of_the_kernels() -> None:
    assert KERNEL_OPS == OPS


@pytest.mark.parametrize(
    ("words", "by"),
    [
        (["hardware=h100", "model=llama3_8b"], dict.fromkeys(OPS, "triton")),
        ([], dict.fromkeys(OPS, "torch")),
        (
            ["engine.kernels={attention: torch, others: triton}"],
            {**dict.fromkeys(OPS, "triton"), "attention": "torch"},
        ),
    ],
)
def test_what_computes_each_operation(words: list[str], by: dict[str, Any]) -> None:
    assert engine(*words).kernels_by_op == by


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("engine.kernels={attention: torch}", "kernels says nothing of rms_norm"),
        ("engine.kernels={matmul: torch, others: triton}", "there is no operation matmul"),
        ("engine.kernels={attention: cuda, others: triton}", "triton"),
        ("engine.kernels={}", "kernels says nothing of rms_norm"),
        ("engine.kernels=cuda", "triton"),
        ("engine.deterministic=true", "deterministic needs Triton for every operation"),
    ],
)
def test_what_cannot_be_meant_is_refused(word: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        engine(word)
