"""/v1/completions: one or many prompts to a job, pieces to chunks or choices."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from servekit.engine.messages import Caller
from servekit.errors import RequestError
from servekit.server import limits
from servekit.server.constraint import grammar_of
from servekit.server.generate import Job
from servekit.server.running import Taken
from servekit.server.service import Service
from servekit.server.stream import Chunk, Chunked
from servekit.server.text import Piece, Scored
from servekit.server.wire import (
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    CompletionRequest,
    Usage,
)

Prompt = str | list[int]


def prompts(body: CompletionRequest) -> list[Prompt]:
    """The four forms of `prompt` as one list of texts and id lists."""
    given = body.prompt
    if not isinstance(given, str) and given and not isinstance(given[0], int):
        _check_count(len(given))
    if isinstance(given, str):
        found: list[Prompt] = [given]
    elif given and all(isinstance(item, int) for item in given):
        found = [[item for item in given if isinstance(item, int)]]
    elif all(isinstance(item, str) for item in given):
        found = [item for item in given if isinstance(item, str)]
    elif all(isinstance(item, list) for item in given):
        found = [item for item in given if isinstance(item, list)]
    else:
        raise RequestError(
            "prompt mixes strings, token ids and lists; a list holds one kind", param="prompt"
        )
    if not found:
        raise RequestError("prompt is an empty list", param="prompt")
    return found


def _check_count(prompts: int) -> None:
    if prompts > limits.MAX_PROMPTS:
        raise RequestError(
            f"{prompts} prompts in one request, at most {limits.MAX_PROMPTS}", param="prompt"
        )


async def prompt_tokens(prompt: Prompt, body: CompletionRequest, service: Service) -> list[int]:
    """Token ids are taken as they are."""
    if isinstance(prompt, str):
        ids = await service.encode(prompt, body.add_special_tokens is not False, "prompt")
    else:
        service.room.check_ids(len(prompt))
        limits.check_token_ids(prompt, service.vocab_size, "prompt")
        ids = prompt
    if not ids:
        raise RequestError("prompt has no tokens; there is nothing to continue", param="prompt")
    return ids


async def completion_job(
    body: CompletionRequest, service: Service, arrived: float, caller: Caller
) -> Job:
    limits.check_fields(body)
    grammar = await grammar_of(body, service)
    pairs = []
    for prompt in prompts(body):
        ids = await prompt_tokens(prompt, body, service)
        sampling = limits.sampling(
            body,
            max_tokens=service.room.max_tokens(
                len(ids), body.max_tokens, limits.COMPLETION_TOKENS, "prompt"
            ),
            logprobs=body.logprobs,
            vocab_size=service.vocab_size,
            eos_ids=service.loaded.eos_ids,
            grammar=grammar,
        )
        pairs.append((ids, sampling))
    new_answer = service.answer_maker(body)
    return Job("text_completion", pairs, body.n or 1, new_answer, arrived, caller)


def echoes(body: CompletionRequest, service: Service) -> list[str]:
    """What each choice begins with: its prompt, if that was asked for, as it was given."""
    n = body.n or 1
    if not body.echo:
        return [""] * (len(prompts(body)) * n)
    texts = [
        prompt if isinstance(prompt, str) else service.loaded.decode(prompt, False)
        for prompt in prompts(body)
    ]
    return [text for text in texts for _ in range(n)]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionStyle(Chunked):
    """Words pieces as completion choices; `echoes` has the beginning of each."""

    echoes: list[str]

    def opening(self) -> list[Chunk]:
        beside = self.beside.fields(None)
        return [
            self._chunk([CompletionChoice(index=index, text=text)], beside)
            for index, text in enumerate(self.echoes)
            if text
        ]

    def chunks(self, index: int, piece: Piece, usage: Usage | None) -> Iterable[Chunk]:
        beside = self.beside.fields(usage)
        if piece.text or piece.scored:
            choice = CompletionChoice(
                index=index, text=piece.text, logprobs=self._scored(piece.scored)
            )
            yield self._chunk([choice], beside)
        if piece.finish is not None:
            choice = CompletionChoice(
                index=index,
                text="",
                finish_reason=piece.finish,
                stop_reason=piece.stop_reason,
            )
            yield self._chunk([choice], beside)

    def answer(self, answers: list[list[Piece]], taken: Taken) -> Completion:
        choices = [
            CompletionChoice(
                index=index,
                text=self.echoes[index] + "".join(piece.text for piece in pieces),
                logprobs=self._scored([one for piece in pieces for one in piece.scored]),
                finish_reason=pieces[-1].finish,
                stop_reason=pieces[-1].stop_reason,
            )
            for index, pieces in enumerate(answers)
        ]
        return self._chunk(choices, self.beside.last_fields(taken))

    def _scored(self, scored: list[Scored]) -> CompletionLogprobs | None:
        if not self.logprobs:
            return None
        words = [self.names.scored(one) for one in scored]
        return CompletionLogprobs(
            tokens=[word.token for word in words],
            token_logprobs=[word.logprob for word in words],
            top_logprobs=[self.names.by_key(one.token, one.logprobs) for one in scored],
            text_offset=[one.offset for one in scored],
        )

    def _chunk(self, choices: list[CompletionChoice], beside: dict[str, Any]) -> Completion:
        return Completion(
            id=self.id, created=self.created, model=self.model, choices=choices, **beside
        )
