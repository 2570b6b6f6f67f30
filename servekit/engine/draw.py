"""Random draws: temperature, top-k, top-p, min-p, and one uniform number a token."""

from dataclasses import dataclass

import numpy as np
import torch

PAGE = 64
"""Uniform numbers made at once."""

COLDEST = 1e-30
"""Lower temperatures draw the same, down to where float32 has only zero, and 0 / 0 is no number."""

NUCLEUS_WIDTHS = (256, 4096)
"""How many best tokens are tried before a whole row is sorted for top-p."""


class Uniforms:
    """Numbers in [0, 1) that depend on seed and index alone.

    Philox (Salmon et al. 2011) is a function from (key, counter) to bits, so that the draw for an
    output position is the same alone, in any batch, and when it is made again after preemption.
    """

    __slots__ = ("_number", "_page", "_seed")

    def __init__(self, seed: int) -> None:
        self._seed = seed % 2**64
        self._number = -1
        self._page: list[float] = []

    def __getitem__(self, index: int) -> float:
        number, place = divmod(index, PAGE)
        if number != self._number:
            bits = np.random.Philox(key=self._seed, counter=number << 64).random_raw(PAGE)
            # 50 bits: the largest stays below 1 when multiplied by a sum of probabilities
            self._page = ((bits >> np.uint64(14)) * 2.0**-50).tolist()
            self._number = number
        return self._page[place]


@dataclass(frozen=True, slots=True)
class DrawParams:
    """A value a row; temperature above 0, top_k 0 for all tokens, uniform in [0, 1)."""

    temperature: list[float]
    top_k: list[int]
    top_p: list[float]
    min_p: list[float]
    uniform: list[float]


def draw(logits: torch.Tensor, params: DrawParams) -> torch.Tensor:
    """One token id, int64 [rows], for logits, float32 [rows, vocab].

    Filters narrow one after another: top-k, then top-p over what it leaves, then min-p. The token
    is the first whose running probability passes the uniform number, in order of token ids: an
    order by probability would let two nearly equal ones change places from one batch to another.
    """
    rows, vocab = logits.shape
    temperature = _column(params.temperature, logits).clamp_min_(COLDEST)
    scaled = (logits - logits.amax(-1, keepdim=True)) / temperature
    limits = [k if 0 < k < vocab else vocab for k in params.top_k]
    if min(limits) < vocab:
        scaled.masked_fill_(scaled < _kth_best(scaled, limits), -torch.inf)
    probs = scaled.softmax(-1)
    if min(params.top_p) < 1:
        probs.masked_fill_(probs < _nucleus_floor(probs, _column(params.top_p, logits)), 0)
    if max(params.min_p) > 0:
        probs.masked_fill_(probs < _column(params.min_p, logits) * probs.amax(-1, keepdim=True), 0)
    running = probs.cumsum(-1, dtype=torch.float64)
    uniform = torch.tensor(params.uniform, dtype=torch.float64, device=logits.device)
    passed = torch.searchsorted(running, uniform[:, None] * running[:, -1:], right=True)
    # a row that is NaN may pass nowhere; its token is thrown away
    return passed.view(rows).clamp_(max=vocab - 1)


def _kth_best(scaled: torch.Tensor, limits: list[int]) -> torch.Tensor:
    """[rows, 1] the value of each row's k-th best token; -inf where all are kept."""
    vocab = scaled.shape[-1]
    widest = max(limit for limit in limits if limit < vocab)
    best = scaled.topk(widest).values
    place = torch.tensor(limits, device=scaled.device).clamp(max=widest)[:, None] - 1
    everything = torch.tensor([limit == vocab for limit in limits], device=scaled.device)
    return best.gather(-1, place).masked_fill_(everything[:, None], -torch.inf)


def _nucleus_floor(probs: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """[rows, 1] the least probability in the smallest set that has `top_p` of the mass.

    The set is nearly always among a few hundred best tokens, and these are found fifteen times
    faster than a row is sorted.
    """
    vocab = probs.shape[-1]
    for width in (*(width for width in NUCLEUS_WIDTHS if width < vocab), vocab):
        best = probs.topk(width).values
        running = best.cumsum(-1)
        short = (running[:, -1:] < top_p) & (top_p < 1)
        if width == vocab or not short.any():
            break
    inside = (running - best < top_p).sum(-1, keepdim=True).clamp_(min=1)
    return best.gather(-1, inside - 1).masked_fill_(top_p >= 1, 0)


def _column(values: list[float], like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32, device=like.device)[:, None]
