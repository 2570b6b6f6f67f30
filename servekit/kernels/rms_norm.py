"""Root-mean-square norm (Zhang & Sennrich 2019)."""

import torch
import torch.nn.functional as F


def rms_norm_reference(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """The meaning of `rms_norm`, and its CPU path."""
    width = (x.shape[-1],)
    if weight.dtype == x.dtype:
        return F.rms_norm(x, width, None, eps) * weight
    return (F.rms_norm(x.float(), width, None, eps) * weight).to(x.dtype)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension of x [..., width], in x's dtype.

    The mean is taken in float32. A weight in x's dtype multiplies the quotient rounded to it, as in
    Llama; a float32 weight multiplies before the one rounding, as in Gemma, whose 1 + weight is
    folded into the weight. `weight` [..., width] broadcasts: [heads, width] norms heads at once.
    """
    return rms_norm_reference(x, weight, eps)
