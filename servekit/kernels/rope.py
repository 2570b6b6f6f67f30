"""Rotary position embedding (Su et al. 2021), the half-split form of GPT-NeoX and Llama."""

import torch


def rope_tables(
    positions: torch.Tensor, inv_freq: torch.Tensor, scale: float, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and signed sin, each [tokens, head_dim] in dtype.

    `positions` [tokens], `inv_freq` float32 [head_dim / 2]; both tables are multiplied by `scale`.
    The first half of sin is negative: rotating a half is then a roll.
    """
    angles = positions[:, None].float() * inv_freq
    cos, sin = angles.cos() * scale, angles.sin() * scale
    cos, sin = torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)
    return cos.to(dtype), sin.to(dtype)


def apply_rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate x [tokens, heads, head_dim]: the pair (x[i], x[i + head_dim / 2]) turns by angle i."""
    cos, sin = cos[:, None], sin[:, None]
    return (x * cos).add_(x.roll(x.shape[-1] // 2, dims=-1).mul_(sin))
