"""Random draws: temperature, top-k, top-p, min-p, and one uniform number a token."""

from dataclasses import dataclass

import torch

COLDEST = 1e-30
"""Lower temperatures draw the same, down to where float32 has only zero, and 0 / 0 is no number."""

NUCLEUS_WIDTHS = (256, 4096)
"""How many best tokens are tried before a whole row is sorted for top-p."""


@dataclass(frozen=True, slots=True)
class DrawParams:
    """A value a row; temperature above 0, top_k 0 for all tokens, uniform in [0, 1)."""

    temperature: list[float]
    top_k: list[int]
    top_p: list[float]
    min_p: list[float]
    uniform: list[float]


@dataclass(frozen=True, slots=True)
class DrawTensors:
    """On the device, [rows]: `temperature` float32 (0: the best token), `top_k` int32 (0: all),
    `top_p` float32 (1: all), `min_p` float32 (0: all), `uniform` float64 in [0, 1).

    Values are read on the device only, so that a captured graph may be replayed with others.
    """

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    uniform: torch.Tensor

    def lists(self) -> DrawParams:
        return DrawParams(
            temperature=self.temperature.tolist(),
            top_k=self.top_k.tolist(),
            top_p=self.top_p.tolist(),
            min_p=self.min_p.tolist(),
            uniform=self.uniform.tolist(),
        )


def filtered(logits: torch.Tensor, params: DrawParams) -> torch.Tensor:
    """What may be drawn from logits, float32 [rows, vocab], and in what proportion; sums below 1.

    Filters narrow one after another: top-k, then top-p over what it leaves, then min-p. Tokens
    equal to the last one that a filter keeps are all kept.
    """
    vocab = logits.shape[-1]
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
    return probs


def draw(logits: torch.Tensor, params: DrawParams) -> torch.Tensor:
    """One token id, int64 [rows], for logits, float32 [rows, vocab]."""
    uniform = torch.tensor(params.uniform, dtype=torch.float64, device=logits.device)
    return chosen(filtered(logits, params), uniform)


def chosen(weights: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """The first token of each row of weights [rows, vocab] whose running sum passes its part of
    the whole, float64 [rows]: int64 [rows].

    In order of token ids: an order by probability would let two nearly equal ones change places
    from one batch to another.
    """
    running = weights.cumsum(-1, dtype=torch.float64)
    passed = torch.searchsorted(running, uniform[:, None] * running[:, -1:], right=True)
    # a row that is NaN may pass nowhere; its token is thrown away
    return passed[:, 0].clamp_(max=weights.shape[-1] - 1)


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
