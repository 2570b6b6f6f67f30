"""The tokens of each row that may be drawn, found without a sort and laid together.

A token's distance is (best - logit) / temperature, which is 0 or more: the bits of such floats,
read as integers, are in their order, so that bisection over 31 bits ends at the very value.
Narrowing finds the best logit of a row and a distance that no token of interest exceeds, and lays
the tokens within it together, in the order of their ids. They are a few hundred as a rule. Where
there are more than there is room for, the whole row is read instead.
"""

from dataclasses import dataclass

import torch

from servekit.kernels.adjust import Adjustments, adjust_triton
from servekit.kernels.draw import COLDEST, DrawTensors
from servekit.kernels.language import jit, tl, triton

_COLDEST = tl.constexpr(COLDEST)
INFINITE = tl.constexpr(0x7F800000)
"""The bits of the largest distance."""


# fmt: off
@jit
def _unsound(row_ptr, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    """Whether the largest of a row is no finite number."""
    most = tl.full((BLOCK,), float("-inf"), tl.float32)
    bad = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, VOCAB, BLOCK):
        i = start + tl.arange(0, BLOCK)
        x = tl.load(row_ptr + i, mask=i < VOCAB, other=float("-inf"))
        most = tl.where(x > most, x, most)
        bad |= ((x != x) | (x == float("inf"))).to(tl.int32)
    return (tl.max(bad, 0) != 0) | (tl.max(most, 0) == float("-inf"))


@jit
def _narrow_kernel(
    logits_ptr, raw_ptr, temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr,
    tokens_ptr, status_ptr, best_ptr, mass_ptr, count_ptr, near_ptr, ids_ptr, stride, raw_stride,
    VOCAB: tl.constexpr, ROOM: tl.constexpr, BLOCK: tl.constexpr, SCAN: tl.constexpr,
    ADJUSTED: tl.constexpr,
):
    """A program a row: status, best token, its logit, and the tokens near enough to it.

    `count` is how many these are, -1 for the whole row; `mass` the sum of all weights where it was
    needed.
    """
    row = tl.program_id(0).to(tl.int64)
    row_ptr = logits_ptr + row * stride
    lane_best = tl.full((BLOCK,), float("-inf"), tl.float32)
    lane_at = tl.zeros((BLOCK,), tl.int32)
    bad = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, VOCAB, BLOCK):
        i = start + tl.arange(0, BLOCK)
        x = tl.load(row_ptr + i, mask=i < VOCAB, other=float("-inf"))
        better = x > lane_best
        lane_best = tl.where(better, x, lane_best)
        lane_at = tl.where(better, i, lane_at)
        bad |= ((x != x) | (x == float("inf"))).to(tl.int32)
    best = tl.max(lane_best, 0)
    unsound = (tl.max(bad, 0) != 0) | (best == float("-inf"))
    status = tl.where(unsound, 1, 0)
    if ADJUSTED:
        raw_unsound = _unsound(raw_ptr + row * raw_stride, VOCAB, BLOCK)
        status = tl.where(raw_unsound, 1, tl.where(unsound, 2, 0))
    token = tl.min(tl.where(lane_best == best, lane_at, VOCAB), 0)
    tl.store(status_ptr + row, status)
    tl.store(tokens_ptr + row, tl.where(status == 0, token, 0).to(tl.int64))
    tl.store(best_ptr + row, best)
    temperature = tl.load(temperature_ptr + row)
    if (status == 0) & (temperature > 0.0):
        temperature = tl.maximum(temperature, _COLDEST)
        top_k, top_p = tl.load(top_k_ptr + row), tl.load(top_p_ptr + row)
        min_p = tl.load(min_p_ptr + row)
        reach, mass = _reach(
            row_ptr, lane_best, best, temperature, top_k, top_p, min_p, VOCAB, BLOCK
        )
        tl.store(mass_ptr + row, mass)
        count = tl.full((), -1, tl.int32)
        if reach < float("inf"):
            to = row * ROOM
            count = _lay_together(
                row_ptr, near_ptr + to, ids_ptr + to, best, temperature, reach, VOCAB, ROOM, SCAN
            )
        tl.store(count_ptr + row, count)


