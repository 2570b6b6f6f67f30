"""/v1/chat/completions: messages to a job, pieces to chunks or a message."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from servekit.engine.messages import Caller
from servekit.server import limits
from servekit.server.chat_prompt import chat_tokens
from servekit.server.constraint import grammar_of
from servekit.server.generate import Job
from servekit.server.running import Taken
from servekit.server.service import Service
from servekit.server.stream import Chunk, Chunked
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
    Usage,
)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatStyle(Chunked):
    """Words pieces as chat chunks; beside `beside`."""

    n: int

    def opening(self) -> list[Chunk]:
        delta, beside = ChatDelta(role="assistant", content=""), self.beside.fields(None)
        return [
            self._chunk([ChatChunkChoice(index=index, delta=delta)], beside)
            for index in range(self.n)
        ]

    def chunks(self, index: int, piece: Piece, usage: Usage | None) -> Iterable[Chunk]:
        beside = self.beside.fields(usage)
        if piece.text or piece.scored:
            delta, scored = ChatDelta(content=piece.text), self._scored(piece.scored)
            choice = ChatChunkChoice(index=index, delta=delta, logprobs=scored)
            yield self._chunk([choice], beside)
        if piece.finish is not None:
            choice = ChatChunkChoice(
                index=index,
                delta=ChatDelta(),
                finish_reason=piece.finish,
                stop_reason=piece.stop_reason,
            )
            yield self._chunk([choice], beside)

    def answer(self, answers: list[list[Piece]], taken: Taken) -> ChatCompletion:
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
            **self.beside.last_fields(taken),
        )

    def _scored(self, scored: list[Scored]) -> ChatLogprobs | None:
        return ChatLogprobs([self.names.scored(one) for one in scored]) if self.logprobs else None

    def _chunk(self, choices: list[ChatChunkChoice], beside: dict[str, Any]) -> ChatChunk:
        return ChatChunk(
            id=self.id, created=self.created, model=self.model, choices=choices, **beside
        )
