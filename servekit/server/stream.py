"""One generation, told as server-sent events or as one answer; both from the same pieces."""

import logging
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self

import msgspec

from servekit.engine.messages import TokenLogprobs
from servekit.errors import ServekitError
from servekit.server.errors import error_body, error_of
from servekit.server.generate import Job
from servekit.server.running import Taken
from servekit.server.service import Service, Tokenizer
from servekit.server.text import Piece, Scored
from servekit.server.wire import (
    SamplingFields,
    StreamOptions,
    TokenLogprob,
    TopLogprob,
    Usage,
)

log = logging.getLogger(__name__)

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
"""A comment, which clients of server-sent events do not see."""

LOWEST_LOGPROB = -9999.0
"""Minus infinity is not JSON."""

encode = msgspec.json.Encoder().encode


Chunk = msgspec.Struct | dict[str, Any]


class Style(Protocol):
    """How a route words what a generation says, and how its stream is framed; `id` is that of the
    answer.
    """

    framing: ClassVar["Framing"]

    @property
    def id(self) -> str: ...
    def opening(self) -> list[Chunk]: ...
    def chunks(self, index: int, piece: Piece, usage: Usage | None) -> Iterable[Chunk]:
        """`usage` so far, if `usage_so_far` asks for it."""
        ...

    @property
    def usage_so_far(self) -> bool: ...
    def closing(self, taken: Taken) -> list[Chunk]: ...
    def failed(self, error: ServekitError) -> list[Chunk]: ...
    def answer(self, answers: list[list[Piece]], taken: Taken) -> Chunk: ...


@dataclass(frozen=True, slots=True)
class Framing:
    """How chunks are server-sent events, and what comes after the last."""

    event: Callable[[Any], bytes]
    end: bytes


def data_event(chunk: object) -> bytes:
    return b"data: " + encode(chunk) + b"\n\n"


CHUNKS = Framing(data_event, DONE)
"""Of chat and completions."""


async def told(service: Service, job: Job, style: Style) -> AsyncGenerator[list[Chunk], None]:
    """The chunks of a generation, those together that came together.

    The first come with the first token, or once there is none for so long that something must be
    said: until then what goes wrong is raised, and has a status of its own. Afterwards an error is
    a chunk too. No chunks mean that nothing has come for server.keepalive_s.
    """
    begun, opening = False, style.opening()
    try:
        async with service.generation(job, style.id) as generation:
            await generation.let_in()
            async for said in generation.pieces(service.config.server.keepalive_s):
                usage = generation.usage() if style.usage_so_far else None
                chunks = [c for index, piece in said for c in style.chunks(index, piece, usage)]
                if said and not (opening or chunks):
                    continue  # an end that is told with what was taken
                begun = True
                yield opening + chunks
                opening = []
            if closing := style.closing(generation.taken()):
                yield closing
    except Exception as error:
        if not begun:
            raise
        yield style.failed(error_of(error))


async def events(service: Service, job: Job, style: Style) -> AsyncGenerator[bytes, None]:
    """The same as server-sent events, with their end."""
    event, end = style.framing.event, style.framing.end
    async with aclosing(told(service, job, style)) as parts:
        async for chunks in parts:
            yield b"".join(map(event, chunks)) if chunks else KEEP_ALIVE
    if end:
        yield end


async def collect(service: Service, job: Job, style: Style) -> Chunk:
    """The whole answer at once."""
    answers: list[list[Piece]] = [[] for _ in range(job.size)]
    async with service.generation(job, style.id) as generation:
        async for said in generation.pieces():
            for index, piece in said:
                answers[index].append(piece)
        return style.answer(answers, generation.taken())


@dataclass(frozen=True, slots=True)
class Beside:
    """What a stream of chunks and an answer say beside the text.

    With `usage`, every chunk has one, null but in the last; `so_far`: in the others too.
    """

    usage: bool = False
    so_far: bool = False
    timings: bool = False

    @classmethod
    def of(cls, body: SamplingFields) -> Self:
        """Timings come with the usage, so asking for them asks for both."""
        options = body.stream_options or StreamOptions()
        timings = bool(body.timings)
        return cls(
            usage=timings or bool(options.include_usage),
            so_far=bool(options.continuous_usage_stats),
            timings=timings,
        )

    def fields(self, usage: Usage | None) -> dict[str, Any]:
        """Of a chunk."""
        return {"usage": usage} if self.usage else {}

    def last_fields(self, taken: Taken) -> dict[str, Any]:
        """Of the last chunk, or an answer."""
        return {"usage": taken.usage, **({"timings": taken.timings} if self.timings else {})}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunked(ABC):
    """What the styles of chat and completions share: how a stream of chunks ends, or fails."""

    id: str
    created: int
    model: str
    names: "TokenNames"
    logprobs: bool
    beside: Beside
    framing: ClassVar[Framing] = CHUNKS

    @property
    def usage_so_far(self) -> bool:
        return self.beside.so_far

    def closing(self, taken: Taken) -> list[Chunk]:
        """The usage chunk, if it was asked for."""
        return [self._chunk([], self.beside.last_fields(taken))] if self.beside.usage else []

    def failed(self, error: ServekitError) -> list[Chunk]:
        return [error_body(error)]

    @abstractmethod
    def _chunk(self, choices: list[Any], beside: dict[str, Any]) -> msgspec.Struct:
        """Of the route; `beside` has fields beside the choices."""


@dataclass(frozen=True, slots=True)
class TokenNames:
    """Tokens in the words of the wire."""

    tokenizer: Tokenizer

    def bytes_of(self, token: int) -> bytes:
        """Exact; a special token is what it is called."""
        return self.tokenizer.token_bytes(token, False)

    def text_of(self, token: int) -> str:
        return self.bytes_of(token).decode("utf-8", errors="replace")

    def key_of(self, token: int) -> str:
        """Unlike `text_of`, different for tokens that are different parts of characters."""
        exact = self.bytes_of(token)
        try:
            return exact.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in exact)

    def scored(self, one: Scored) -> TokenLogprob:
        return TokenLogprob(
            token=self.text_of(one.token),
            logprob=finite(one.logprobs.logprob),
            bytes=list(self.bytes_of(one.token)),
            top_logprobs=[
                TopLogprob(self.text_of(token), finite(logprob), list(self.bytes_of(token)))
                for token, logprob in one.logprobs.top
            ],
        )

    def by_key(self, token: int, logprobs: TokenLogprobs) -> dict[str, float]:
        """The best tokens and the chosen one, as /v1/completions lists them."""
        pairs = [*logprobs.top, (token, logprobs.logprob)]
        return {self.key_of(one): finite(logprob) for one, logprob in pairs}


def finite(logprob: float) -> float:
    """NaN too becomes the lowest: nothing is known of such a token."""
    return logprob if logprob >= LOWEST_LOGPROB else LOWEST_LOGPROB


def new_id(prefix: str) -> str:
    """Ours, whatever the client calls its request: ids from outside collide."""
    return f"{prefix}-{uuid.uuid4().hex}"