@jit
def _reach(
    row_ptr, lane_best, best, temperature, top_k, top_p, min_p,
    VOCAB: tl.constexpr, BLOCK: tl.constexpr,
):
    """No filter keeps a token farther than that; and the sum of all weights where it was needed."""
    reach = tl.full((), float("inf"), tl.float32)
    mass = tl.full((), 0.0, tl.float32)
    if (top_k > 0) & (top_k < VOCAB):
        if top_k <= BLOCK:
            # k lanes have a token as near as the k-th nearest lane: so near are k tokens
            distance = tl.div_rn(best - lane_best, temperature)
            reach = _kth_nearest(distance, top_k).to(tl.float32, bitcast=True)
    elif top_p < 1.0:
        for start in range(0, VOCAB, BLOCK):
            i = start + tl.arange(0, BLOCK)
            x = tl.load(row_ptr + i, mask=i < VOCAB, other=float("-inf"))
            mass += tl.sum(tl.exp(-tl.div_rn(best - x, temperature)), 0)
        # all tokens below this weight have together less than half of what top-p leaves out
        reach = -tl.log((1.0 - top_p) * mass / (2.0 * VOCAB))
    elif min_p > 0.0:
        reach = -tl.log(min_p) * 1.0001 + 0.0001
    return reach, mass


@jit
def _lay_together(
    row_ptr, near_ptr, ids_ptr, best, temperature, reach,
    VOCAB: tl.constexpr, ROOM: tl.constexpr, BLOCK: tl.constexpr,
):
    """How many tokens are within reach, -1 if there is no room for them."""
    count = tl.full((), 0, tl.int32)
    for start in range(0, VOCAB, BLOCK):
        i = start + tl.arange(0, BLOCK)
        x = tl.load(row_ptr + i, mask=i < VOCAB, other=float("-inf"))
        distance = tl.div_rn(best - x, temperature)
        near = (distance <= reach).to(tl.int32)
        found = tl.sum(near, 0)
        if (found > 0) & (count + found <= ROOM):
            at = count + tl.cumsum(near, 0) - 1
            tl.store(near_ptr + at, distance, mask=near != 0)
            tl.store(ids_ptr + at, i, mask=near != 0)
        count += found
    return tl.where(count > ROOM, -1, count)


@jit
def _kth_nearest(distance, k):
    """The bits of the k-th least of a vector of distances."""
    bits = distance.to(tl.int32, bitcast=True)
    low, high = tl.full((), -1, tl.int32), tl.full((), INFINITE, tl.int32)
    while high - low > 1:
        middle = low + (high - low) // 2
        if tl.sum((bits <= middle).to(tl.int32), 0) >= k:
            high = middle
        else:
            low = middle
    return high
# fmt: on


@dataclass(frozen=True, slots=True)
class Narrowed:
    """What the first kernel leaves to the second; see `_narrow_kernel`."""

    logits: torch.Tensor
    tokens: torch.Tensor
    status: torch.Tensor
    best: torch.Tensor
    mass: torch.Tensor
    count: torch.Tensor
    near: torch.Tensor
    ids: torch.Tensor


def default_launch(vocab: int) -> dict[str, int]:
    """`block` tokens are read at once, and `warps` read them; `room` of tokens laid together."""
    block = min(8192, triton.next_power_of_2(vocab))
    warps = min(16, max(1, block // 256))
    return {"block": block, "warps": warps, "draw_block": min(block, 2048), "room": 8192}


def narrow(
    logits: torch.Tensor,
    params: DrawTensors,
    adjustments: Adjustments | None,
    launch: dict[str, int],
) -> Narrowed:
    """The first kernel, after what adjusts; at least one row."""
    work = adjust_triton(logits, adjustments) if adjustments else logits
    (rows, vocab), room, device = logits.shape, launch["room"], logits.device

    def fresh(*size: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(size, dtype=dtype, device=device)

    found = Narrowed(
        logits=work,
        tokens=fresh(rows, dtype=torch.int64),
        status=fresh(rows, dtype=torch.int32),
        best=fresh(rows, dtype=torch.float32),
        mass=fresh(rows, dtype=torch.float32),
        count=fresh(rows, dtype=torch.int32),
        near=fresh(rows, room, dtype=torch.float32),
        ids=fresh(rows, room, dtype=torch.int32),
    )
    _narrow_kernel[(rows,)](
        work,
        logits,
        params.temperature,
        params.top_k,
        params.top_p,
        params.min_p,
        found.tokens,
        found.status,
        found.best,
        found.mass,
        found.count,
        found.near,
        found.ids,
        work.stride(0),
        logits.stride(0),
        VOCAB=vocab,
        ROOM=room,
        BLOCK=launch["block"],
        SCAN=max(1, launch["block"] // 4),
        ADJUSTED=bool(adjustments),
        num_warps=launch["warps"],
    )
    return found
