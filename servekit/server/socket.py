"""/v1/stream: many requests on one WebSocket, with the events that their routes stream.

    {"id": "a", "route": "/v1/chat/completions", "body": {...}}        asks
    {"id": "a", "cancel": true}                                        gives up

    {"id": "a", "type": "event", "data": {...}}      a chunk, as the route's stream has it
    {"id": "a", "type": "done", ...}                 the last word; with `ignored_fields`, if there
                                                     are any, with `cancelled: true` if given up
    {"id": "a", "type": "error", "status": 400, "error": {...}}        instead, before any event

The id is the client's, and free again after the last word.
"""

import asyncio
import time
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import msgspec
from litestar import WebSocket, websocket
from litestar.exceptions import WebSocketDisconnect

from servekit.errors import BodyTooLarge, RequestError, ServekitError
from servekit.server.access import INFERENCE
from servekit.server.asked import ROUTES, understood
from servekit.server.errors import error_body, error_of
from servekit.server.health import Injected
from servekit.server.service import Service
from servekit.server.stream import encode, told

MAX_IN_FLIGHT = 128
MAX_ID = 128
MIB = 1 << 20
JSON = "application/json"

AnySocket = WebSocket[Any, Any, Any]


class Asked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a client sends; headers of the other routes are fields here."""

    id: str
    route: str | None = None
    body: msgspec.Raw = msgspec.Raw()
    cancel: bool = False
    unknown_fields: str | None = None
    timeout_ms: int | None = None


_asked = msgspec.json.Decoder(Asked)


@dataclass(slots=True)
class Conversation:
    """One connection and what runs for it; a request is a task under its id."""

    socket: AnySocket
    service: Service
    running: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    async def run(self) -> None:
        """Until the client goes; then all that runs for it is given up."""
        try:
            while True:
                await self.hear(await self.socket.receive_data(mode="text"))
        except WebSocketDisconnect:
            pass
        finally:
            tasks = [*self.running.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def hear(self, message: str) -> None:
        """Begins or cancels; what is wrong with the message itself is told at once."""
        name: str | None = None
        try:
            asked = self.read(message)
            name = asked.id
            if asked.cancel:
                self.cancel(name)
            else:
                await self.begin(asked)
        except ServekitError as error:
            await self.refuse(name, error)

    def read(self, message: str) -> Asked:
        """Raises RequestError for what is no message of ours."""
        limit = self.service.config.server.max_body_mib * MIB
        if len(message.encode(errors="surrogatepass")) > limit:
            raise BodyTooLarge("the message is larger than server.max_body_mib allows; send less")
        try:
            asked = _asked.decode(message)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise RequestError(f"the message is not one of /v1/stream: {error}") from None
        if len(asked.id) > MAX_ID:
            raise RequestError(f"an id has at most {MAX_ID} characters", param="id")
        return asked

    def cancel(self, name: str) -> None:
        """Of an id that is not in use: it has ended already, and has had its last word."""
        if (task := self.running.get(name)) is not None:
            task.cancel()

    async def begin(self, asked: Asked) -> None:
        if asked.id in self.running:
            raise RequestError("a request with this id is still running", param="id")
        if len(self.running) >= MAX_IN_FLIGHT:
            raise RequestError(f"{MAX_IN_FLIGHT} requests run on this connection; wait for one")
        self.running[asked.id] = asyncio.create_task(self.answer(asked))
        await asyncio.sleep(0)  # a task that is cancelled before it began would have no last word

    async def answer(self, asked: Asked) -> None:
        """Events and a last word, whatever happens."""
        try:
            names, parts = await self.prepared(asked, time.monotonic())
            async with aclosing(parts):
                async for chunks in parts:
                    for chunk in chunks:
                        await self.say(asked.id, "event", data=chunk)
            last: dict[str, Any] = {"ignored_fields": names} if names else {}
        except asyncio.CancelledError:
            last = {"cancelled": True}
        except Exception as error:
            self.running.pop(asked.id, None)
            await self.refuse(asked.id, error_of(error))
            return
        self.running.pop(asked.id, None)
        await self.say(asked.id, "done", **last)

    async def prepared(self, asked: Asked, arrived: float) -> tuple[list[str], Any]:
        """Names of what has no effect, and the chunks to come; raises what is wrong."""
        self.service.ensure_ready()
        route = ROUTES.get(asked.route or "")
        body = bytes(asked.body)
        if route is None or not body:
            raise RequestError(
                f"a request has a body and a route: {', '.join(ROUTES)}", param="route"
            )
        parsed = understood(body, JSON, self.service, route.kind, asked.unknown_fields)
        authorization = self.socket.headers.get("authorization")
        caller = self.service.callers.caller(authorization, parsed.body)
        timeout = None if asked.timeout_ms is None else str(asked.timeout_ms)
        job, style = await route.prepared(parsed, self.service, arrived, caller, timeout)
        return [*parsed.ignored], told(self.service, job, style)

    async def refuse(self, name: str | None, error: ServekitError) -> None:
        self.service.metrics.refused(error.code)
        retry = {} if error.retry_after_s is None else {"retry_after_s": error.retry_after_s}
        await self.say(name, "error", status=error.status, **error_body(error), **retry)

    async def say(self, name: str | None, kind: str, **fields: Any) -> None:
        await self.socket.send_text(encode({"id": name, "type": kind, **fields}).decode())


@websocket("/v1/stream", opt=INFERENCE)
async def stream(socket: AnySocket, service: Injected) -> None:
    await socket.accept()
    await Conversation(socket, service).run()
