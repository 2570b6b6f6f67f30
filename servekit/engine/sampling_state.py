"""What sampling remembers of one request between steps."""

from collections.abc import Sequence

import numpy as np

from servekit.engine.constraint import Constraint
from servekit.engine.draw import Uniforms
from servekit.engine.messages import Sampling
from servekit.engine.penalties import SeenTokens, has_penalties
from servekit.errors import RequestError


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
