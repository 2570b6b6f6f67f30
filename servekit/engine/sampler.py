"""From logits to one token a row, each by the words of its own request.

Order of operations, that of Hugging Face generate:

    logit_bias, min_tokens -> repetition, frequency, presence penalty
        -> grammar -> temperature -> top_k -> top_p -> min_p

Temperature 0 takes the best token after bias, penalties and grammar. Logprobs are of the model's
own distribution, before all of it. Rows never see each other: one whose logits are not numbers, or
whose parameters leave nothing to choose from, fails alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from servekit.engine.constraint import forbid
from servekit.engine.messages import TokenLogprobs
from servekit.engine.penalties import add_sparse, penalise
from servekit.engine.sampling_inputs import adjustments_of, draw_tensors
from servekit.engine.sampling_state import SamplingState
from servekit.kernels.draw import DrawParams, draw
from servekit.kernels.sample import FINE, SampleKernel
from servekit.kernels.sample import NOT_FINITE as NO_NUMBERS

NOT_FINITE = "the model's logits are not finite numbers"
NOTHING_LEFT = "logit_bias, min_tokens, penalties and grammar leave no token to choose from"


@dataclass(frozen=True, slots=True)
class Drawn:
    """What a step sampled, by row; a row in `failed` has a token of no meaning.

    Of those, the ones in `blamed` failed by what their requests ask for.
    """

    tokens: list[int]
    failed: dict[int, str] = field(default_factory=dict)
    blamed: set[int] = field(default_factory=set)
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)


def sample(
    logits: torch.Tensor, states: Sequence[SamplingState], kernel: SampleKernel | None = None
) -> Drawn:
    """Draws from logits, float32 [rows, vocab], one row for each state; they are left as they are.

    By `kernel`, or by torch, one operation after another. An exception in handling the rows
    together makes each be tried alone.
    """
    try:
        return _sample(logits, states) if kernel is None else _in_one(logits, states, kernel)
    except Exception as fault:
        if len(states) == 1:
            return Drawn([0], failed={0: f"sampling failed: {fault}"})
    alone = [sample(logits[row : row + 1], [state], kernel) for row, state in enumerate(states)]
    return Drawn(
        tokens=[drawn.tokens[0] for drawn in alone],
        failed={row: drawn.failed[0] for row, drawn in enumerate(alone) if drawn.failed},
        blamed={row for row, drawn in enumerate(alone) if drawn.blamed},
        logprobs={row: drawn.logprobs[0] for row, drawn in enumerate(alone) if drawn.logprobs},
    )


def _sample(logits: torch.Tensor, states: Sequence[SamplingState]) -> Drawn:
    # max carries NaN and +inf, and is -inf only where everything is: one pass finds bad rows too
    best, tokens = logits.max(-1)
    failed = dict.fromkeys(_not_finite(best), NOT_FINITE)
    gave_up: dict[int, str] = {}
    work = logits
    changed = [row for row, state in enumerate(states) if state.changes_logits]
    if changed:
        work = logits.clone()
        gave_up = _adjust(work, changed, states)
        best, tokens = work.max(-1)
        failed = gave_up | dict.fromkeys(_not_finite(best), NOTHING_LEFT) | failed
    random = [row for row, state in enumerate(states) if state.sampling.temperature > 0]
    if random:
        picked = work if len(random) == len(states) else work[random]
        tokens[random] = draw(picked, _draw_params([states[row] for row in random]))
    chosen = tokens.tolist()
    blamed = {row for row, why in gave_up.items() if failed[row] is why}
    return Drawn(chosen, failed, blamed, _logprobs(logits, chosen, states))


def _in_one(logits: torch.Tensor, states: Sequence[SamplingState], kernel: SampleKernel) -> Drawn:
    """All on the device, from which only tokens and what failed come back."""
    what, gave_up = adjustments_of(states, logits.device)
    drawn = kernel(logits, draw_tensors(states, logits.device), what)
    chosen, status = torch.stack((drawn.tokens, drawn.status.long())).tolist()
    failed = dict(gave_up)
    for row, fault in enumerate(status):
        if fault != FINE:
            failed[row] = NOT_FINITE if fault == NO_NUMBERS else NOTHING_LEFT
    blamed = {row for row, why in gave_up.items() if failed[row] is why}
    return Drawn(chosen, failed, blamed, _logprobs(logits, chosen, states))


def _adjust(
    work: torch.Tensor, rows: Sequence[int], states: Sequence[SamplingState]
) -> dict[int, str]:
    """In place; why by row for those whose grammar cannot be followed."""
    added = [(row, add) for row in rows if (add := states[row].additions) is not None]
    if added:
        add_sparse(work, [row for row, _ in added], [add for _, add in added])
    counted = [(row, seen) for row in rows if (seen := states[row].seen) is not None]
    if counted:
        where = [row for row, _ in counted]
        penalise(work, where, [seen for _, seen in counted], [states[r].sampling for r in where])
    bound = [(row, one) for row in rows if (one := states[row].constraint) is not None]
    if not bound:
        return {}
    for row, constraint in bound:
        constraint.follow(states[row].output)
    return forbid(work, [row for row, _ in bound], [one for _, one in bound])


def _draw_params(states: Sequence[SamplingState]) -> DrawParams:
    return DrawParams(
        temperature=[state.sampling.temperature for state in states],
        top_k=[state.sampling.top_k for state in states],
        top_p=[state.sampling.top_p for state in states],
        min_p=[state.sampling.min_p for state in states],
        uniform=[state.uniform for state in states],
    )


def _logprobs(
    logits: torch.Tensor, tokens: Sequence[int], states: Sequence[SamplingState]
) -> dict[int, TokenLogprobs]:
    rows = [row for row, state in enumerate(states) if state.sampling.logprobs is not None]
    if not rows:
        return {}
    logprobs = logits[rows].log_softmax(-1)
    counts = [states[row].sampling.logprobs or 0 for row in rows]
    best = logprobs.topk(min(max(counts), logprobs.shape[-1]))
    ids, values = best.indices.tolist(), best.values.tolist()
    at = torch.tensor([tokens[row] for row in rows], device=logits.device)
    chosen = logprobs.gather(-1, at[:, None]).flatten().tolist()
    return {
        row: TokenLogprobs(chosen[i], list(zip(ids[i], values[i], strict=True))[: counts[i]])
        for i, row in enumerate(rows)
    }


def _not_finite(best: torch.Tensor) -> list[int]:
    return [row for row, sound in enumerate(best.isfinite().tolist()) if not sound]
