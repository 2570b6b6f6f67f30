"""/v1/chat/completions: messages to a job, pieces to chunks or a message."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from servekit.engine.messages import Caller
from servekit.errors import RequestError, UnsupportedField
from servekit.server import limits
from servekit.server.constraint import grammar_of
from servekit.server.generate import Job
from servekit.server.service import Service
from servekit.server.stream import TokenNames
from servekit.server.text import Piece, Scored
from servekit.server.wire import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
    ChatRequest,
    TokenizeRequest,
    Usage,
)

OWN_VARIABLES = {"messages", "add_generation_prompt", "tools", "documents"}
"""Variables of a template that are not set through chat_template_kwargs."""


def checked_messages(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same messages, if they have the form that any template can take.

    Roles are the template's business; what it refuses is an error with its own words.
    """
    if not messages:
        raise RequestError("messages is empty; send at least one", param="messages")
    for index, message in enumerate(messages):
        _check_message(message, f"/messages/{index}")
    return messages


def _check_message(message: dict[str, Any], pointer: str) -> None:
    if not isinstance(message.get("role"), str):
        raise RequestError("a message needs a role, a string", param=f"{pointer}/role")
    content = message.get("content")
    if isinstance(content, list):
        for index, part in enumerate(content):
            _check_part(part, f"{pointer}/content/{index}")
    elif content is None and not message.get("tool_calls"):
        raise RequestError("a message needs content", param=f"{pointer}/content")
    elif not isinstance(content, str | None):
        raise RequestError(
            "content is a string or a list of text parts", param=f"{pointer}/content"
        )


def _check_part(part: object, pointer: str) -> None:
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise RequestError("a content part is an object with a type", param=pointer)
    if part["type"] != "text":
        raise UnsupportedField(
            f"content parts of type {part['type']!r} are not supported by this release, only text",
            param=pointer,
        )
    if not isinstance(part.get("text"), str):
        raise RequestError("a text part needs text, a string", param=f"{pointer}/text")


async def chat_tokens(body: ChatRequest | TokenizeRequest, service: Service) -> list[int]:
    """The template owns the special tokens, so none are added unless that is asked for."""
    variables = body.chat_template_kwargs or {}
    if taken := OWN_VARIABLES & variables.keys():
        raise RequestError(
            f"chat_template_kwargs has {', '.join(sorted(taken))}, which the request itself says",
            param="chat_template_kwargs",
        )
    text = service.loaded.render_chat(
        checked_messages(body.messages or []),
        add_generation_prompt=body.add_generation_prompt is not False,
        **variables,
    )
    return await service.encode(text, bool(body.add_special_tokens))


async def chat_job(body: ChatRequest, service: Service, arrived: float, caller: Caller) -> Job:
    """Without a maximum, all the room that the prompt leaves may be filled."""
    limits.check_fields(body)
    grammar = await grammar_of(body, service)
    prompt = await chat_tokens(body, service)
    room = service.room
    sampling = limits.sampling(
        body,
        max_tokens=room.max_tokens(
            len(prompt), body.max_completion_tokens or body.max_tokens, room.tokens, "messages"
        ),
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        vocab_size=service.vocab_size,
        eos_ids=service.loaded.eos_ids,
        grammar=grammar,
    )
    return Job(
        "chat", [(prompt, sampling)], body.n or 1, service.answer_maker(body), arrived, caller
    )


@dataclass(frozen=True, slots=True)
class ChatStyle:
    """Words pieces as chat chunks; `with_usage`: every chunk has a usage, null but in the last."""

    id: str
    created: int
    model: str
    names: TokenNames
    n: int
    logprobs: bool
    with_usage: bool

    def opening(self) -> Iterable[ChatChunk]:
        return [
            self._chunk([ChatChunkChoice(index=i, delta=ChatDelta(role="assistant", content=""))])
            for i in range(self.n)
        ]

    def chunks(self, index: int, piece: Piece) -> Iterable[ChatChunk]:
        if piece.text or piece.scored:
            delta = ChatDelta(content=piece.text)
            yield self._chunk(
                [ChatChunkChoice(index=index, delta=delta, logprobs=self._scored(piece.scored))]
            )
        if piece.finish is not None:
            yield self._chunk(
                [
                    ChatChunkChoice(
                        index=index,
                        delta=ChatDelta(),
                        finish_reason=piece.finish,
                        stop_reason=piece.stop_reason,
                    )
                ]
            )

    def usage_chunk(self, usage: Usage) -> ChatChunk:
        return self._chunk([], usage)

    def answer(self, answers: list[list[Piece]], usage: Usage) -> ChatCompletion:
        return ChatCompletion(
            id=self.id,
            created=self.created,
            model=self.model,
            choices=[
                ChatChoice(
                    index=index,
                    message=ChatMessage(content="".join(piece.text for piece in pieces)),
                    logprobs=self._scored([one for piece in pieces for one in piece.scored]),
                    finish_reason=pieces[-1].finish,
                    stop_reason=pieces[-1].stop_reason,
                )
                for index, pieces in enumerate(answers)
            ],
            usage=usage,
        )

    def _scored(self, scored: list[Scored]) -> ChatLogprobs | None:
        return ChatLogprobs([self.names.scored(one) for one in scored]) if self.logprobs else None

    def _chunk(self, choices: list[ChatChunkChoice], usage: Usage | None = None) -> ChatChunk:
        return ChatChunk(
            id=self.id,
            created=self.created,
            model=self.model,
            choices=choices,
            usage=usage if self.with_usage else msgspec.UNSET,
        )
