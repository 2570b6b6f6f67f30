"""An engine in the caller's own process, for batches of prompts: tests and benchmarks."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from servekit.config.schema import Config
from servekit.engine.assemble import assemble, load
from servekit.engine.capturing import Capturing
from servekit.engine.core import EngineCore
from servekit.engine.messages import (
    Caller,
    Deltas,
    FinishReason,
    FromEngine,
    Sampling,
    Stats,
    Submit,
    ToEngine,
    TokenLogprobs,
)
from servekit.engine.step_log import step_log
from servekit.model.decoder import Decoder

ANYBODY = Caller()


@dataclass(slots=True)
class Generated:
    """What became of a prompt; `tokens` ends with the stop token, if one ended it."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish: FinishReason | None = None
    stop_token: int | None = None
    error: str | None = None
    error_code: str | None = None
    retry_after_s: float | None = None
    cached_tokens: int = 0
    preemptions: int = 0


class LocalEngine:
    """EngineCore stepped by its caller; the same code as in the engine process, without sockets.

    `results` has, by id, all that was submitted; `stats` are those of the last step.
    """

    def __init__(
        self, config: Config, decoder: Decoder, *, capturing: Capturing | None = None
    ) -> None:
        """`capturing` makes graphs of decode steps, instead of what the device has for that."""
        self.scheduler, self.runner, self.info = assemble(
            config, decoder, lambda progress: None, capturing=capturing
        )
        self.core = EngineCore(
            self.scheduler,
            self.runner,
            self._drain,
            self._deliver,
            in_flight=config.engine.in_flight,
            log=step_log(config),
        )
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
        while any(self.results[id].finish is None for id in ids) or self.core.flights:
            self.core.step()
        return [self.results[id] for id in ids]

    def submit(self, prompt: list[int], sampling: Sampling, caller: Caller = ANYBODY) -> int:
        """Queues a request for the next step and returns its id."""
        id = len(self.results)
        self.results[id] = Generated()
        self.send(Submit(id, prompt, sampling, caller))
        return id

    def send(self, message: ToEngine) -> None:
        self._inbox.append(message)

    def close(self) -> None:
        """Returns once the step log, if there is one, is written."""
        if self.core.log is not None:
            self.core.log.close()

    def _drain(self, wait_s: float | None, until: int | None = None) -> list[ToEngine]:
        messages = list(self._inbox)
        self._inbox.clear()
        return messages

    def _deliver(self, message: FromEngine) -> None:
        if not isinstance(message, Deltas):
            return  # its caller steps it, and sees that it turns
        self.stats = message.stats
        for delta in message.all():
            result = self.results[delta.id]
            result.tokens += delta.tokens
            result.logprobs += delta.logprobs or []
            result.finish, result.stop_token = delta.finish, delta.stop_token
            result.error, result.error_code = delta.error, delta.error_code
            result.retry_after_s = delta.retry_after_s
            result.cached_tokens = max(result.cached_tokens, delta.cached_tokens)
            result.preemptions = max(result.preemptions, delta.preemptions)
