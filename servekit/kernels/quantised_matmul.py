"""Linear layer of narrow weights and wide activations: four bits in groups, int8, fp8 e4m3.

Weights become the type of x on their way to the tensor cores, exactly; scales multiply sums in
float32. Few rows (decode) are bound by the weights' bytes: K is split between programs, whose sums
are added in their order. Results are deterministic; they do depend on the number of rows, by the
tile and the split that are chosen for it (`matmul` has rows that do not).
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F

from servekit.errors import NotBuilt
from servekit.kernels.language import jit, tl, triton
from servekit.kernels.matmul import rows_bucket, sum_parts
from servekit.kernels.packing import unpack_int4
from servekit.kernels.target import Target, target
from servekit.kernels.tuned import Parameters, launch_parameters

SCALE_BLOCK = 128
GROUPS = (32, 64, 128)


@dataclass(frozen=True, slots=True)
class QuantisedWeight:
    """The weight [N, K] of a linear layer.

    int4: `data` uint8 [N, K/2] as `packing` lays it out, `scales` [K/G, N], `zeros` uint8 [K/G, N]
    or None where all are 8. int8 and fp8: `data` int8 or float8_e4m3fn [N, K], `scales` float32
    [N], or for fp8 [ceil(N/128), ceil(K/128)], one for each block of 128 x 128 as DeepSeek's are.
    """

    format: Literal["int4", "int8", "fp8"]
    data: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        n, width = self.data.shape
        return n, 2 * width if self.format == "int4" else width

    @property
    def group(self) -> int:
        """Values of K that share a scale; 0 where all of a row do."""
        if self.format == "int4":
            return self.shape[1] // len(self.scales)
        return SCALE_BLOCK if self.scales.ndim == 2 else 0


def dequantise(weight: QuantisedWeight) -> torch.Tensor:
    """The weight in float32, [N, K]."""
    n, k = weight.shape
    scales = weight.scales.float()
    if weight.format == "int4":
        zeros = 8.0 if weight.zeros is None else _along_k(weight.zeros.float().T, weight.group)
        values = unpack_int4(weight.data, weight.group).float()
        return (values - zeros) * _along_k(scales.T, weight.group)
    if weight.group == 0:
        return weight.data.float() * scales[:, None]
    blocks = _along_k(scales.repeat_interleave(SCALE_BLOCK, 0)[:n], SCALE_BLOCK)
    return weight.data.float() * blocks[:, :k]


def _along_k(values: torch.Tensor, group: int) -> torch.Tensor:
    return values.repeat_interleave(group, 1)


def quantised_matmul_reference(
    x: torch.Tensor, weight: QuantisedWeight, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """x [..., K] times the weight [N, K] transposed plus bias [N], in float32, as x's dtype."""
    wide = None if bias is None else bias.float()
    return F.linear(x.float(), dequantise(weight), wide).to(x.dtype)


# fmt: off
@jit
def _nibbles_less(nibbles, zeros, DTYPE: tl.constexpr):
    """nibbles - zeros in DTYPE, exactly. OR-ed into the mantissa of a power of two, a nibble is a
    number without a conversion: 0x4300 is 128 in bfloat16, 0x6400 is 1024 in float16."""
    if tl.bfloat16 == DTYPE:
        wide = (nibbles | 0x4300).to(tl.bfloat16, bitcast=True)
        less = (zeros + 128.0).to(tl.bfloat16)
    elif tl.float16 == DTYPE:
        wide = (nibbles | 0x6400).to(tl.float16, bitcast=True)
        less = (zeros + 1024.0).to(tl.float16)
    else:
        wide, less = nibbles.to(tl.float32), zeros
    return wide - less[None, :]


