"""The OpenAI routes, and two that show the tokenizer at work."""

import time
from typing import Any, TypeVar

import msgspec
from litestar import Request, Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath

from servekit.engine.messages import Caller
from servekit.errors import RequestError
from servekit.server import limits
from servekit.server.access import INFERENCE
from servekit.server.asked import CHAT, COMPLETIONS, RESPONSES, ROUTES, understood
from servekit.server.chat_prompt import chat_roles, chat_tokens
from servekit.server.connection import EventStream, while_connected
from servekit.server.deadline import HEADER
from servekit.server.generate import Job
from servekit.server.health import Injected, json
from servekit.server.ignored import UNKNOWN_FIELDS_HEADER
from servekit.server.parse import Parsed
from servekit.server.service import Service
from servekit.server.stream import Style, collect, events
from servekit.server.wire import (
    DetokenizeRequest,
    DetokenizeResponse,
    ModelCard,
    ModelList,
    SamplingFields,
    TokenizeRequest,
    TokenizeResponse,
)

Struct = TypeVar("Struct", bound=msgspec.Struct)
AnyRequest = Request[Any, Any, Any]
AnyResponse = Response[Any]


async def read(request: AnyRequest, service: Service, kind: type[Struct]) -> Parsed[Struct]:
    way = request.headers.get(UNKNOWN_FIELDS_HEADER)
    return understood(await request.body(), request.content_type[0], service, kind, way)


async def respond(
    request: AnyRequest, service: Service, asked: Parsed[Any], job: Job, style: Style
) -> AnyResponse:
    """A stream or an answer; both end the moment the client goes."""
    fields: SamplingFields = asked.body
    if fields.stream:
        service.admit(job.size)
        return EventStream(events(service, job, style), headers=asked.headers)
    answer = await while_connected(request.receive, collect(service, job, style))
    return json(answer, headers=asked.headers)


def caller_of(request: AnyRequest, service: Service, fields: SamplingFields) -> Caller:
    return service.callers.caller(request.headers.get("authorization"), fields)


async def generate(request: AnyRequest, service: Service, path: str) -> AnyResponse:
    arrived = time.monotonic()
    asked = await read(request, service, ROUTES[path].kind)
    caller = caller_of(request, service, asked.body)
    timeout = request.headers.get(HEADER)
    job, style = await ROUTES[path].prepared(asked, service, arrived, caller, timeout)
    return await respond(request, service, asked, job, style)


@post(CHAT, status_code=200, opt=INFERENCE)
async def chat_completions(request: AnyRequest, service: Injected) -> AnyResponse:
    return await generate(request, service, CHAT)


@post(COMPLETIONS, status_code=200, opt=INFERENCE)
async def completions(request: AnyRequest, service: Injected) -> AnyResponse:
    return await generate(request, service, COMPLETIONS)


@post(RESPONSES, status_code=200, opt=INFERENCE)
async def responses(request: AnyRequest, service: Injected) -> AnyResponse:
    return await generate(request, service, RESPONSES)


@post("/tokenize", status_code=200, opt=INFERENCE)
async def tokenize(request: AnyRequest, service: Injected) -> AnyResponse:
    asked = await read(request, service, TokenizeRequest)
    body = asked.body
    if body.model is not None:
        service.check_model(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise RequestError("send either prompt or messages", param="prompt")
    if body.prompt is not None:
        tokens = await service.encode(body.prompt, body.add_special_tokens is not False)
    else:
        tokens = await chat_tokens(body, service)
    answer = TokenizeResponse(len(tokens), service.room.max_model_len, tokens)
    return json(answer, headers=asked.headers)


@post("/detokenize", status_code=200, opt=INFERENCE)
async def detokenize(request: AnyRequest, service: Injected) -> AnyResponse:
    asked = await read(request, service, DetokenizeRequest)
    body = asked.body
    if body.model is not None:
        service.check_model(body.model)
    limits.check_token_ids(body.tokens, service.vocab_size, "tokens")
    text = service.loaded.decode(body.tokens, False)
    return json(DetokenizeResponse(text), headers=asked.headers)


def model_card(service: Service) -> ModelCard:
    return ModelCard(
        id=service.config.model.name,
        created=service.created,
        root=service.config.model.source,
        max_model_len=service.room.max_model_len,
        roles=chat_roles(service.loaded),
        default_sampling=limits.DEFAULT_SAMPLING,
    )


@get("/v1/models", opt=INFERENCE)
async def models(service: Injected) -> AnyResponse:
    return json(ModelList(data=[model_card(service)]))


@get("/v1/models/{name:path}", opt=INFERENCE)
async def model(name: FromPath[str], service: Injected) -> AnyResponse:
    """A name may have slashes in it, so it takes the rest of the path."""
    service.check_model(name.removeprefix("/"))
    return json(model_card(service))


HANDLERS: list[HTTPRouteHandler] = [
    *(chat_completions, completions, responses, tokenize, detokenize, models, model),
]
