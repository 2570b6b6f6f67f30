"""Which experts a token goes to, and tokens in the order of their experts.

Nothing here reads a value on the host: sizes are bounds that follow from shapes.
"""

from typing import NamedTuple

import torch

from servekit.kernels.language import jit, tl, triton


class Routing(NamedTuple):
    """How `top_k` experts are chosen for a token, and weighted.

    `score` is "softmax" over all experts (Mixtral, Qwen) or "sigmoid" of each (DeepSeek-V3).
    `renormalise`: the weights of a token are divided by their sum. Then they are times `scale`.
    """

    top_k: int
    score: str
    renormalise: bool
    scale: float = 1.0


class Routes(NamedTuple):
    """`weights` float32 [T, top_k] and `experts` int32 [T, top_k], the best first."""

    weights: torch.Tensor
    experts: torch.Tensor


class Alignment(NamedTuple):
    """Slots (token * top_k + choice) by expert, each expert's padded to whole tiles.

    `slots` int32 [tiles * rows], T * top_k where nothing is; `tile_experts` int32 [tiles], the
    number of experts for a tile that is not used.
    """

    slots: torch.Tensor
    tile_experts: torch.Tensor


LEAST_SUM = 1e-20
"""Added to a sum that divides, which sigmoids of very low logits make 0."""


def route_reference(
    logits: torch.Tensor, routing: Routing, correction: torch.Tensor | None = None
) -> Routes:
    """Experts for logits [T, experts]; the first of equal ones.

    `correction` float32 [experts] is added to the scores that choose, not to the weights.
    """
    wide = logits.float()
    scores = wide.softmax(-1) if routing.score == "softmax" else wide.sigmoid()
    merits = wide if correction is None else scores + correction
    experts = merits.argsort(dim=-1, descending=True, stable=True)[:, : routing.top_k]
    weights = scores.gather(1, experts)
    if routing.renormalise:
        weights = weights / (weights.sum(-1, keepdim=True) + LEAST_SUM)
    return Routes(weights * routing.scale, experts.int())


# fmt: off
@jit
def _route_kernel(
    logits_ptr, correction_ptr, weights_ptr, experts_ptr, scale, least_sum,
    EXPERTS: tl.constexpr, WIDTH: tl.constexpr, TOP_K: tl.constexpr, KEPT: tl.constexpr,
    SOFTMAX: tl.constexpr, CORRECTED: tl.constexpr, RENORMALISE: tl.constexpr,
):
    """A program a token; the best of what is left is taken TOP_K times."""
    row = tl.program_id(0).to(tl.int64)
    i, j = tl.arange(0, WIDTH), tl.arange(0, KEPT)
    inside = i < EXPERTS
    logits = tl.load(logits_ptr + row * EXPERTS + i, mask=inside, other=0.0).to(tl.float32)
    logits = tl.where(inside, logits, float("-inf"))
    if SOFTMAX:
        raised = tl.exp(logits - tl.max(logits, 0))
        scores = raised / tl.sum(raised, 0)
    else:
        scores = 1.0 / (1.0 + tl.exp(-logits))
    merits = logits
    if CORRECTED:
        merits = scores + tl.load(correction_ptr + i, mask=inside, other=0.0)
    left = inside
    weights = tl.zeros((KEPT,), tl.float32)
    experts = tl.zeros((KEPT,), tl.int32)
    for choice in tl.static_range(TOP_K):
        best = tl.max(tl.where(left, merits, float("-inf")), 0)
        expert = tl.min(tl.where(left & (merits == best), i, WIDTH), 0)
        # a NaN is no best: any expert that is left, so that what follows stays in its bounds
        expert = tl.where(expert == WIDTH, tl.min(tl.where(left, i, WIDTH), 0), expert)
        weight = tl.sum(tl.where(i == expert, scores, 0.0), 0)
        weights = tl.where(j == choice, weight, weights)
        experts = tl.where(j == choice, expert, experts)
        left = left & (i != expert)
    if RENORMALISE:
        weights /= tl.sum(weights, 0) + least_sum
    tl.store(weights_ptr + row * TOP_K + j, weights * scale, mask=j < TOP_K)
    tl.store(experts_ptr + row * TOP_K + j, experts, mask=j < TOP_K)
# fmt: on


def route_triton(
    logits: torch.Tensor, routing: Routing, correction: torch.Tensor | None = None
) -> Routes:
    """As `route_reference`; a token's result does not depend on the others."""
    tokens, experts = logits.shape
    size, device = (tokens, routing.top_k), logits.device
    weights = torch.empty(size, dtype=torch.float32, device=device)
    chosen = torch.empty(size, dtype=torch.int32, device=device)
    if tokens:
        _route_kernel[(tokens,)](
            logits.contiguous(),
            weights if correction is None else correction,
            weights,
            chosen,
            routing.scale,
            LEAST_SUM,
            EXPERTS=experts,
            WIDTH=triton.next_power_of_2(experts),
            TOP_K=routing.top_k,
            KEPT=triton.next_power_of_2(routing.top_k),
            SOFTMAX=routing.score == "softmax",
            CORRECTED=correction is not None,
            RENORMALISE=routing.renormalise,
            num_warps=1,
        )
    return Routes(weights, chosen)


def align(experts: torch.Tensor, num_experts: int, rows: int) -> Alignment:
    """Slots of experts [T, top_k] for tiles of `rows`: as many tiles as the worst routing needs.

    By torch on any device; a stable sort keeps the slots of an expert in their order.
    """
    flat = experts.flatten().long()
    count, device = flat.numel(), flat.device
    most = (count + min(count, num_experts) * (rows - 1)) // rows
    sizes = torch.zeros(num_experts, dtype=torch.int64, device=device)
    sizes = sizes.scatter_add(0, flat, torch.ones_like(flat))
    padded = (sizes + rows - 1) // rows * rows
    ends = padded.cumsum(0)
    by_expert, order = flat.sort(stable=True)
    rank = torch.arange(count, device=device) - (sizes.cumsum(0) - sizes)[by_expert]
    slots = torch.full((most * rows,), count, dtype=torch.int32, device=device)
    slots = slots.scatter(0, (ends - padded)[by_expert] + rank, order.int())
    starts = torch.arange(most, device=device) * rows
    return Alignment(slots, torch.searchsorted(ends, starts, right=True).int())
