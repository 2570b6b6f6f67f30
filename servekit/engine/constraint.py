"""Which tokens may come next in one answer, and the mask of a step over all such answers."""

import os
from collections.abc import Sequence

import numpy as np
import torch
from llguidance import LLExecutor, LLMatcher
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask_par

_threads = LLExecutor(num_threads=max(1, min(8, (os.cpu_count() or 1) // 2)))
"""Of the library, for masks of several rows."""


class Constraint:
    """One answer's place in its grammar.

    The place follows from the tokens alone: it is sought when a mask is needed, so that the mask of
    a step is never that of another one, and sought from the beginning after tokens were taken back.
    """

    def __init__(self, start: LLMatcher, vocab_size: int) -> None:
        """`start` stands at the beginning of the grammar and is left there."""
        self._start = start
        self.vocab_size = vocab_size
        self.matcher = start.deep_copy()
        self._followed = 0

    def follow(self, output: Sequence[int]) -> None:
        """Afterwards the next mask is of the token after `output`."""
        if self._followed > len(output):
            self.matcher, self._followed = self._start.deep_copy(), 0
        self.matcher.consume_tokens(list(output[self._followed :]))
        self._followed = len(output)

    def take_back(self, length: int) -> None:
        """Tokens from `length` on are no longer so."""
        if length < self._followed:
            self.matcher, self._followed = self._start.deep_copy(), 0


def masks(constraints: Sequence[Constraint]) -> tuple[np.ndarray, dict[int, str]]:
    """int32 [constraints, words], lowest bit first: 1 for what may come next; and why by place for
    those whose grammar gave up, whose bits mean nothing.
    """
    bits = allocate_token_bitmask(len(constraints), constraints[0].vocab_size)
    matchers = [(one.matcher, place) for place, one in enumerate(constraints)]
    fill_next_token_bitmask_par(_threads, matchers, bits)
    return bits, {
        place: f"the grammar cannot be followed any further: {one.matcher.get_error()}"
        for place, one in enumerate(constraints)
        if one.matcher.is_error()
    }


def forbid(
    logits: torch.Tensor, rows: Sequence[int], constraints: Sequence[Constraint]
) -> dict[int, str]:
    """Sets to -inf, in place, what may not come next in `rows` of `logits` [rows, vocab].

    Returns why by row for those whose grammar gave up; their logits mean nothing.
    """
    bits, gave_up = masks(constraints)
    known = min(constraints[0].vocab_size, logits.shape[-1])
    forbidden = ~unpacked(bits, logits.device)[:, :known]
    at = torch.tensor(rows, device=logits.device)
    masked = logits if len(rows) == len(logits) else logits[at]
    masked[:, :known].masked_fill_(forbidden, -torch.inf)
    masked[:, known:] = -torch.inf
    if masked is not logits:
        logits[at] = masked
    return {rows[place]: why for place, why in gave_up.items()}


def unpacked(bits: np.ndarray, device: torch.device) -> torch.Tensor:
    """Of int32 [rows, words], lowest bit first: bool [rows, 32 * words], on the device.

    A processor has no fast shifts over a tensor; to an accelerator, bits are the shorter way.
    """
    if device.type == "cpu":
        ones = np.unpackbits(bits.view(np.uint8), axis=1, bitorder="little")
        return torch.from_numpy(ones).view(torch.bool)
    return shifted(torch.from_numpy(bits).to(device))


def shifted(words: torch.Tensor) -> torch.Tensor:
    """The same by shifts."""
    places = torch.arange(32, device=words.device, dtype=torch.int32)
    return ((words[:, :, None] >> places) & 1).flatten(1).bool()
