"""Rotary frequencies of the scaling kinds, computed in float32 in the order transformers does."""

import math

import torch

from servekit.config.shape import DefaultRope, LinearRope, Llama3Rope, OtherRope, Rope, YarnRope
from servekit.errors import NotBuilt


def inverse_frequencies(rope: Rope, head_dim: int) -> tuple[torch.Tensor, float]:
    """Radians a position, float32 [head_dim / 2] on the CPU, and what cos and sin are scaled by.

    Raises NotBuilt for kinds that are only planned.
    """
    if isinstance(rope, OtherRope):
        raise NotBuilt("model.shape.rope is of a kind that this release plans but does not compute")
    exponent = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    power = rope.theta**exponent
    match rope:
        case DefaultRope():
            return 1.0 / power, 1.0
        case LinearRope():
            return 1.0 / power / rope.factor, 1.0
        case Llama3Rope():
            return _llama3(rope, 1.0 / power), 1.0
        case YarnRope():
            return _yarn(rope, power), yarn_attention_factor(rope)


def _llama3(rope: Llama3Rope, frequencies: torch.Tensor) -> torch.Tensor:
    """Low frequencies divided by the factor, high ones kept, a linear blend between (Llama 3.1)."""
    context = rope.original_max_position_embeddings
    wavelength = 2 * math.pi / frequencies
    turns = context / wavelength
    low, high = rope.low_freq_factor, rope.high_freq_factor
    blend = (turns - low) / (high - low)
    blended = (1 - blend) * frequencies / rope.factor + blend * frequencies
    scaled = torch.where(wavelength > context / low, frequencies / rope.factor, blended)
    return torch.where(wavelength < context / high, frequencies, scaled)


def yarn_attention_factor(rope: YarnRope) -> float:
    if rope.attention_factor is not None:
        return rope.attention_factor
    return 1.0 if rope.factor <= 1 else 0.1 * math.log(rope.factor) + 1.0


def _yarn(rope: YarnRope, power: torch.Tensor) -> torch.Tensor:
    """Interpolated below `beta_slow` turns, kept above `beta_fast`, a ramp between (Peng 2023)."""
    head_dim = 2 * power.numel()

    def dimension_of(turns: float) -> float:
        context = rope.original_max_position_embeddings
        return head_dim * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low = max(math.floor(dimension_of(rope.beta_fast)), 0)
    high = min(math.ceil(dimension_of(rope.beta_slow)), head_dim - 1)
    span = high - low if high != low else 0.001
    ramp = ((torch.arange(power.numel(), dtype=torch.float32) - low) / span).clamp(0, 1)
    kept = 1 - ramp
    return 1.0 / (rope.factor * power) * (1 - kept) + 1.0 / power * kept
