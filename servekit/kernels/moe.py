"""Mixture of experts: a gated feed-forward net for each token by each of its experts.

Products of all experts are one launch over tokens in the order of their experts; weighted results
are added in the order of a token's choices. Deterministic. A token's result depends on the others
only by the tile that the number of tokens chooses, and not at all in one order.
"""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F

from servekit.kernels.gated import gated_activation_reference, gated_activation_triton
from servekit.kernels.language import jit, tl, triton
from servekit.kernels.matmul import rows_bucket
from servekit.kernels.moe_routing import (
    Alignment,
    Routes,
    align,
    route_reference,
    route_triton,
)
from servekit.kernels.sizes import padded
from servekit.kernels.target import Target, target
from servekit.kernels.tuned import Parameters, launch_parameters


def moe_reference(
    x: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor, routes: Routes, activation: str
) -> torch.Tensor:
    """x [T, H] by gate_up [E, 2 I, H] and down [E, H, I] of each token's experts, weighted.

    Each product is rounded to x's dtype; the weighted sum is in float32, in the order of a token's
    choices. An expert computes its tokens together; how many those are is read on the host.
    """
    (tokens, width), top_k = x.shape, routes.experts.shape[1]
    flat = routes.experts.flatten().long()
    by_expert = flat.argsort(stable=True)
    parts = x.new_empty((tokens * top_k, width))
    ends = flat.bincount(minlength=len(down)).cumsum(0).tolist()
    for expert, (start, end) in enumerate(pairwise([0, *ends])):
        if start < end:
            slots = by_expert[start:end]
            rows = x[slots // top_k]
            parts[slots] = _one_expert(rows, gate_up[expert], down[expert], activation)
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for part, weight in zip(
        parts.view(tokens, top_k, width).unbind(1), routes.weights.unbind(1), strict=True
    ):
        out += part.float().mul_(weight[:, None])
    return out.to(x.dtype)


def _one_expert(
    rows: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor, activation: str
) -> torch.Tensor:
    count = len(rows)
    if rows.is_cpu:
        rows = F.pad(rows, (0, 0, 0, padded(count) - count))
    inner = gated_activation_reference(F.linear(rows, gate_up), activation)
    return F.linear(inner, down)[:count]


# fmt: off
@jit(do_not_specialize=["slots"])
def _grouped_kernel(
    x_ptr, weight_ptr, out_ptr, slots_ptr, tile_experts_ptr, slots,
    EXPERTS: tl.constexpr, N: tl.constexpr, K: tl.constexpr, SHARE: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):
    """Row `slot` of out is row `slot // SHARE` of x times its expert's weight."""
    tile = tl.program_id(0)
    expert = tl.load(tile_experts_ptr + tile)
    if expert < EXPERTS:
        slot = tl.load(slots_ptr + tile * BM + tl.arange(0, BM))
        columns = tl.program_id(1) * BN + tl.arange(0, BN)
        k = tl.arange(0, BK)
        in_rows, in_columns = (slot < slots)[:, None], (columns < N)[None, :]
        x_at = x_ptr + (slot // SHARE)[:, None].to(tl.int64) * K
        weight_at = weight_ptr + expert.to(tl.int64) * N * K + columns[None, :].to(tl.int64) * K
        total = tl.zeros((BM, BN), tl.float32)
        for start in range(0, K, BK):
            at = start + k
            x = tl.load(x_at + at[None, :], mask=in_rows & (at[None, :] < K), other=0.0)
            weight = tl.load(
                weight_at + at[:, None], mask=in_columns & (at[:, None] < K), other=0.0
            )
            total = tl.dot(x, weight, total, input_precision="ieee")
        at = slot[:, None].to(tl.int64) * N + columns[None, :]
        tl.store(out_ptr + at, total.to(out_ptr.dtype.element_ty), mask=in_rows & in_columns)


@jit
def _combine_kernel(
    parts_ptr, weights_ptr, out_ptr, WIDTH: tl.constexpr, TOP_K: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = i < WIDTH
    total = tl.zeros((BLOCK,), tl.float32)
    for choice in tl.static_range(TOP_K):
        slot = row * TOP_K + choice
        part = tl.load(parts_ptr + slot * WIDTH + i, mask=inside, other=0.0).to(tl.float32)
        total += part * tl.load(weights_ptr + slot)
    tl.store(out_ptr + row * WIDTH + i, total.to(out_ptr.dtype.element_ty), mask=inside)
# fmt: on


FULL_TILE = 64
"""Rows of a tile that tensor cores fill: chips sum in another order with instructions for fewer."""


def default_launch(on: Target, slots_an_expert: int, element_bytes: int) -> Parameters:
    """Tiles of 16 rows while an expert gets few, else full ones."""
    if element_bytes == 4:
        return {"BM": 16, "BN": 32, "BK": 32, "num_warps": 4, "num_stages": 2}
    stages = 2 if on.is_amd else 3
    rows = 16 if slots_an_expert <= 16 else FULL_TILE
    return {"BM": rows, "BN": 64, "BK": 64, "num_warps": 4, "num_stages": stages}


def moe_triton(
    x: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    routes: Routes,
    activation: str,
    *,
    one_order: bool = False,
) -> torch.Tensor:
    """As `moe_reference`; weights are contiguous and of x's dtype. Nothing is read on the host.

    `one_order`: tiles do not follow the number of tokens, so that a token's result has the same
    bits alone and beside any others; few tokens then leave most of a tile empty.
    """
    (tokens, width), (experts, _, inner) = x.shape, down.shape
    top_k = routes.experts.shape[1]
    out = torch.empty((tokens, width), dtype=x.dtype, device=x.device)
    if tokens == 0:
        return out
    share, size = FULL_TILE if one_order else -(-tokens * top_k // experts), x.element_size()
    key = f"{size} bytes, {experts} experts, {rows_bucket(share)}x{width}x{inner}"
    launch = launch_parameters("moe", key, default_launch(target(), share, size))
    order = align(routes.experts, experts, launch["BM"])
    hidden = _grouped(x.contiguous(), gate_up, order, tokens * top_k, top_k, launch)
    hidden = gated_activation_triton(hidden, activation)
    parts = _grouped(hidden, down, order, tokens * top_k, 1, launch)
    block = min(1024, triton.next_power_of_2(width))
    _combine_kernel[(tokens, triton.cdiv(width, block))](
        parts, routes.weights, out, WIDTH=width, TOP_K=top_k, BLOCK=block, num_warps=4
    )
    return out


def _grouped(
    x: torch.Tensor,
    weight: torch.Tensor,
    order: Alignment,
    slots: int,
    share: int,
    launch: Parameters,
) -> torch.Tensor:
    experts, n, k = weight.shape
    out = torch.empty((slots, n), dtype=x.dtype, device=x.device)
    _grouped_kernel[(len(order.tile_experts), triton.cdiv(n, launch["BN"]))](
        x,
        weight,
        out,
        order.slots,
        order.tile_experts,
        slots,
        EXPERTS=experts,
        N=n,
        K=k,
        SHARE=share,
        **launch,
    )
    return out


class Experts(NamedTuple):
    """The two halves of a mixture: which experts, and what they say."""

    route: Callable[..., Routes]
    """logits [T, experts], Routing, correction [experts] or None."""
    mix: Callable[..., torch.Tensor]
    """As `moe_reference`."""


def experts_torch() -> Experts:
    return Experts(route_reference, moe_reference)


def experts_triton(*, one_order: bool) -> Experts:
    return Experts(route_triton, partial(moe_triton, one_order=one_order))
