"""The client's side of a request: whether it is still there, and a stream of events to it."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

from litestar import Response
from litestar.response.base import ASGIResponse
from litestar.types import Receive, Scope, Send

T = TypeVar("T")

log = logging.getLogger(__name__)

CLIENT_CLOSED_REQUEST = 499
"""Nobody reads this status; it is what proxies log for a client that went away."""


class ClientGone(Exception):
    """The client closed the connection before its answer was complete."""


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled the moment the client goes; then ClientGone.

    The request body must have been read.
    """
    working = asyncio.create_task(work)
    watching = asyncio.create_task(_gone(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGone
    finally:
        watching.cancel()
        working.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


class EventStream(Response[None]):
    """Server-sent events from a generator, which is closed when the client goes.

    What it raises before its first event is answered like any other error.
    """

    def __init__(self, events: AsyncGenerator[bytes, None], headers: dict[str, str]) -> None:
        super().__init__(None, headers=headers)
        self.events = events

    def to_asgi_response(self, app: object, request: object, **_: Any) -> ASGIResponse:
        return _EventStream(self.events, self.headers)


class _EventStream(ASGIResponse):
    _should_set_content_length = False

    def __init__(self, events: AsyncGenerator[bytes, None], headers: dict[str, str]) -> None:
        kept = {**headers, "cache-control": "no-cache", "x-accel-buffering": "no"}
        super().__init__(headers=kept, media_type="text/event-stream", status_code=200)
        self.events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await while_connected(receive, self._send_all(send))
        except ClientGone:
            log.debug("client left a stream")

    async def _send_all(self, send: Send) -> None:
        async with aclosing(self.events) as events:
            first = await anext(events)
            await self.start_response(send)
            await send({"type": "http.response.body", "body": first, "more_body": True})
            async for chunk in events:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