@jit
def _finish(
    total, rows, columns, m, n, bias_ptr, out_ptr, parts_ptr,
    SPLIT: tl.constexpr, BIAS: tl.constexpr,
):
    at = rows[:, None].to(tl.int64) * n + columns[None, :]
    inside = (rows[:, None] < m) & (columns[None, :] < n)
    if SPLIT:
        tl.store(parts_ptr + tl.program_id(2).to(tl.int64) * m * n + at, total, mask=inside)
    else:
        if BIAS:
            bias = tl.load(bias_ptr + columns, mask=columns < n, other=0.0)
            total += bias.to(tl.float32)[None, :]
        tl.store(out_ptr + at, total.to(out_ptr.dtype.element_ty), mask=inside)


@jit(do_not_specialize=["m"])
def _int4_kernel(
    x_ptr, data_ptr, scales_ptr, zeros_ptr, bias_ptr, out_ptr, parts_ptr, m, n,
    K: tl.constexpr, GROUP: tl.constexpr, SPAN: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    ZEROS: tl.constexpr, SPLIT: tl.constexpr, BIAS: tl.constexpr,
):
    """A turn of the loop takes a group: its two halves, one scale and one zero point a column."""
    HALF: tl.constexpr = GROUP // 2
    DTYPE: tl.constexpr = x_ptr.dtype.element_ty
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    k = tl.arange(0, HALF)
    in_rows, in_columns = rows[:, None] < m, columns < n
    x_at = x_ptr + rows[:, None].to(tl.int64) * K + k[None, :]
    data_at = data_ptr + columns[None, :].to(tl.int64) * (K // 2) + k[:, None]
    first, last = 0, K // GROUP
    if SPLIT:
        first = tl.program_id(2) * (SPAN // GROUP)
        last = tl.minimum(first + SPAN // GROUP, K // GROUP)
    total = tl.zeros((BM, BN), tl.float32)
    for group in range(first, last):
        data = tl.load(
            data_at + group * HALF, mask=in_columns[None, :], other=0, eviction_policy="evict_first"
        )
        scale = tl.load(scales_ptr + group * n + columns, mask=in_columns, other=0.0)
        zeros = tl.full((BN,), 8.0, tl.float32)
        if ZEROS:
            zeros = tl.load(zeros_ptr + group * n + columns, mask=in_columns, other=0)
            zeros = zeros.to(tl.float32)
        low = tl.load(x_at + group * GROUP, mask=in_rows, other=0.0)
        high = tl.load(x_at + group * GROUP + HALF, mask=in_rows, other=0.0)
        bits = data.to(tl.uint16)
        part = tl.dot(low, _nibbles_less(bits & 15, zeros, DTYPE), input_precision="ieee")
        part = tl.dot(high, _nibbles_less(bits >> 4, zeros, DTYPE), part, input_precision="ieee")
        total += part * scale.to(tl.float32)[None, :]
    _finish(total, rows, columns, m, n, bias_ptr, out_ptr, parts_ptr, SPLIT, BIAS)


@jit(do_not_specialize=["m"])
def _bytes_kernel(
    x_ptr, data_ptr, scales_ptr, bias_ptr, out_ptr, parts_ptr, m, n,
    K: tl.constexpr, GROUP: tl.constexpr, SPAN: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr, BITS: tl.constexpr, SPLIT: tl.constexpr, BIAS: tl.constexpr,
):
    """int8 and fp8. BITS: the bytes of fp8 e4m3, for chips without the type: seven bits under
    bfloat16's sign are the value times 2^-120, exactly."""
    DTYPE: tl.constexpr = x_ptr.dtype.element_ty
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    in_rows, in_columns = rows[:, None] < m, columns < n
    x_at = x_ptr + rows[:, None].to(tl.int64) * K
    data_at = data_ptr + columns[None, :].to(tl.int64) * K
    first, last = 0, K
    if SPLIT:
        first = tl.program_id(2) * SPAN
        last = tl.minimum(first + SPAN, K)
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(first, last, BK):
        at = start + k
        data = tl.load(
            data_at + at[:, None], mask=in_columns[None, :] & (at[:, None] < K), other=0.0,
            eviction_policy="evict_first",
        )
        if BITS:
            bits = data.to(tl.uint16)
            bits = ((bits & 0x80) << 8) | ((bits & 0x7F) << 4)
            data = bits.to(tl.bfloat16, bitcast=True).to(tl.float32) * 1.329227995784916e36
        x = tl.load(x_at + at[None, :], mask=in_rows & (at[None, :] < K), other=0.0)
        if GROUP:
            part = tl.dot(x, data.to(DTYPE), input_precision="ieee")
            scale_at = columns // GROUP * ((K + GROUP - 1) // GROUP) + start // GROUP
            total += part * tl.load(scales_ptr + scale_at, mask=in_columns, other=0.0)[None, :]
        else:
            total = tl.dot(x, data.to(DTYPE), total, input_precision="ieee")
    if GROUP == 0:
        total *= tl.load(scales_ptr + columns, mask=in_columns, other=0.0)[None, :]
    _finish(total, rows, columns, m, n, bias_ptr, out_ptr, parts_ptr, SPLIT, BIAS)
# fmt: on


def default_launch(on: Target, m: int, n: int, k: int, element_bytes: int) -> Parameters:
    """Few rows: 16 of them, and K split until there are four programs a multiprocessor, as weights
    in flight need; more rows: tiles of the tensor cores' full size, K whole."""
    if element_bytes == 4:
        return {"BM": 16, "BN": 32, "splits": 1, "num_warps": 4, "num_stages": 2}
    if m <= 16:
        splits, tiles = 1, -(-n // 64)
        while splits < 16 and tiles * splits < 4 * on.processors and k >= 1024 * splits:
            splits *= 2
        stages = 2 if on.is_amd else 4
        return {"BM": 16, "BN": 64, "splits": splits, "num_warps": 4, "num_stages": stages}
    stages = 2 if on.is_amd or not on.at_least(90) else 3
    if m <= 64:
        return {"BM": 64, "BN": 64, "splits": 1, "num_warps": 4, "num_stages": stages}
    return {"BM": 128, "BN": 64, "splits": 1, "num_warps": 8, "num_stages": stages}


def quantised_matmul_triton(
    x: torch.Tensor, weight: QuantisedWeight, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """As `quantised_matmul_reference`. Raises NotBuilt for groups of four bits not in GROUPS."""
    rows = x.reshape(-1, x.shape[-1]).contiguous()
    m, (n, k), group = len(rows), weight.shape, weight.group
    out = torch.empty((m, n), dtype=x.dtype, device=x.device)
    if m == 0 or n == 0:
        return out.view(*x.shape[:-1], n)
    if weight.format == "int4" and group not in GROUPS:
        raise NotBuilt(f"weights of four bits in groups of {group}; kernels read {GROUPS}")
    on = target()
    key = f"{weight.format} {group}, {rows_bucket(m)}x{n}x{k}"
    default = default_launch(on, m, n, k, x.element_size())
    launch = dict(launch_parameters("quantised_matmul", key, default))
    span = -(-triton.cdiv(k, launch.pop("splits")) // 256) * 256
    splits = triton.cdiv(k, span)
    parts = torch.empty(
        (splits, m, n) if splits > 1 else (0,), dtype=torch.float32, device=x.device
    )
    grid = triton.cdiv(m, launch["BM"]), triton.cdiv(n, launch["BN"]), splits
    sizes = {"K": k, "GROUP": group, "SPAN": span, "SPLIT": splits > 1, "BIAS": bias is not None}
    ends = (out if bias is None else bias, out, parts, m, n)
    if weight.format == "int4":
        zeros = weight.data if weight.zeros is None else weight.zeros
        pointers = (rows, weight.data, weight.scales, zeros)
        _int4_kernel[grid](*pointers, *ends, **sizes, ZEROS=weight.zeros is not None, **launch)
    else:
        as_bits = weight.format == "fp8" and not on.has_fp8
        data = weight.data.view(torch.uint8) if as_bits else weight.data
        block = SCALE_BLOCK if group else 64
        sizes |= {"BITS": as_bits, "BK": block}
        _bytes_kernel[grid](rows, data, weight.scales, *ends, **sizes, **launch)
    if splits > 1:
        sum_parts(parts, bias, out)
    return out.view(*x.shape[:-1], n)
