"""The gate of a gated MLP (Shazeer 2020)."""

from collections.abc import Callable

import torch
import torch.nn.functional as F


def _gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu,
    "gelu_tanh": _gelu_tanh,
}


def gated_activation_reference(gate_up: torch.Tensor, activation: str) -> torch.Tensor:
    """The meaning of `gated_activation`, and its CPU path."""
    gate, up = gate_up.chunk(2, dim=-1)
    return ACTIVATIONS[activation](gate).mul_(up)


def gated_activation(gate_up: torch.Tensor, activation: str) -> torch.Tensor:
    """activation(gate) * up [tokens, width] of gate and up side by side [tokens, 2 * width]."""
    return gated_activation_reference(gate_up, activation)
