"""What a request's own words change in its logits: bias, minimum length and penalties."""

from collections.abc import Sequence

import numpy as np
import torch

from servekit.engine.messages import Sampling
from servekit.kernels.adjust import penalised


class SeenTokens:
    """The distinct tokens of prompt and output, and how often each stands in the output.

    `ids` and `counts` are parallel; they grow in place, so that a step converts nothing.
    """

    __slots__ = ("_counts", "_ids", "_place")

    def __init__(self, prompt: Sequence[int], output: Sequence[int]) -> None:
        distinct = dict.fromkeys(prompt)
        self._place = {token: place for place, token in enumerate(distinct)}
        room = max(64, 2 * len(distinct))
        self._ids = np.zeros(room, np.int64)
        self._ids[: len(distinct)] = list(distinct)
        self._counts = np.zeros(room, np.float32)
        for token in output:
            self.add(token)

    def add(self, token: int) -> None:
        place = self._place.setdefault(token, len(self._place))
        if place == len(self._ids):
            self._ids = np.resize(self._ids, 2 * place)
            self._counts = np.concatenate([self._counts, np.zeros(place, np.float32)])
        self._ids[place] = token
        self._counts[place] += 1

    @property
    def ids(self) -> np.ndarray:
        return self._ids[: len(self._place)]

    @property
    def counts(self) -> np.ndarray:
        return self._counts[: len(self._place)]


def has_penalties(sampling: Sampling) -> bool:
    return (
        sampling.repetition_penalty != 1.0
        or sampling.presence_penalty != 0.0
        or sampling.frequency_penalty != 0.0
    )


def add_sparse(
    logits: torch.Tensor, rows: Sequence[int], entries: Sequence[tuple[np.ndarray, np.ndarray]]
) -> None:
    """Adds to `logits` [rows, vocab], in place: for each row its (token ids, values to add).

    An id may stand twice; -inf forbids a token.
    """
    where = np.repeat(rows, [len(ids) for ids, _ in entries])
    ids = np.concatenate([ids for ids, _ in entries])
    values = np.concatenate([values for _, values in entries])
    at = (_on(logits, where), _on(logits, ids))
    logits.index_put_(at, _on(logits, values.astype(np.float32)), accumulate=True)


def penalise(
    logits: torch.Tensor,
    rows: Sequence[int],
    seen: Sequence[SeenTokens],
    samplings: Sequence[Sampling],
) -> None:
    """Lowers, in place, the logits [rows, vocab] of tokens that were seen; see `penalised`."""
    sizes = [len(tokens.ids) for tokens in seen]
    where = _on(logits, np.repeat(rows, sizes))
    ids = _on(logits, np.concatenate([tokens.ids for tokens in seen]))
    counts = _on(logits, np.concatenate([tokens.counts for tokens in seen]))

    def spread(values: list[float]) -> torch.Tensor:
        return _on(logits, np.repeat(np.array(values, np.float32), sizes))

    repetition = spread([sampling.repetition_penalty for sampling in samplings])
    frequency = spread([sampling.frequency_penalty for sampling in samplings])
    presence = spread([sampling.presence_penalty for sampling in samplings])
    logits[where, ids] = penalised(logits[where, ids], counts, repetition, frequency, presence)


def _on(logits: torch.Tensor, values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(values).to(logits.device)
