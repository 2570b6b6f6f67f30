"""What a handler is given: the deployment behind the routes, in one object."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from servekit.config.schema import Config
from servekit.errors import (
    EngineDied,
    ModelNotFound,
    NotReady,
    Overloaded,
    RequestError,
    ServekitError,
)
from servekit.model.vocabulary import Vocabulary, vocabulary_of
from servekit.server.accounts import Account, Accounts
from servekit.server.caller import Callers
from servekit.server.dashboard.board import Board
from servekit.server.forms import is_constrained
from servekit.server.generate import Engine, Generation, Job
from servekit.server.grammars import Grammars
from servekit.server.keys import KeyRing
from servekit.server.lifecycle import Lifecycle
from servekit.server.limits import Room, stop_strings
from servekit.server.preparation import Preparation
from servekit.server.readiness import reasons_to_send_elsewhere
from servekit.server.shed import Shed
from servekit.server.text import Answer, StopStrings, TextStream
from servekit.server.wire import ChatRequest, CompletionRequest
from servekit.telemetry.ledger import Ledger
from servekit.telemetry.metrics import Metrics, Reading

log = logging.getLogger(__name__)

THREAD_ABOVE_CHARACTERS = 8192
"""Text longer than this is tokenised in a thread: the event loop has streams to serve."""

RETRY_AFTER_S = 1.0


class Tokenizer(Protocol):
    """What the server needs of `model.tokenizer`."""

    vocab_size: int
    eos_ids: frozenset[int]
    longest_token: int | None

    @property
    def has_chat_template(self) -> bool: ...
    @property
    def template_names(self) -> frozenset[str]: ...
    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...
    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str: ...
    def token_bytes(self, token_id: int, skip_special_tokens: bool = True) -> bytes: ...
    def text_stream(
        self, skip_special_tokens: bool = True, continues_text: bool = False
    ) -> TextStream: ...
    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str: ...


@dataclass(slots=True)
class Service:
    """One deployment. `tokenizer` is None until it is loaded; `plan` is JSON-able."""

    config: Config
    engine: Engine
    metrics: Metrics
    lifecycle: Lifecycle
    plan: Mapping[str, Any]
    tokenizer: Tokenizer | None = None
    callers: Callers = field(init=False)
    accounts: Accounts = field(init=False)
    created: int = field(default_factory=lambda: int(time.time()))
    generations: set[Generation] = field(default_factory=set)
    preparations: set[Preparation] = field(default_factory=set)
    grammars: Grammars = field(init=False)
    shed: Shed = field(init=False)
    board: Board = field(default_factory=Board)
    _vocabulary: Vocabulary | None = None

    def __post_init__(self) -> None:
        """Raises ConfigError where keys cannot be read or the ledger cannot be written."""
        config = self.config
        self.grammars = Grammars(self.metrics.grammar_tried)
        self.shed = Shed(config.scheduler)
        ring = None if config.server.api_keys is None else KeyRing(config.server.api_keys)
        self.callers = Callers(ring)
        self.accounts = Accounts(
            config.model.name,
            self.metrics,
            None if config.telemetry.ledger is None else Ledger(config.telemetry.ledger),
            None if ring is None else ring.named,
        )

    def ensure_ready(self) -> None:
        self.lifecycle.ensure_ready()
        if self.engine.state == "dead":
            raise EngineDied("the engine process is gone; this server is about to exit")

    @property
    def draining(self) -> bool:
        return self.lifecycle.state == "draining"

    def reasons_not_ready(self) -> list[str]:
        try:
            self.ensure_ready()
        except ServekitError as error:
            return [error.message]
        return reasons_to_send_elsewhere(
            self.lifecycle, self.engine.heartbeat, self.engine.stats, self.config.scheduler
        )

    @property
    def loaded(self) -> Tokenizer:
        if self.tokenizer is None:
            raise NotReady("the tokenizer is not loaded yet", retry_after_s=RETRY_AFTER_S)
        return self.tokenizer

    @property
    def vocab_size(self) -> int:
        """Ids that mean something to both the tokenizer and the embedding."""
        return min(self.loaded.vocab_size, self.config.model.shape.vocab_size)

    @property
    def vocabulary(self) -> Vocabulary:
        """For grammars; made once, the same object every time."""
        if self._vocabulary is None:
            self._vocabulary = vocabulary_of(self.loaded, self.vocab_size)
        return self._vocabulary

    async def check_grammar(self, grammar: str, param: str, kind: str) -> None:
        """Raises RequestError if no answer can be had by it."""
        if not self.vocabulary.eos_ids:
            raise RequestError(
                f"{param} needs an end-of-sequence token, which this model does not have",
                param=param,
            )
        await self.grammars.check(grammar, self.vocabulary, param)
        self.metrics.constrained(kind)

    @property
    def room(self) -> Room:
        if self.engine.info is None:
            raise NotReady("the engine is not loaded yet", retry_after_s=RETRY_AFTER_S)
        info = self.engine.info
        return Room(info.max_model_len, info.max_servable_tokens)

    def check_model(self, name: str) -> None:
        served = self.config.model.name
        if name != served:
            raise ModelNotFound(
                f"the model {name!r} is not served here; served: {served!r}", param="model"
            )

    async def encode(
        self, text: str, add_special_tokens: bool, param: str | None = None
    ) -> list[int]:
        """Token ids; long texts are done beside the event loop.

        With `param`, what the text is of, raises ContextTooLong for one that cannot fit, before it
        is tokenised.
        """
        if param is not None:
            self.room.check_text(len(text), self.loaded.longest_token, param)
        if len(text) > THREAD_ABOVE_CHARACTERS:
            return await asyncio.to_thread(self.loaded.encode, text, add_special_tokens)
        # many short ones must not hold the event loop together
        await asyncio.sleep(0)
        return self.loaded.encode(text, add_special_tokens)

    def answer_maker(self, body: ChatRequest | CompletionRequest) -> Callable[[], Answer]:
        """Makes the empty answers of one request; each detokenises for itself."""
        tokenizer = self.loaded
        stops, include = stop_strings(body), bool(body.include_stop_str_in_output)
        skip_special = body.skip_special_tokens is not False
        # a grammar is kept to by every byte, the first space too
        continues = (
            isinstance(body, CompletionRequest)
            or bool(body.continue_final_message)
            or is_constrained(body.response_format, body.regex, body.choice)
        )

        def new_answer() -> Answer:
            return Answer(
                stream=tokenizer.text_stream(skip_special, continues),
                stops=StopStrings(stops, include),
                min_tokens=body.min_tokens or 0,
                eos_ids=tokenizer.eos_ids,
            )

        return new_answer

    @asynccontextmanager
    async def generation(self, job: Job, id: str) -> AsyncIterator[Generation]:
        """Runs `job` among the others; leaving early aborts it. `id` is that of the answer."""
        self.admit(job.size)
        if self.config.telemetry.log_prompts:
            self._log_prompts(job, id)
        prompt_tokens = sum(len(prompt) for prompt, _ in job.prompts)
        account = Account(id, job.operation, job.caller, job.arrived, job.size, prompt_tokens)
        with self.accounts.opened(account) as bill:
            one = Generation(job, self.engine, self.metrics, bill, self.shed.served)
            self.generations.add(one)
            try:
                async with one:
                    yield one
            finally:
                self.generations.discard(one)

    def _log_prompts(self, job: Job, id: str) -> None:
        for prompt, _ in job.prompts:
            text = self.loaded.decode(prompt, False)
            log.info("%s of tenant %r has the prompt %r", id, job.caller.tenant, text)

    def admit(self, requests: int) -> None:
        """Raises RequestError for what could not run and wait at once if nobody else were here.

        Whether there is room now, the engine's scheduler says, before any byte of an answer.
        """
        scheduler = self.config.scheduler
        limit = scheduler.max_num_seqs + scheduler.max_num_waiting
        if requests > limit:
            raise RequestError(
                f"{requests} answers in one request, this deployment runs and queues {limit}; "
                "send fewer prompts or a smaller n",
                param="n",
            )

    def turned_away(self, authorization: str | None) -> Overloaded | None:
        """What a request for generation gets at once, whatever is in it; None: it is looked at.

        Who may not ask learns nothing of the queue.
        """
        if self.lifecycle.state != "ready" or self.engine.state != "ready":
            return None
        error = self.shed.refusal(self.engine.num_open, time.monotonic())
        if error is not None:
            try:
                self.callers.authorize(authorization, "inference")
            except ServekitError:
                return None
            self.metrics.refused(error.code)
        return error

    def end_all(self, error: ServekitError, reason: str) -> None:
        """Every client that still waits gets `error` as its last event."""
        for one in tuple(self.generations):
            one.end(error, reason)
        for preparation in tuple(self.preparations):
            preparation.end(error)

    @property
    def idle(self) -> bool:
        """Nobody waits for an answer."""
        return not self.generations and not self.preparations

    def tick(self) -> None:
        """To be called some times a second: the live page has a sample of each."""
        running = (one for generation in self.generations for one in generation.running)
        self.board.tick(self.metrics, running)

    def snapshot(self) -> dict[str, Reading]:
        """The engine's state by the keys of `telemetry.metrics`."""
        return snapshot(self.engine)


def snapshot(engine: Engine) -> dict[str, Reading]:
    stats, info = engine.stats, engine.info
    if info is None:
        return {}
    # a first step that never ends leaves no numbers but this
    known: dict[str, Reading] = {"heartbeat_age_s": engine.heartbeat.age_s}
    if stats is None:
        return known
    known |= {key: one for key, one in msgspec.structs.asdict(stats).items() if one is not None}
    # where groups of layers share the blocks, a block has no tokens of its own
    each = info.capacity_tokens / max(1, stats.blocks_total)
    used, size = stats.blocks_total - stats.blocks_free, stats.block_size
    return known | {
        "kv_usage": used / max(1, stats.blocks_total),
        "kv_fragmentation": stats.slots_unfilled / (used * size) if used else 0.0,
        "captured_graphs": info.graphs,
        "kv_capacity": info.capacity_tokens,
        "kv_used": round(used * each),
        "kv_cached": round(stats.blocks_remembering * each),
        "kv_free": round(stats.blocks_free * each),
    }
