"""Rotary frequencies against those transformers computes for the same parameters."""

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from servekit.config.shape import DefaultRope, LinearRope, Llama3Rope, Rope, YarnRope
from servekit.model.rope import inverse_frequencies

LLAMA_31 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {
    "factor": 4.0,
    "original_max_position_embeddings": 32768,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
}


def theirs(kind: str, theta: float, head_dim: int, **rest: Any) -> tuple[torch.Tensor, float]:
    parameters = {"rope_type": kind, "rope_theta": theta, **rest}
    config = LlamaConfig(
        hidden_size=head_dim * 4,
        num_attention_heads=4,
        max_position_embeddings=131072,
        rope_parameters=parameters,
    )
    return ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))


CASES: dict[str, tuple[Rope, dict[str, Any]]] = {
    "linear": (LinearRope(kind="linear", theta=1e6, factor=8.0), {"factor": 8.0}),
    "llama3": (Llama3Rope(kind="llama3", theta=5e5, **LLAMA_31), LLAMA_31),
    "llama3 by 32": (
        Llama3Rope(kind="llama3", theta=5e5, **{**LLAMA_31, "factor": 32.0}),
        {**LLAMA_31, "factor": 32.0},
    ),
    "yarn": (YarnRope(kind="yarn", theta=1e6, attention_factor=None, **YARN), YARN),
    "yarn with its attention factor": (
        YarnRope(kind="yarn", theta=1e4, attention_factor=0.9, **YARN),
        {**YARN, "attention_factor": 0.9},
    ),
    "yarn by one": (
        YarnRope(kind="yarn", theta=1e4, attention_factor=None, **{**YARN, "factor": 1.0}),
        {**YARN, "factor": 1.0},
    ),
}


@pytest.mark.parametrize("head_dim", [8, 64, 128])
@pytest.mark.parametrize(("rope", "rest"), CASES.values(), ids=CASES)
def test_frequencies_and_scale_are_those_of_transformers(rope, rest, head_dim):
    frequencies, scale = inverse_frequencies(rope, head_dim)
    expected, expected_scale = theirs(rope.kind, rope.theta, head_dim, **rest)
    torch.testing.assert_close(frequencies, expected, rtol=1e-6, atol=0)
    assert scale == pytest.approx(expected_scale)


def test_default_frequencies_fall_from_one_in_powers_of_theta():
    frequencies, scale = inverse_frequencies(DefaultRope(kind="default", theta=100.0), 4)
    assert frequencies.tolist() == pytest.approx([1.0, 0.1])
    assert scale == 1.0
