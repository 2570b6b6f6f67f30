"""Weights of four bits: our layout, and the way to it from those of AWQ and GPTQ checkpoints.

Ours is [N, K/2] bytes, contiguous along K. The G values of a group become G/2 bytes: byte j has
value j in its low nibble and value j + G/2 in the high one, so that both halves of a group meet
contiguous pieces of x, and one scale and one zero point count for all that a loop turn reads.
Scales and zero points are [K/G, N]. A value is (q - zero) * scale; without zero points, zero is 8.
"""

from typing import NamedTuple

import torch

from servekit.errors import NotBuilt, WeightsError

AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""Column c of eight is in nibble AWQ_ORDER[c] of an int32, counted from the lowest."""


class Packed(NamedTuple):
    """`data` uint8 [N, K/2], `scales` [K/G, N], `zeros` uint8 [K/G, N] or None where all are 8."""

    data: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None


def pack_int4(values: torch.Tensor, group: int) -> torch.Tensor:
    """Values [N, K] of 0 to 15 as bytes [N, K/2]; a group is an even part of K."""
    n, k = values.shape
    if group % 2 or group <= 0 or k % group:
        raise WeightsError(f"groups of {group} do not divide {k} values into even parts")
    low, high = values.to(torch.uint8).view(n, k // group, 2, group // 2).unbind(2)
    return (low | (high << 4)).view(n, k // 2)


def unpack_int4(data: torch.Tensor, group: int) -> torch.Tensor:
    """The values [N, K] of 0 to 15, of bytes [N, K/2]."""
    n, half = data.shape
    grouped = data.view(n, 2 * half // group, group // 2)
    return torch.stack((grouped & 15, grouped >> 4), 2).view(n, 2 * half)


def from_awq(qweight: torch.Tensor, qzeros: torch.Tensor, scales: torch.Tensor) -> Packed:
    """AWQ's GEMM layout: qweight int32 [K, N/8], qzeros int32 [K/G, N/8], scales [K/G, N]."""
    group = _group(len(qweight), scales)
    values = _nibbles(qweight)[..., AWQ_ORDER].flatten(1)
    zeros = _nibbles(qzeros)[..., AWQ_ORDER].flatten(1)
    _check("AWQ", values, zeros, scales)
    return _packed(values, zeros, scales, group)


def from_gptq(
    qweight: torch.Tensor,
    qzeros: torch.Tensor,
    scales: torch.Tensor,
    g_idx: torch.Tensor | None = None,
) -> Packed:
    """GPTQ's layout: qweight int32 [K/8, N], qzeros int32 [K/G, N/8] of zero - 1, scales [K/G, N].

    `g_idx` [K] is the group of each value; groups that are not K in its order (act-order) are
    refused. A stored 15 is the zero point 16, as in the first version of the format.
    """
    group = _group(8 * len(qweight), scales)
    if g_idx is not None:
        trivial = torch.arange(len(g_idx), device=g_idx.device) // group
        if not torch.equal(g_idx.to(trivial.dtype), trivial):
            raise NotBuilt(
                "a GPTQ checkpoint with act-order (desc_act=true) groups weights out of their "
                "order, which no kernel here reads; use one with desc_act=false"
            )
    values = _nibbles(qweight).transpose(1, 2).flatten(0, 1)
    zeros = _nibbles(qzeros).flatten(1) + 1
    _check("GPTQ", values, zeros, scales)
    return _packed(values, zeros, scales, group)


def _nibbles(words: torch.Tensor) -> torch.Tensor:
    """int32 [A, B] as [A, B, 8], the lowest nibble first."""
    shifts = torch.arange(0, 32, 4, device=words.device, dtype=torch.int32)
    return ((words[..., None] >> shifts) & 15).to(torch.uint8)


def _group(k: int, scales: torch.Tensor) -> int:
    if len(scales) == 0 or k % len(scales):
        raise WeightsError(f"{len(scales)} groups of scales do not divide {k} values")
    return k // len(scales)


def _check(kind: str, values: torch.Tensor, zeros: torch.Tensor, scales: torch.Tensor) -> None:
    if values.shape[1] != scales.shape[1] or zeros.shape != scales.shape:
        raise WeightsError(
            f"{kind} tensors do not fit each other: values {list(values.shape)}, "
            f"zero points {list(zeros.shape)}, scales {list(scales.shape)}"
        )


def _packed(values: torch.Tensor, zeros: torch.Tensor, scales: torch.Tensor, group: int) -> Packed:
    """`values` are [K, N]. Zero points that are all 8 are left out: symmetric kernels read less."""
    data = pack_int4(values.T.contiguous(), group)
    symmetric = bool((zeros == 8).all())
    return Packed(data, scales.contiguous(), None if symmetric else zeros.contiguous())
