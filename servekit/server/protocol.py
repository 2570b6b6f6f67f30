"""HTTP/1.1 with limits: uvicorn's protocol, and what it leaves open.

A request whose head is too large, or whose head or body does not come to an end, a connection too
many, and what is no HTTP at all: each gets an error in the one shape, and its connection is closed.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Literal

import msgspec
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from servekit.errors import HeadTooLarge, RequestError, ServekitError, TooManyConnections, TooSlow
from servekit.server.errors import error_body
from servekit.server.frames import BoundedFrames

MAX_HEAD_BYTES = 64 << 10
MAX_HEADERS = 128
LINGER_S = 1.0
"""How long a refused client may go on sending before it is cut off: who is cut off while it sends
may never see the answer."""
KEEP_ALIVE_S = 75
"""Longer than the minute after which load balancers close idle connections, so that they do it."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """`refused` hears the code of every error that is answered here."""

    read_timeout_s: float
    max_connections: int
    going_down: Callable[[], bool]
    refused: Callable[[str], None]


class BoundedConfig(uvicorn.Config):
    """uvicorn's, with the bounds of each connection."""

    def __init__(self, app: Any, bounds: Bounds, **options: Any) -> None:
        super().__init__(
            app,
            http=BoundedProtocol,
            ws=BoundedFrames,
            timeout_keep_alive=KEEP_ALIVE_S,
            **options,
        )
        self.bounds = bounds


class BoundedProtocol(HttpToolsProtocol):
    """One connection. `stage` says what of a request is awaited; None: nothing, it is complete."""

    config: BoundedConfig

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.bounds = self.config.bounds
        self.stage: Literal["head", "body"] | None = None
        self.head_bytes = 0
        self.surplus = False
        self.fault: ServekitError | None = None
        self.timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.surplus = len(self.connections) > self.bounds.max_connections
        self._await("head")

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.fault is not None:
            return
        if self.surplus:
            limit = self.bounds.max_connections
            self.refuse(
                TooManyConnections(
                    f"{limit} connections are open, and server.max_connections, or the limit of "
                    "open files, allows no more; use fewer, or come again",
                    retry_after_s=1.0,
                )
            )
            return
        if self.stage != "body":
            self.head_bytes += len(data)
        super().data_received(data)
        if self.stage == "head" and self.head_bytes > MAX_HEAD_BYTES and self.fault is None:
            self.refuse(_too_large())

    def handle_websocket_upgrade(self) -> None:
        self._stop_waiting()
        super().handle_websocket_upgrade()

    def send_400_response(self, msg: str) -> None:
        """What uvicorn does where its parser gives up, also because a callback below raised."""
        if self.fault is None:
            self.refuse(RequestError("what came is not HTTP/1.1; check the client, or its proxy"))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._await("head")

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        if len(self.headers) > MAX_HEADERS:
            self.refuse(_too_large())
            raise HeadTooLarge("enough")

    def on_headers_complete(self) -> None:
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > MAX_HEAD_BYTES:
            self.refuse(_too_large())
            raise HeadTooLarge("enough")
        super().on_headers_complete()
        self.head_bytes = 0
        self._await("body")
        if self.cycle is not None and self.bounds.going_down():
            self.cycle.keep_alive = False

    def on_message_complete(self) -> None:
        self._stop_waiting()
        super().on_message_complete()

    def refuse(self, error: ServekitError) -> None:
        """Says `error` if nothing has been said yet, and closes the connection."""
        self.fault, cycle, in_body = error, self.cycle, self.stage == "body"
        self._stop_waiting()
        self.bounds.refused(error.code)
        if not in_body and cycle is not None and not cycle.response_complete:
            # the request before is still being answered; nobody sees more than that
            cycle.keep_alive = False
            return
        if not in_body or not cycle.response_started:
            self.transport.write(_response(error))
        if in_body and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()
        self.loop.call_later(LINGER_S, self.transport.close)

    def _await(self, stage: Literal["head", "body"]) -> None:
        self._stop_waiting()
        self.stage = stage
        self.timer = self.loop.call_later(self.bounds.read_timeout_s, self._too_slow)

    def _stop_waiting(self) -> None:
        self.stage = None
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def _too_slow(self) -> None:
        stage = self.stage
        if stage is None:
            return
        if self.flow.read_paused:
            # it is this side that does not read: a request before it is not answered yet
            self._await(stage)
        elif stage == "head" and self.head_bytes == 0:
            self.transport.close()
        else:
            seconds = self.bounds.read_timeout_s
            self.refuse(
                TooSlow(
                    f"the {stage} of the request did not come to an end within {seconds:g} s, "
                    "which is server.read_timeout_s; send it faster, or send less"
                )
            )


def _too_large() -> HeadTooLarge:
    return HeadTooLarge(
        f"the head of a request may have {MAX_HEADERS} headers and {MAX_HEAD_BYTES} bytes; "
        "send fewer headers, or shorter ones"
    )


def _response(error: ServekitError) -> bytes:
    body = msgspec.json.encode(error_body(error))
    lines = [
        f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}",
        "content-type: application/json",
        f"content-length: {len(body)}",
        "connection: close",
    ]
    if error.retry_after_s is not None:
        lines.append(f"retry-after: {max(1, round(error.retry_after_s))}")
    return "\r\n".join([*lines, "", ""]).encode() + body
