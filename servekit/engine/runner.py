"""Runs a batch: tensors, decoder, sampler."""

from dataclasses import dataclass, field

import torch

from servekit.engine.constraint import Constraint
from servekit.engine.graphs import DecodeGraphs
from servekit.engine.inputs import Layout, build_inputs, lay_out
from servekit.engine.messages import Sampling, TokenLogprobs
from servekit.engine.sampler import sample
from servekit.engine.sampling_state import SamplingState
from servekit.engine.static_inputs import Staging
from servekit.errors import EngineError
from servekit.model.cache import KvCache
from servekit.model.decoder import Decoder
from servekit.scheduler.batch import Batch, Copies, Outcome, Row


@dataclass(frozen=True, slots=True)
class Sampled(Outcome):
    """An outcome with what the scheduler need not know: logprobs of each token, by request, and
    which of those that failed did so by what they ask for."""

    blamed: set[int] = field(default_factory=set)
    logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)


class Runner:
    """The executor of one device.

    It keeps, for each request added, what its sampling must remember. A row may be run again: it
    writes the same keys and values and draws the same token, because the place of a draw in the
    output follows from the row.
    """

    def __init__(
        self, decoder: Decoder, cache: KvCache, *, device: str, host: KvCache | None = None
    ) -> None:
        """`host` holds blocks of requests that are swapped out of `cache`."""
        self.decoder = decoder
        self.cache = cache
        self.host = host
        self.device = device
        self.staging: Staging | None = None
        """None: what is laid out is on the device already, or is copied as it comes."""
        self.graphs: DecodeGraphs | None = None
        self.states: dict[int, SamplingState] = {}

    def add(self, request_id: int, prompt: list[int], sampling: Sampling) -> None:
        """Raises RequestError for a token id that the model does not have."""
        vocab_size = self.decoder.shape.vocab_size
        self.states[request_id] = SamplingState(prompt, sampling, vocab_size)

    def constrain(self, request_id: int, constraint: Constraint) -> None:
        """Before its first token is sampled; unknown: nothing happens."""
        if (state := self.states.get(request_id)) is not None:
            state.constraint = constraint

    def remove(self, request_id: int) -> None:
        self.states.pop(request_id, None)

    @torch.inference_mode()
    def copy(self, copies: Copies) -> None:
        """Those that a batch asks for; they come before its step, and must not be made twice."""
        if copies.to_host:
            self._swapped.copy_from(self.cache, copies.to_host)
        self.cache.copy_within(copies.within)
        if copies.from_host:
            self.cache.copy_from(self._swapped, copies.from_host)

    def prepare(self, batch: Batch) -> Layout:
        """At most one is prepared while one runs."""
        buffer = None if self.staging is None else self.staging.next()
        return lay_out(batch, self.cache.block_size, buffer)

    @torch.inference_mode()
    def run(self, batch: Batch, prepared: Layout | None = None) -> Sampled:
        # one that was not prepared must not take the buffer of one that is
        layout = prepared or lay_out(batch, self.cache.block_size)
        inputs = layout.inputs(self._token_at, self._to_device)
        logits = None if self.graphs is None else self.graphs.logits(inputs)
        if logits is None:
            logits = self.decoder(inputs, self.cache)
        ids, states = self._who_samples(batch)
        if not ids:
            return Sampled([], {})
        drawn = sample(logits, states, self.decoder.kernels.sample)
        decodes = len(batch.decodes.ids)
        outcome = Sampled(
            decoded=drawn.tokens[:decodes],
            tokens={
                id: [token] for id, token in zip(ids[decodes:], drawn.tokens[decodes:], strict=True)
            },
            failed={ids[row]: reason for row, reason in drawn.failed.items()},
            blamed={ids[row] for row in drawn.blamed},
            logprobs={ids[row]: [logprobs] for row, logprobs in drawn.logprobs.items()},
        )
        for state, token in zip(states, drawn.tokens, strict=True):
            state.append(token)
        return outcome

    @torch.inference_mode()
    def probe(self) -> None:
        """Computes one token of nobody's, in the null block; raises if the device cannot."""
        tables = tuple([0] for _ in range(self.cache.num_groups))
        probe = Batch.of(0, [Row(-1, 0, [0], tables, samples=True)])
        inputs = build_inputs(probe, self.cache.block_size, self.device, self._token_at)
        logits = self.decoder(inputs, self.cache)
        self.cache.data[:, :, 0].zero_()
        if not logits.isfinite().all():
            raise EngineError("the model's logits for a single token are not finite numbers")

    @property
    def _swapped(self) -> KvCache:
        assert self.host is not None, "blocks are swapped, and there is no host memory"
        return self.host

    def _to_device(self, packed: torch.Tensor) -> torch.Tensor:
        if self.staging is None or len(packed) > len(self.staging.device):
            return packed.to(self.device)
        return self.staging.to_device(packed)

    def _token_at(self, request_id: int, position: int) -> int:
        """Any token where the step that was to sample it failed: nobody looks at what follows."""
        state = self.states[request_id]
        place = position - len(state.prompt)
        return state.output[place] if 0 <= place < len(state.output) else 0

    def _who_samples(self, batch: Batch) -> tuple[list[int], list[SamplingState]]:
        """Requests, and their states as they were, or are, when their next token is drawn."""
        decodes = batch.decodes
        ids = [*decodes.ids, *(row.request_id for row in batch.others if row.samples)]
        ends = [start + 1 for start in decodes.starts]
        ends += [row.start + len(row.tokens) for row in batch.others if row.samples]
        states = [self.states[id] for id in ids]
        for state, end in zip(states, ends, strict=True):
            state.rewind(end - len(state.prompt))
        return ids, states
