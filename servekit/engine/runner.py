"""Runs a batch: tensors, decoder, sampler."""

from dataclasses import dataclass, field

import torch

from servekit.engine.inputs import build_inputs
from servekit.engine.messages import Sampling, TokenLogprobs
from servekit.engine.sampler import SamplingState, sample
from servekit.errors import EngineError
from servekit.model.cache import KvCache
from servekit.model.decoder import Decoder
from servekit.scheduler.batch import Batch, Outcome, Row

PROBE = Batch(0, [Row(request_id=-1, start=0, tokens=[0], blocks=[0], samples=True)])


@dataclass(frozen=True, slots=True)
class Sampled(Outcome):
    """An outcome with what the scheduler need not know: logprobs of each token, by request."""

    logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)


class Runner:
    """The executor of one device.

    It keeps, for each request added, what its sampling must remember. A row may be run again: it
    writes the same keys and values and draws the same token, because the place of a draw in the
    output follows from the row.
    """

    def __init__(self, decoder: Decoder, cache: KvCache, *, device: str) -> None:
        self.decoder = decoder
        self.cache = cache
        self.device = device
        self.states: dict[int, SamplingState] = {}

    def add(self, request_id: int, prompt: list[int], sampling: Sampling) -> None:
        """Raises RequestError for a token id that the model does not have."""
        vocab_size = self.decoder.shape.vocab_size
        self.states[request_id] = SamplingState(prompt, sampling, vocab_size)

    def remove(self, request_id: int) -> None:
        self.states.pop(request_id, None)

    @torch.inference_mode()
    def run(self, batch: Batch) -> Sampled:
        inputs = build_inputs(batch, self.cache.block_size, self.device, self._last_token)
        logits = self.decoder(inputs, self.cache)
        rows = [row for row in batch.rows if row.samples]
        if not rows:
            return Sampled({})
        states = [self._state_at_end_of(row) for row in rows]
        drawn = sample(logits, states)
        ids = [row.request_id for row in rows]
        outcome = Sampled(
            tokens={id: [token] for id, token in zip(ids, drawn.tokens, strict=True)},
            failed={ids[row]: reason for row, reason in drawn.failed.items()},
            logprobs={ids[row]: [logprobs] for row, logprobs in drawn.logprobs.items()},
        )
        for state, token in zip(states, drawn.tokens, strict=True):
            state.append(token)
        return outcome

    @torch.inference_mode()
    def probe(self) -> None:
        """Computes one token of nobody's, in the null block; raises if the device cannot."""
        inputs = build_inputs(PROBE, self.cache.block_size, self.device, self._last_token)
        logits = self.decoder(inputs, self.cache)
        self.cache.data[:, :, 0].zero_()
        if not logits.isfinite().all():
            raise EngineError("the model's logits for a single token are not finite numbers")

    def _last_token(self, request_id: int) -> int:
        return self.states[request_id].output[-1]

    def _state_at_end_of(self, row: Row) -> SamplingState:
        """The state as it was, or is, when the token after this row is the next to be drawn."""
        state = self.states[row.request_id]
        state.rewind(row.start + len(row.tokens) - len(state.prompt))
        return state
