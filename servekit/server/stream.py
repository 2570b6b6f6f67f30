"""One generation, told as server-sent events or as one answer; both from the same pieces."""

import logging
import uuid
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from servekit.engine.messages import TokenLogprobs
from servekit.server.errors import error_body, error_of
from servekit.server.generate import Job
from servekit.server.service import Service, Tokenizer
from servekit.server.text import Piece, Scored
from servekit.server.wire import TokenLogprob, TopLogprob, Usage

log = logging.getLogger(__name__)

DONE = b"data: [DONE]\n\n"
LOWEST_LOGPROB = -9999.0
"""Minus infinity is not JSON."""

encode = msgspec.json.Encoder().encode


class Style(Protocol):
    """How a route words what a generation says; `id` is that of the answer."""

    @property
    def id(self) -> str: ...
    def opening(self) -> Iterable[msgspec.Struct]: ...
    def chunks(self, index: int, piece: Piece) -> Iterable[msgspec.Struct]: ...
    def usage_chunk(self, usage: Usage) -> msgspec.Struct: ...
    def answer(self, answers: list[list[Piece]], usage: Usage) -> msgspec.Struct: ...


def event(chunk: object) -> bytes:
    return b"data: " + encode(chunk) + b"\n\n"


async def events(
    service: Service, job: Job, style: Style, include_usage: bool
) -> AsyncGenerator[bytes, None]:
    """Chunks, then `[DONE]`. Raises what goes wrong before the first chunk; afterwards the status
    has been sent, and an error is a chunk too."""
    begun = False
    try:
        async with service.generation(job, style.id) as generation:
            await generation.let_in()
            begun = True
            if opening := b"".join(map(event, style.opening())):
                yield opening
            async for said in generation.pieces():
                yield b"".join(
                    event(chunk) for index, piece in said for chunk in style.chunks(index, piece)
                )
            if include_usage:
                yield event(style.usage_chunk(generation.usage()))
    except Exception as error:
        if not begun:
            raise
        yield event(error_body(error_of(error)))
    yield DONE


async def collect(service: Service, job: Job, style: Style) -> msgspec.Struct:
    """The whole answer at once."""
    answers: list[list[Piece]] = [[] for _ in range(job.size)]
    async with service.generation(job, style.id) as generation:
        async for said in generation.pieces():
            for index, piece in said:
                answers[index].append(piece)
        return style.answer(answers, generation.usage())


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
