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

import numpy as np
import torch

from servekit.engine.constraint import Constraint, forbid
from servekit.engine.draw import Uniforms
from servekit.engine.messages import Sampling, TokenLogprobs
from servekit.engine.penalties import SeenTokens, add_sparse, has_penalties, penalise
from servekit.errors import RequestError
from servekit.kernels.draw import DrawParams, draw

NOT_FINITE = "the model's logits are not finite numbers"
NOTHING_LEFT = "logit_bias, min_tokens, penalties and grammar leave no token to choose from"


class SamplingState:
    """What sampling remembers of one request between steps: its output so far."""

    def __init__(self, prompt: list[int], sampling: Sampling, vocab_size: int) -> None:
        """Raises RequestError for a token id that this model does not have."""
        _check_ids("prompt", prompt, vocab_size)
        _check_ids("logit_bias", sampling.logit_bias, vocab_size)
        self.prompt = prompt
        self.sampling = sampling
        self.output: list[int] = []
        self.uniforms = Uniforms(sampling.seed)
        self.constraint: Constraint | None = None
        self._seen = SeenTokens(prompt, []) if has_penalties(sampling) else None
        self._bias = _sparse(sampling.logit_bias)
        stops = [token for token in sampling.stop_token_ids if 0 <= token < vocab_size]
        self._bias_and_forbidden = _sparse({**sampling.logit_bias, **dict.fromkeys(stops, -np.inf)})

    def append(self, token: int) -> None:
        self.output.append(token)
        if self._seen is not None:
            self._seen.add(token)

    def rewind(self, length: int) -> None:
        """Forgets output from `length` on, so that a step run again draws the same again."""
        if length < len(self.output):
            del self.output[length:]
            if self.constraint is not None:
                self.constraint.take_back(length)
            if self._seen is not None:
                self._seen = SeenTokens(self.prompt, self.output)

    @property
    def seen(self) -> SeenTokens | None:
        return self._seen

    @property
    def additions(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Token ids and what to add to their logits at this step; None for nothing."""
        too_short = len(self.output) < self.sampling.min_tokens
        ids, values = self._bias_and_forbidden if too_short else self._bias
        return (ids, values) if len(ids) else None

    @property
    def changes_logits(self) -> bool:
        """Before temperature."""
        return bool(self.additions or self.seen or self.constraint)

    @property
    def uniform(self) -> float:
        return self.uniforms[len(self.output)]


@dataclass(frozen=True, slots=True)
class Drawn:
    """What a step sampled, by row; a row in `failed` has a token of no meaning.

    Of those, the ones in `blamed` failed by what their requests ask for.
    """

    tokens: list[int]
    failed: dict[int, str] = field(default_factory=dict)
    blamed: set[int] = field(default_factory=set)
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)


def sample(logits: torch.Tensor, states: Sequence[SamplingState]) -> Drawn:
    """Draws from logits, float32 [rows, vocab], one row for each state; they are left as they are.

    An exception in handling the rows together makes each be tried alone.
    """
    try:
        return _sample(logits, states)
    except Exception as fault:
        if len(states) == 1:
            return Drawn([0], failed={0: f"sampling failed: {fault}"})
    alone = [sample(logits[row : row + 1], [state]) for row, state in enumerate(states)]
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


def _sparse(entries: dict[int, float]) -> tuple[np.ndarray, np.ndarray]:
    return (
        np.fromiter(entries.keys(), np.int64, len(entries)),
        np.fromiter(entries.values(), np.float32, len(entries)),
    )


def _check_ids(param: str, ids: Sequence[int] | dict[int, float], vocab_size: int) -> None:
    outside = next((token for token in ids if not 0 <= token < vocab_size), None)
    if outside is not None:
        raise RequestError(
            f"{param} has token id {outside}, but the model's ids are 0 to {vocab_size - 1}",
            param=param,
        )
