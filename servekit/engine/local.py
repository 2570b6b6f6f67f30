"""An engine in the caller's own process, for batches of prompts: tests and benchmarks."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from servekit.config.schema import Config
from servekit.engine.assemble import assemble, load
from servekit.engine.core import EngineCore
from servekit.engine.messages import (
    Deltas,
    FinishReason,
    FromEngine,
    Sampling,
    Stats,
    Submit,
    ToEngine,
    TokenLogprobs,
)
from servekit.model.decoder import Decoder


@dataclass(slots=True)
class Generated:
    """What became of a prompt; `tokens` ends with the stop token, if one ended it."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish: FinishReason | None = None
    stop_token: int | None = None
    error: str | None = None
    error_code: str | None = None
    cached_tokens: int = 0
    preemptions: int = 0


class LocalEngine:
    """EngineCore stepped by its caller; the same code as in the engine process, without sockets.

    `results` has, by id, all that was submitted; `stats` are those of the last step.
    """

    def __init__(self, config: Config, decoder: Decoder) -> None:
        self.scheduler, self.runner, self.info = assemble(config, decoder, lambda progress: None)
        self.core = EngineCore(self.scheduler, self.runner, self._drain, self._deliver)
        self.results: dict[int, Generated] = {}
        self.stats: Stats | None = None
        self._inbox: deque[ToEngine] = deque()

    @classmethod
    def load(cls, config: Config, path: Path) -> Self:
        decoder, _ = load(config, path, lambda progress: None)
        return cls(config, decoder)

    def generate(
        self, prompts: Sequence[list[int]], samplings: Sequence[Sampling]
    ) -> list[Generated]:
        """Runs all to their end, as many at once as the configuration allows."""
        ids = [
            self.submit(prompt, sampling)
            for prompt, sampling in zip(prompts, samplings, strict=True)
        ]
        while any(self.results[id].finish is None for id in ids):
            self.core.step()
        return [self.results[id] for id in ids]

    def submit(self, prompt: list[int], sampling: Sampling) -> int:
        """Queues a request for the next step and returns its id."""
        id = len(self.results)
        self.results[id] = Generated()
        self.send(Submit(id, prompt, sampling))
        return id

    def send(self, message: ToEngine) -> None:
        self._inbox.append(message)

    def _drain(self, wait_s: float | None) -> list[ToEngine]:
        messages = list(self._inbox)
        self._inbox.clear()
        return messages

    def _deliver(self, message: FromEngine) -> None:
        assert isinstance(message, Deltas), message
        self.stats = message.stats
        for delta in message.deltas:
            result = self.results[delta.id]
            result.tokens += delta.tokens
            result.logprobs += delta.logprobs or []
            result.finish, result.stop_token = delta.finish, delta.stop_token
            result.error, result.error_code = delta.error, delta.error_code
            result.cached_tokens, result.preemptions = delta.cached_tokens, delta.preemptions
