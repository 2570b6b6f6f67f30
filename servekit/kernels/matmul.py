"""Dense linear layer whose rows do not depend on the batch: y = x W^T + b.

A sum over K is cut into spans that follow from K alone; a span is summed in float32 tile by tile,
and the spans in their order. Few rows give each span a program of its own, many let one program
take them in turn: the same sums in the same order, so that a row is bit-equal alone and in any
batch. Tiles have at least 64 rows, since chips sum in another order with instructions for fewer.
"""

import torch
import torch.nn.functional as F

from servekit.kernels.language import jit, tl, triton
from servekit.kernels.target import INTERPRETER, Target, target
from servekit.kernels.tuned import Parameters, launch_parameters

SPAN = 1024
MOST_SPANS = 8
SPLIT_ROWS = 128
"""Up to so many rows the spans run beside each other; what they write stays small."""


def matmul_reference(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """x [..., K] times weight [N, K] transposed plus bias [N], in x's dtype."""
    return F.linear(x, weight, bias)


# fmt: off
@jit(do_not_specialize=["m"])
def _matmul_kernel(
    x_ptr, weight_ptr, bias_ptr, out_ptr, parts_ptr, m, n,
    K: tl.constexpr, SPAN: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    SPLIT: tl.constexpr, BIAS: tl.constexpr,
):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    in_rows, in_columns = rows[:, None] < m, columns[None, :] < n
    x_at = x_ptr + rows[:, None].to(tl.int64) * K
    weight_at = weight_ptr + columns[None, :].to(tl.int64) * K
    first, last = 0, (K + SPAN - 1) // SPAN
    if SPLIT:
        first = tl.program_id(2)
        last = first + 1
    total = tl.zeros((BM, BN), tl.float32)
    for span in range(first, last):
        part = tl.zeros((BM, BN), tl.float32)
        for start in range(span * SPAN, span * SPAN + SPAN, BK):
            at = start + k
            x = tl.load(x_at + at[None, :], mask=in_rows & (at[None, :] < K), other=0.0)
            weight = tl.load(
                weight_at + at[:, None], mask=in_columns & (at[:, None] < K), other=0.0
            )
            part = tl.dot(x, weight, part, input_precision="ieee")
        total += part
    at = rows[:, None].to(tl.int64) * n + columns[None, :]
    inside = in_rows & in_columns
    if SPLIT:
        tl.store(parts_ptr + tl.program_id(2).to(tl.int64) * m * n + at, total, mask=inside)
    else:
        if BIAS:
            bias = tl.load(bias_ptr + columns, mask=columns < n, other=0.0)
            total += bias.to(tl.float32)[None, :]
        tl.store(out_ptr + at, total.to(out_ptr.dtype.element_ty), mask=inside)


@jit(do_not_specialize=["size"])
def _sum_kernel(
    parts_ptr, bias_ptr, out_ptr, size, n,
    PARTS: tl.constexpr, BLOCK: tl.constexpr, BIAS: tl.constexpr,
):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    total = tl.zeros((BLOCK,), tl.float32)
    for part in tl.static_range(PARTS):
        total += tl.load(parts_ptr + part * size + at, mask=inside, other=0.0)
    if BIAS:
        total += tl.load(bias_ptr + at % n, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + at, total.to(out_ptr.dtype.element_ty), mask=inside)
# fmt: on


def sum_parts(parts: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor) -> None:
    """parts [P, M, N] of float32 summed in their order, plus bias [N], into out [M, N]."""
    _sum_kernel[(triton.cdiv(out.numel(), 512),)](
        parts,
        out if bias is None else bias,
        out,
        out.numel(),
        out.shape[1],
        PARTS=len(parts),
        BLOCK=512,
        BIAS=bias is not None,
        num_warps=4,
    )


def span_of(k: int, multiple: int) -> int:
    """How much of K one sum takes: from K alone, a multiple of `multiple`."""
    span = max(SPAN, -(-k // MOST_SPANS))
    return -(-min(span, k) // multiple) * multiple


def default_launch(on: Target, m: int, element_bytes: int) -> Parameters:
    """Tiles by the number of rows. BK is the same for all rows, and so is the instruction."""
    if element_bytes == 4:  # no tensor cores: float32 is multiplied as it is
        return {"BM": 64, "BN": 32, "BK": 32, "num_warps": 8, "num_stages": 2}
    if m <= 64:
        stages = 2 if on.is_amd else 4
        return {"BM": 64, "BN": 64, "BK": 64, "num_warps": 4, "num_stages": stages}
    stages = 2 if on.is_amd else 3
    wide = on.is_amd or on.at_least(90)  # older chips hold two sums of 128 columns in no registers
    return {"BM": 128, "BN": 128 if wide else 64, "BK": 64, "num_warps": 8, "num_stages": stages}


def rows_bucket(m: int) -> int:
    """A power of two from 1 to 1024, so that a table of launches stays small."""
    return min(1024, 1 << max(0, m - 1).bit_length())


def matmul_triton(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """As `matmul_reference`; a row's result does not depend on the others or on their number.

    x and weight have one dtype; one that is not contiguous is copied.
    """
    rows = x.reshape(-1, x.shape[-1]).contiguous()
    m, (n, k) = len(rows), weight.shape
    out = torch.empty((m, n), dtype=x.dtype, device=x.device)
    if m == 0 or n == 0:
        return out.view(*x.shape[:-1], n)
    on, size = target(), x.element_size()
    launch = launch_parameters(
        "matmul", f"{size} bytes, {rows_bucket(m)}x{n}x{k}", default_launch(on, m, size)
    )
    if on.arch == INTERPRETER:
        launch = {**launch, "BM": 64}  # its products of tiles follow their size
    span = span_of(k, 128)  # any BK divides it
    spans = triton.cdiv(k, span)
    split = spans > 1 and m <= SPLIT_ROWS
    parts = torch.empty((spans, m, n) if split else (0,), dtype=torch.float32, device=x.device)
    tiles = triton.cdiv(m, launch["BM"]), triton.cdiv(n, launch["BN"])
    _matmul_kernel[(*tiles, spans if split else 1)](
        rows,
        weight.contiguous(),
        out if bias is None else bias,
        out,
        parts,
        m,
        n,
        K=k,
        SPAN=span,
        SPLIT=split,
        BIAS=bias is not None,
        **launch,
    )
    if split:
        sum_parts(parts, bias, out)
    return out.view(*x.shape[:-1], n)
