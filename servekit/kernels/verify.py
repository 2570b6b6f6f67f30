"""Speculative decoding: which guesses of a draft stand, and the token that follows them.

A guess d of a draft with probabilities q stands with probability min(1, p(d) / q(d)), where p is
what the model's own logits and the request's parameters make; where it does not, the token is drawn
from the positive part of p - q (Leviathan et al. 2023). What comes is distributed as if each token
had been drawn from p alone. At temperature 0 a guess stands where it is the best token.

Rows are computed each by itself, so that a result is the same in any batch; then the first guess of
a request that does not stand ends it.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch

from servekit.kernels.adjust import Adjustments, adjust_reference
from servekit.kernels.draw import DrawTensors, chosen, filtered
from servekit.kernels.kept import distance_bits, first_past, last_kept, mass_of, open_row
from servekit.kernels.language import jit, tl
from servekit.kernels.narrow import default_launch, narrow
from servekit.kernels.sample import FINE, row_status
from servekit.kernels.tuned import launch_parameters


@dataclass(frozen=True, slots=True)
class Drafts:
    """R requests in N rows, one after another: a row for each guess, and one after the last guess.

    `starts` int32 [R + 1]; `most` rows of one request, or more; `tokens` int32 [N]: the guess at
    each row, -1 at a request's last. `probs` float32 [N, vocab] are the draft's, in their places; a
    draft without them (an n-gram) is sure of its guess. `accept` float64 [N] in [0, 1).
    """

    starts: torch.Tensor
    most: int
    tokens: torch.Tensor
    accept: torch.Tensor
    probs: torch.Tensor | None = None


class Verified(NamedTuple):
    """`tokens` int64 [R, most]: the guesses that stand, the token after them, then -1; `accepted`
    int32 [R] guesses; `status` int32 [R] of the row that the last token is of, see `Sampled`."""

    tokens: torch.Tensor
    accepted: torch.Tensor
    status: torch.Tensor


def verify_reference(
    logits: torch.Tensor,
    params: DrawTensors,
    drafts: Drafts,
    adjustments: Adjustments | None = None,
) -> Verified:
    """From logits float32 [N, vocab]; `params` are of each row, its `uniform` for the token that is
    drawn where no guess stands."""
    work = adjust_reference(logits, adjustments) if adjustments else logits
    status = row_status(logits, work)
    sound = work.masked_fill((status != FINE)[:, None], 0)
    best, greedy = sound.argmax(-1), params.temperature <= 0
    weights = filtered(sound, params.lists())
    probs = weights / weights.sum(-1, keepdim=True)
    rows = torch.arange(len(logits), device=logits.device)
    guess, has_guess = drafts.tokens.long().clamp_min(0), drafts.tokens >= 0
    if drafts.probs is None:
        draft = torch.zeros_like(probs)
        draft[rows, guess] = 1.0
    else:
        draft = drafts.probs
    stands = drafts.accept * draft[rows, guess] < probs[rows, guess].double()
    stands = torch.where(greedy, guess == best, stands)
    left = (probs - draft.where(has_guess[:, None], 0)).clamp_min(0)
    left = torch.where(left.sum(-1, keepdim=True) > 0, left, probs)
    drawn = torch.where(greedy, best, chosen(left, params.uniform))
    return _ended(drafts, stands & has_guess, drawn, status)


def _ended(
    drafts: Drafts, stands: torch.Tensor, drawn: torch.Tensor, status: torch.Tensor
) -> Verified:
    """Rows put together by request; by shapes alone."""
    place = torch.arange(drafts.most, device=stands.device)
    first, end = drafts.starts[:-1, None].long(), drafts.starts[1:, None].long()
    rows = torch.minimum(first + place, end - 1)
    standing = (stands & (status == FINE))[rows].int().cumprod(1)
    standing = standing * (first + place < end)
    accepted = standing.sum(1)
    last = (first[:, 0] + accepted).clamp(max=end[:, 0] - 1)
    tokens = torch.where(standing.bool(), drafts.tokens.long()[rows], -1)
    tokens = torch.where(place == accepted[:, None], drawn[last][:, None], tokens)
    return Verified(tokens, accepted.int(), status[last])


# fmt: off
@jit
def _verify_kernel(
    logits_ptr, temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr, uniform_ptr,
    guess_ptr, accept_ptr, draft_ptr, draft_stride,
    tokens_ptr, stands_ptr, status_ptr, best_ptr, mass_ptr, count_ptr, near_ptr, ids_ptr, stride,
    VOCAB: tl.constexpr, ROOM: tl.constexpr, BLOCK: tl.constexpr, DRAFT: tl.constexpr,
):
    """A program a row: whether its guess stands, and what is drawn if not. `tokens` has the best
    token where temperature is 0."""
    row = tl.program_id(0).to(tl.int64)
    guess = tl.load(guess_ptr + row)
    stands = guess == tl.load(tokens_ptr + row)
    if (tl.load(status_ptr + row) == 0) & (tl.load(temperature_ptr + row) > 0.0):
        line = open_row(
            row, logits_ptr, temperature_ptr, best_ptr, count_ptr, near_ptr, ids_ptr, stride,
            VOCAB, ROOM,
        )
        min_p = tl.load(min_p_ptr + row)
        mass = tl.load(mass_ptr + row).to(tl.float64)
        top_k, top_p = tl.load(top_k_ptr + row), tl.load(top_p_ptr + row)
        last = last_kept(line, top_k, top_p, mass, VOCAB, BLOCK)
        total = mass_of(line, last, min_p, logits_ptr, 0.0, -1, VOCAB, BLOCK, False)
        uniform = tl.load(uniform_ptr + row)
        own_ptr = draft_ptr + row * draft_stride
        left = tl.full((), 0.0, tl.float64)
        stands = False
        if guess >= 0:
            logit = tl.load(logits_ptr + row * stride + guess)
            distance = tl.div_rn(line[5] - logit, line[6])
            weight = tl.exp(-distance)
            kept = (distance_bits(distance) <= last) & (weight >= min_p)
            of_draft = tl.full((), 1.0, tl.float64)
            if DRAFT:
                of_draft = tl.load(own_ptr + guess).to(tl.float64)
            wanted = tl.load(accept_ptr + row) * of_draft * total
            stands = kept & (wanted < weight.to(tl.float64))
            scale = total.to(tl.float32)
            left = mass_of(line, last, min_p, own_ptr, scale, guess, VOCAB, BLOCK, DRAFT)
        # from p where there is no guess, or nothing left of p - q, which only rounding can do
        from_p = left <= 0.0
        token = first_past(
            line, last, min_p, own_ptr, tl.where(from_p, 0.0, total).to(tl.float32),
            tl.where(from_p, -1, guess), uniform * tl.where(from_p, total, left),
            VOCAB, BLOCK, DRAFT,
        )
        tl.store(tokens_ptr + row, token.to(tl.int64))
    tl.store(stands_ptr + row, stands & (guess >= 0))
# fmt: on


def verify_triton(
    logits: torch.Tensor,
    params: DrawTensors,
    drafts: Drafts,
    adjustments: Adjustments | None = None,
    **launch: int,
) -> Verified:
    """As `verify_reference`; each row of `logits` and `drafts.probs` is contiguous. Nothing is read
    on the host."""
    rows, vocab = logits.shape
    requests = len(drafts.starts) - 1
    if not requests:
        none = logits.new_empty(0, dtype=torch.int32)
        return Verified(logits.new_empty((0, drafts.most), dtype=torch.int64), none, none)
    launch = launch_parameters("sample", f"vocab={vocab}", default_launch(vocab)) | launch
    found = narrow(logits, params, adjustments, launch)
    stands = torch.empty(rows, dtype=torch.bool, device=logits.device)
    probs, block = drafts.probs, launch["draw_block"]
    _verify_kernel[(rows,)](
        found.logits,
        params.temperature,
        params.top_k,
        params.top_p,
        params.min_p,
        params.uniform,
        drafts.tokens,
        drafts.accept,
        found.logits if probs is None else probs,
        0 if probs is None else probs.stride(0),
        found.tokens,
        stands,
        found.status,
        found.best,
        found.mass,
        found.count,
        found.near,
        found.ids,
        found.logits.stride(0),
        VOCAB=vocab,
        ROOM=launch["room"],
        BLOCK=block,
        DRAFT=probs is not None,
        num_warps=min(4, max(1, block // 256)),
    )
    return _ended(drafts, stands, found.tokens, found.status)
