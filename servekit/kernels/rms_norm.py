"""Root-mean-square norm (Zhang & Sennrich 2019), and with the sum that goes before it."""

import torch
import torch.nn.functional as F

from servekit.kernels.language import jit, tl, triton


def rms_norm_reference(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension of x [..., width], in x's dtype.

    The mean is taken in float32. A weight in x's dtype multiplies the quotient rounded to it, as in
    Llama; a float32 weight multiplies before the one rounding, as in Gemma, whose 1 + weight is
    folded into the weight. `weight` [..., width] broadcasts: [heads, width] norms heads at once.
    """
    width = (x.shape[-1],)
    if weight.dtype == x.dtype:
        return F.rms_norm(x, width, None, eps) * weight
    return (F.rms_norm(x.float(), width, None, eps) * weight).to(x.dtype)


def add_rms_norm_reference(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    """The norm of the sum; `residual` [..., width] becomes that sum, rounded to its dtype."""
    return rms_norm_reference(residual.add_(x), weight, eps)


# fmt: off
@jit
def _rms_norm_kernel(
    x_ptr, residual_ptr, weight_ptr, out_ptr, x_stride, eps,
    WIDTH: tl.constexpr, WEIGHTS: tl.constexpr, BLOCK: tl.constexpr,
    ADD: tl.constexpr, WIDE: tl.constexpr,
):
    """A program a row; row r has weight r % WEIGHTS."""
    row = tl.program_id(0).to(tl.int64)
    DTYPE: tl.constexpr = x_ptr.dtype.element_ty
    i = tl.arange(0, BLOCK)
    mask = i < WIDTH
    x = tl.load(x_ptr + row * x_stride + i, mask=mask, other=0.0).to(tl.float32)
    if ADD:
        x += tl.load(residual_ptr + row * WIDTH + i, mask=mask, other=0.0).to(tl.float32)
        x = x.to(DTYPE)
        tl.store(residual_ptr + row * WIDTH + i, x, mask=mask)
        x = x.to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, 0) / WIDTH + eps)
    weight = tl.load(weight_ptr + row % WEIGHTS * WIDTH + i, mask=mask, other=0.0).to(tl.float32)
    normed = x * scale
    if not WIDE:
        normed = normed.to(DTYPE).to(tl.float32)
    tl.store(out_ptr + row * WIDTH + i, (normed * weight).to(DTYPE), mask=mask)
# fmt: on


def _launch(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    width = x.shape[-1]
    rows = x.reshape(-1, width) if x.is_contiguous() else x.flatten(0, -2)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if len(rows) == 0:
        return out
    block = triton.next_power_of_2(width)
    _rms_norm_kernel[(len(rows),)](
        rows,
        rows if residual is None else residual,
        weight,
        out,
        rows.stride(0),
        eps,
        WIDTH=width,
        WEIGHTS=weight.numel() // width,
        BLOCK=block,
        ADD=residual is not None,
        WIDE=weight.dtype != x.dtype,
        num_warps=min(16, max(1, block // 512)),
    )
    return out


def rms_norm_triton(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """As `rms_norm_reference`. A row's result does not depend on the others."""
    return _launch(x, None, weight, eps)


def add_rms_norm_triton(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    """As `add_rms_norm_reference`, read once and written once; `residual` is contiguous."""
    return _launch(x, residual, weight, eps)
