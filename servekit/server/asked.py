"""From the bytes of a request to what runs and how it is worded, whichever connection they came on.

bytes ─understood▶ Parsed ─prepared▶ Job, Style
"""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import msgspec

from servekit.engine.messages import Caller
from servekit.server import ignored, responses
from servekit.server.chat import ChatStyle, chat_job
from servekit.server.chat_prompt import unread_by_template
from servekit.server.completions import CompletionStyle, completion_job, echoes
from servekit.server.deadline import deadline, until
from servekit.server.generate import Job
from servekit.server.parse import Parsed, parse
from servekit.server.preparation import prepared_among
from servekit.server.response_style import ResponseStyle
from servekit.server.service import Service
from servekit.server.stream import Beside, Style, TokenNames, new_id
from servekit.server.wire import (
    ChatRequest,
    CompletionRequest,
    ResponsesRequest,
    SamplingFields,
)

Struct = TypeVar("Struct", bound=msgspec.Struct)
Prepared = tuple[Job, Style]


def understood(
    body: bytes, content_type: str, service: Service, kind: type[Struct], way: str | None
) -> Parsed[Struct]:
    """The body, with the names of what has no effect; where that is refused, an error.

    `way` is what the request itself says of unknown fields. Raises RequestError.
    """
    asked = parse(body, content_type, kind)
    names = unread_by_template(asked.body, service)
    if isinstance(asked.body, ResponsesRequest):
        names = [*responses.without_effect(asked.body)]
    asked = replace(asked, ignored=(*asked.ignored, *names))
    if ignored.way_of(way, service.config.server.unknown_fields) == "refuse":
        ignored.refuse(asked.ignored)
    return asked


async def chat(body: ChatRequest, service: Service, arrived: float, caller: Caller) -> Prepared:
    job = await chat_job(body, service, arrived, caller)
    style = ChatStyle(
        id=new_id("chatcmpl"),
        created=int(time.time()),
        model=body.model,
        names=TokenNames(service.loaded),
        n=job.n,
        logprobs=bool(body.logprobs),
        beside=Beside.of(body),
    )
    return job, style


async def completion(
    body: CompletionRequest, service: Service, arrived: float, caller: Caller
) -> Prepared:
    job = await completion_job(body, service, arrived, caller)
    style = CompletionStyle(
        id=new_id("cmpl"),
        created=int(time.time()),
        model=body.model,
        names=TokenNames(service.loaded),
        echoes=echoes(body, service),
        logprobs=body.logprobs is not None,
        beside=Beside.of(body),
    )
    return job, style


async def response(
    body: ResponsesRequest, service: Service, arrived: float, caller: Caller
) -> Prepared:
    job = await responses.response_job(body, service, arrived, caller)
    return job, ResponseStyle(new_id("resp"), responses.described(body), bool(body.timings))


@dataclass(frozen=True, slots=True)
class Route:
    """A body of this kind becomes a job and its style."""

    kind: type[SamplingFields]
    prepare: Callable[[Any, Service, float, Caller], Awaitable[Prepared]]

    async def prepared(
        self,
        asked: Parsed[Any],
        service: Service,
        arrived: float,
        caller: Caller,
        timeout: str | None,
    ) -> Prepared:
        """Raises what is wrong with the request or its `timeout`, and DeadlineExceeded once that
        is over, as it may be while a grammar waits for others."""
        due = deadline(timeout, arrived)
        service.check_model(asked.body.model)
        with prepared_among(service.preparations):
            async with until(due, arrived):
                job, style = await self.prepare(asked.body, service, arrived, caller)
        return replace(job, deadline=due), style


CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"

ROUTES = {
    CHAT: Route(ChatRequest, chat),
    COMPLETIONS: Route(CompletionRequest, completion),
    RESPONSES: Route(ResponsesRequest, response),
}
