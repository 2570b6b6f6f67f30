"""The API in the words of OpenAPI 3.1, made from what is registered and from the wire types.

`BODIES` has what the routes take and give. What may be refused is what the tree of errors has, so
no status is documented that no error has, or the other way about.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
from litestar import Litestar, Request, Response, get
from litestar.handlers import HTTPRouteHandler

from servekit import __version__
from servekit.errors import EngineError, NotReady, Overloaded, RequestError, ServekitError
from servekit.server.access import INFERENCE, Access
from servekit.server.health import ALWAYS, Injected, json
from servekit.server.limits import RANGES
from servekit.server.wire import (
    ChatCompletion,
    ChatRequest,
    Completion,
    CompletionRequest,
    DetokenizeRequest,
    DetokenizeResponse,
    ModelCard,
    ModelList,
    ResponsesRequest,
    TokenizeRequest,
    TokenizeResponse,
)

Json = dict[str, Any]

TOLD = (RequestError, Overloaded, NotReady, EngineError)
"""Of the tree of errors, what a client may get."""

NAMES = "#/components/schemas/{name}"


class ErrorDetail(msgspec.Struct, frozen=True):
    """`param` is the field that is wrong, or a JSON pointer to what has a wrong form."""

    message: str
    type: str
    param: str | None
    code: str


class Error(msgspec.Struct, frozen=True):
    error: ErrorDetail


@dataclass(frozen=True, slots=True)
class Body:
    """What a route takes, and gives as JSON (dict: any object; None: no JSON), and which texts."""

    takes: type[msgspec.Struct] | None = None
    gives: type[msgspec.Struct] | type[dict[str, Any]] | None = dict
    texts: tuple[str, ...] = ()

    @property
    def types(self) -> list[type[msgspec.Struct]]:
        """Those that are components of the document."""
        both = (self.takes, self.gives)
        return [kind for kind in both if kind is not None and issubclass(kind, msgspec.Struct)]


TEXT: Json = {"type": "string"}
TEXTS: dict[str, Json] = {
    "text/event-stream": {
        "type": "object",
        "description": "each event; data is a chunk as JSON, or [DONE] in the last",
        "required": ["data"],
        "properties": {"event": {"type": "string"}, "data": {"type": "string"}},
    },
}
"""Of texts that are more; before OpenAPI 3.2 the schema of a stream is that of each event."""

EVENTS = ("text/event-stream",)
BODIES = {
    "/v1/chat/completions": Body(ChatRequest, ChatCompletion, EVENTS),
    "/v1/completions": Body(CompletionRequest, Completion, EVENTS),
    "/v1/responses": Body(ResponsesRequest, dict, EVENTS),
    "/tokenize": Body(TokenizeRequest, TokenizeResponse),
    "/detokenize": Body(DetokenizeRequest, DetokenizeResponse),
    "/v1/models": Body(gives=ModelList),
    "/v1/models/{name}": Body(gives=ModelCard),
    "/metrics": Body(gives=None, texts=("text/plain",)),
    "/dashboard": Body(gives=None, texts=("text/html",)),
    "/dashboard/dashboard.css": Body(gives=None, texts=("text/css",)),
    "/dashboard/dashboard.js": Body(gives=None, texts=("text/javascript",)),
    "/dashboard/plotly.js": Body(gives=None, texts=("text/javascript",)),
}
"""Of routes that take a body, or give more than an object."""


def refusals() -> dict[int, set[str]]:
    """The codes of errors by their status."""
    found: dict[int, set[str]] = {}
    kinds: list[type[ServekitError]] = list(TOLD)
    for kind in kinds:
        kinds += kind.__subclasses__()
        found.setdefault(kind.status, set()).add(kind.code)
    return found


def document(app: Litestar) -> Json:
    """Of the routes that `app` has."""
    config = app.state.service.config
    types = [Error, *(kind for body in BODIES.values() for kind in body.types)]
    _, schemas = msgspec.json.schema_components(types, ref_template=NAMES)
    for body in BODIES.values():
        if body.takes is not None:
            _refine(schemas[body.takes.__name__]["properties"], config.model.name)
    paths: dict[str, Json] = {}
    for path, method, handler in _operations(app):
        paths.setdefault(path, {})[method] = _operation(path, handler)
    return {
        "openapi": "3.1.0",
        "info": {"title": "servekit", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operations(app: Litestar) -> Iterator[tuple[str, str, HTTPRouteHandler]]:
    """Path, method and handler, but for what Litestar adds by itself."""
    for route in app.routes:
        for handler in getattr(route, "route_handlers", ()):
            if "access" in handler.opt:
                path = str(route.path).replace(":path}", "}")
                for method in sorted(handler.http_methods):
                    yield path, method.lower(), handler


def _operation(path: str, handler: HTTPRouteHandler) -> Json:
    access, body = handler.opt["access"], BODIES.get(path, Body())
    operation: Json = {
        "operationId": f"{handler.handler_name.rpartition('.')[2]}{path.replace('/', '_')}",
        "summary": (handler.fn.__doc__ or path).partition("\n")[0].strip(),
        "security": [] if access == "public" else [{"key": []}],
        "responses": {"200": _success(body), **_failures(access)},
    }
    if body.takes is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": _named(body.takes)}},
        }
    if "{name}" in path:
        name = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
        operation["parameters"] = [name]
    return operation


def _success(body: Body) -> Json:
    content: Json = {text: {"schema": TEXTS.get(text, TEXT)} for text in body.texts}
    if body.gives is not None:
        schema = {"type": "object"} if body.gives is dict else _named(body.gives)
        content["application/json"] = {"schema": schema}
    return {"description": "what was asked for", "content": content}


def _failures(access: Access) -> dict[str, Json]:
    """A probe says no with reasons, any other route with an error."""
    if access == "public":
        object_ = {"application/json": {"schema": {"type": "object"}}}
        return {"503": {"description": "not now, and why", "content": object_}}
    return {
        str(status): {
            "description": ", ".join(sorted(codes)),
            "content": {"application/json": {"schema": _named(Error)}},
        }
        for status, codes in sorted(refusals().items())
    }


def _named(kind: type) -> Json:
    return {"$ref": NAMES.format(name=kind.__name__)}


CONTENT: Json = {
    "anyOf": [
        {"type": "string"},
        {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["type", "text"],
                "properties": {"type": {"enum": ["text"]}, "text": {"type": "string"}},
            },
        },
    ]
}
"""Of a message: a text, or parts that are texts."""


def _refine(properties: Json, model: str) -> None:
    """What the types do not say of a request: the limits, the model, what a message has."""
    for name, (low, high) in RANGES.items():
        for choice in properties.get(name, {}).get("anyOf", ()):
            if choice.get("type") in ("integer", "number"):
                choice |= {"minimum": low, "maximum": high}
    for choice in (named := properties["model"]).get("anyOf", [named]):
        if choice["type"] == "string":
            choice["enum"] = [model]
    for choice in (messages := properties.get("messages", {})).get("anyOf", [messages]):
        if choice.get("type") == "array":
            choice["items"] = {
                "type": "object",
                "required": ["role", "content"],
                "properties": {"role": {"type": "string"}, "content": CONTENT},
            }


@get("/openapi.json", opt=ALWAYS | INFERENCE)
async def openapi(request: Request[Any, Any, Any], service: Injected) -> Response[bytes]:
    """This document."""
    return json(document(request.app))


HANDLERS: list[HTTPRouteHandler] = [openapi]
