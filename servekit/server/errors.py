"""Whatever goes wrong leaves in one shape: `{"error": {"message", "type", "param", "code"}}`.

`param` is the name of a field whose value is refused, or a JSON pointer where the body does not
have the right form. Details of an error, such as its numbers, stand beside the four.
"""

import logging
import math
import uuid
from collections.abc import Callable
from typing import Any

import msgspec
from litestar import Request, Response
from litestar.exceptions import (
    HTTPException,
    MethodNotAllowedException,
    NotFoundException,
)
from litestar.exceptions.http_exceptions import RequestEntityTooLarge
from litestar.types import Send

from servekit.errors import (
    BodyTooLarge,
    EngineError,
    RequestError,
    RouteNotFound,
    ServekitError,
)
from servekit.server.connection import CLIENT_CLOSED_REQUEST, ClientGone

log = logging.getLogger(__name__)

AnyRequest = Request[Any, Any, Any]

READ_CUT_SHORT = "client disconnected prematurely"
"""How Litestar words that a client left while it was still sending."""


def error_body(error: ServekitError) -> dict[str, Any]:
    return {
        "error": {
            **error.details,
            "message": error.message,
            "type": error.kind,
            "param": error.param,
            "code": error.code,
        }
    }


def error_of(error: Exception) -> ServekitError:
    """Ours as it is; anything else is logged under an id, which is all that the client learns.

    What the engine says of a fault gets an id too, so that every answer of 500 has one.
    """
    error_id = uuid.uuid4().hex
    if isinstance(error, ServekitError):
        if error.status == 500 and isinstance(error, EngineError) and not error.details:
            error.details["error_id"] = error_id
            log.error("error %s: %s", error_id, error.message)
        return error
    log.error("unexpected error %s", error_id, exc_info=error)
    return EngineError(
        f"something went wrong on our side; the log has it under {error_id}",
        details={"error_id": error_id},
    )


def error_response(error: ServekitError, headers: dict[str, str] | None = None) -> Response[bytes]:
    kept = dict(headers or {})
    if error.retry_after_s is not None:
        kept["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))
    if error.status == 401:
        kept["www-authenticate"] = 'Bearer realm="servekit"'
    return Response(
        msgspec.json.encode(error_body(error)),
        status_code=error.status,
        media_type="application/json",
        headers=kept,
    )


async def send_error(error: ServekitError, send: Send) -> None:
    """The same without an application around it."""
    response = error_response(error)
    body = response.content
    headers = {
        **response.headers,
        "content-type": "application/json",
        "content-length": str(len(body)),
    }
    await send(
        {
            "type": "http.response.start",
            "status": error.status,
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }
    )
    await send({"type": "http.response.body", "body": body, "more_body": False})


def on_http_exception(request: AnyRequest, error: HTTPException) -> Response[bytes]:
    """What Litestar says before a handler is reached."""
    headers = {str(name): str(value) for name, value in (error.headers or {}).items()}
    return error_response(_translated(request, error), headers)


def _translated(request: AnyRequest, error: HTTPException) -> ServekitError:
    path = request.scope["path"]
    if isinstance(error, NotFoundException):
        if path in request.app.state.elsewhere:
            return RouteNotFound(
                f"{path} is not on this port; server.port takes prompts, and server.admin_port has "
                "metrics and plan"
            )
        return RouteNotFound(f"there is no {path} here; the API is under /v1")
    if isinstance(error, MethodNotAllowedException):
        refusal = RouteNotFound(
            f"{path} does not take {request.method}; it takes "
            f"{(error.headers or {}).get('allow', 'another method')}"
        )
        refusal.status, refusal.code = error.status_code, "method_not_allowed"
        return refusal
    if isinstance(error, RequestEntityTooLarge):
        return BodyTooLarge("the body is larger than server.max_body_mib allows; send less")
    if error.status_code < 500:
        return RequestError(error.detail)
    if error.detail == READ_CUT_SHORT:
        return RequestError("the body ended before it was complete")
    return error_of(error)


def on_client_gone(request: AnyRequest, error: ClientGone) -> Response[bytes]:
    return Response(b"", status_code=CLIENT_CLOSED_REQUEST)


def handlers(
    refused: Callable[[str], None],
) -> dict[int | type[Exception], Callable[[AnyRequest, Any], Response[bytes]]]:
    """The one table; `refused` hears the code of every error of a request."""

    def on_error(request: AnyRequest, error: Exception) -> Response[bytes]:
        ours = error_of(error)
        refused(ours.code)
        headers = {"connection": "close"} if request.app.state.service.draining else None
        return error_response(ours, headers)

    return {HTTPException: on_http_exception, ClientGone: on_client_gone, Exception: on_error}
