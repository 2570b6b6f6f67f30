"""The gate of a gated MLP (Shazeer 2020)."""

from collections.abc import Callable

import torch
import torch.nn.functional as F

from servekit.kernels.language import jit, tl, triton


def _gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu,
    "gelu_tanh": _gelu_tanh,
}


def gated_activation_reference(gate_up: torch.Tensor, activation: str) -> torch.Tensor:
    """activation(gate) * up [tokens, width] of gate and up side by side [tokens, 2 * width].

    What the activation gives is rounded to the dtype before it is multiplied.
    """
    gate, up = gate_up.chunk(2, dim=-1)
    return ACTIVATIONS[activation](gate).mul_(up)


@jit
def _gated_kernel(
    x_ptr, out_ptr, x_stride, WIDTH: tl.constexpr, BLOCK: tl.constexpr, SILU: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = i < WIDTH
    DTYPE: tl.constexpr = x_ptr.dtype.element_ty
    gate = tl.load(x_ptr + row * x_stride + i, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(x_ptr + row * x_stride + WIDTH + i, mask=mask, other=0.0).to(tl.float32)
    inner = gate
    if not SILU:
        # (1 + tanh y) / 2 is the logistic function of 2 y
        inner = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
    active = (gate / (1.0 + tl.exp(-inner))).to(DTYPE).to(tl.float32)
    tl.store(out_ptr + row * WIDTH + i, (active * up).to(DTYPE), mask=mask)


def gated_activation_triton(gate_up: torch.Tensor, activation: str) -> torch.Tensor:
    """As `gated_activation_reference`; rows of `gate_up` are contiguous."""
    rows, both = gate_up.shape
    width = both // 2
    out = gate_up.new_empty((rows, width))
    if rows:
        block = min(1024, triton.next_power_of_2(width))
        _gated_kernel[(rows, triton.cdiv(width, block))](
            gate_up,
            out,
            gate_up.stride(0),
            WIDTH=width,
            BLOCK=block,
            SILU=activation == "silu",
            num_warps=min(4, max(1, block // 256)),
        )
    return out
