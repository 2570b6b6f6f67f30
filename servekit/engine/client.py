"""The server's side of the engine: starts its process, gives requests to it, watches it.

This module and what it imports know nothing of torch, so that the server listens at once and stays
small.
"""

import asyncio
import logging
import os
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Literal, Self

import msgspec
import zmq
import zmq.asyncio

from servekit.config.schema import Config
from servekit.engine.channel import Launch, from_engine, to_engine, unbounded
from servekit.engine.heartbeat import Heartbeat
from servekit.engine.messages import (
    Abort,
    Beat,
    Caller,
    Delta,
    Deltas,
    Failed,
    FromEngine,
    Loading,
    Pin,
    Ready,
    Sampling,
    Stats,
    Step,
    Stop,
    Submit,
    ToEngine,
)
from servekit.engine.runtime_dir import RuntimeDir
from servekit.engine.spawn import spawn
from servekit.errors import EngineDied, NotReady, ServekitError, from_code
from servekit.model.vocabulary import Vocabulary

logger = logging.getLogger(__name__)

LAST_WORDS_S = 0.2
"""After the process has ended, how long its last messages may take to arrive."""


class RequestStream:
    """The deltas of one request, in order; iteration ends after the one with `finish`.

    Leave it early by `abort`, or leave an `async with` over it: the engine frees its blocks before
    its next step.
    """

    def __init__(self, id: int, client: "EngineClient") -> None:
        self.id = id
        self._client = client
        self._queue: asyncio.Queue[Delta] = asyncio.Queue()
        self._hear: Callable[[Delta], object] = self._queue.put_nowait
        self._over = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delta:
        if self._over:
            raise StopAsyncIteration
        delta = await self._queue.get()
        self._over = delta.finish is not None
        return delta

    def listen(self, hear: Callable[[Delta], object]) -> None:
        """Instead of iterating: `hear` is called with each delta as it comes."""
        self._hear = hear
        while not self._queue.empty():
            hear(self._queue.get_nowait())

    def push(self, delta: Delta) -> None:
        self._hear(delta)

    def abort(self) -> None:
        """Ends an unfinished request, once; the deltas that have come are followed by the end."""
        self._client.abort(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        self.abort()


class EngineClient:
    """One engine process. All of its methods belong to the event loop that `start` was called in.

    `state` goes from "loading" to "ready" to "dead", or straight to "dead". When the process ends
    without being asked, every open stream gets a last delta that says so.
    """

    def __init__(self, config: Config, path: Path) -> None:
        self.config = config
        self.path = path
        self.state: Literal["loading", "ready", "dead"] = "loading"
        self.progress = Loading("start", 0, 0)
        self.info: Ready | None = None
        self.stats: Stats | None = None
        self.error: ServekitError | None = None
        self.heartbeat = Heartbeat(config.server.hang_s)
        self.process: subprocess.Popen[bytes] | None = None
        self.on_step: Callable[[Step], None] = lambda step: None
        """Hears of every step."""
        self._streams: dict[int, RequestStream] = {}
        self._ids = count()
        self._encoder = msgspec.msgpack.Encoder()
        self._ready = asyncio.Event()
        self._ended = asyncio.Event()

    def start(self) -> None:
        """Spawns the process, in the thread of the running event loop.

        The thread matters: Linux takes the end of the thread that spawned for that of the parent.
        """
        self._runtime_dir = RuntimeDir()
        runtime_dir = self._runtime_dir.path
        self._context = zmq.asyncio.Context()
        self._incoming = self._context.socket(zmq.PULL)
        self._outgoing: zmq.Socket[bytes] = zmq.Context(self._context).socket(zmq.PUSH)
        for socket in (self._incoming, self._outgoing):
            unbounded(socket, linger_ms=0)
        self._incoming.bind(from_engine(runtime_dir))
        self._outgoing.connect(to_engine(runtime_dir))
        self.process = spawn(Launch(self.config, self.path, runtime_dir, os.getpid()))
        self._reader = asyncio.create_task(self._read(), name="engine messages")
        loop = asyncio.get_running_loop()
        threading.Thread(
            target=_watch, args=(self.process, loop, self._ended), name="engine watch", daemon=True
        ).start()
        self._undertaker = asyncio.create_task(self._bury(), name="engine end")

    async def wait_ready(self) -> Ready:
        """Raises the engine's own error, or EngineDied, if it ends before it is ready."""
        await self._ready.wait()
        if self.info is None or self.state == "dead":
            raise self.error or EngineDied("the engine was stopped before it was ready")
        return self.info

    @property
    def num_open(self) -> int:
        """Requests that were submitted and have not ended."""
        return len(self._streams)

    def submit(self, prompt: list[int], sampling: Sampling, caller: Caller) -> RequestStream:
        """Raises NotReady or EngineDied; a refusal of the engine comes as the only delta."""
        if self.state == "loading":
            raise NotReady("the engine is loading", retry_after_s=2.0)
        if self.state == "dead":
            raise EngineDied(self.error.message if self.error else "the engine was stopped")
        stream = RequestStream(next(self._ids), self)
        self._streams[stream.id] = stream
        self._send(Submit(stream.id, prompt, sampling, caller))
        return stream

    def pin(self, prompt: list[int]) -> None:
        """Keeps what is cached of these tokens longer than anything else."""
        self._send(Pin(prompt))

    def learn(self, vocabulary: Vocabulary) -> None:
        """What grammars are compiled for; before the first request that has one."""
        self._send(vocabulary)

    def abort(self, stream: RequestStream) -> None:
        """See RequestStream.abort."""
        if self._streams.pop(stream.id, None) is not None:
            stream.push(Delta(stream.id, [], finish="abort"))
            self._send(Abort([stream.id]))

    async def stop(self, timeout_s: float = 5.0) -> None:
        """Ends the process, in order if it can within `timeout_s`, and leaves nothing behind.

        Requests still open end with an error. An engine that is loading is killed: it hears nothing
        and holds nothing.
        """
        if self.process is None:
            self._die(None)
            return
        if self.state == "ready":
            self._send(Stop())
            await _within(timeout_s, self._ended)
        if not self._ended.is_set():
            self.process.kill()
        await self._undertaker

    def kill(self) -> None:
        """Ends the process at once, for a parent that ends at once too."""
        if self.process is not None:
            self.process.kill()
            self._runtime_dir.remove()

    def give_up(self, why: str) -> None:
        """Ends a process that does not answer; its requests end with `why`."""
        if self.process is not None and self.error is None:
            self.error = EngineDied(why)
            self.process.kill()

    def _send(self, message: ToEngine) -> None:
        if self.state != "dead":
            self._outgoing.send(self._encoder.encode(message), zmq.NOBLOCK)

    async def _read(self) -> None:
        decoder = msgspec.msgpack.Decoder(FromEngine)
        while True:
            self._receive(decoder.decode(await self._incoming.recv()))

    def _receive(self, message: FromEngine) -> None:
        self.heartbeat.hear(message.step_s if isinstance(message, Beat) else 0.0)
        match message:
            case Deltas():
                self.stats = message.stats
                if message.step is not None:
                    self.on_step(message.step)
                for event in message.events:
                    self._dispatch(Delta(event.id, [], events=[event]))
                for delta in message.all():
                    self._dispatch(delta)
            case Loading():
                self.progress = message
            case Ready():
                self.info = message
                self.heartbeat.loading = False
                self.heartbeat.slowest_step_s = message.slowest_step_s
                self.state = "ready"
                self._ready.set()
            case Failed():
                self.error = from_code(message.code, message.error)

    def _dispatch(self, delta: Delta) -> None:
        stream = self._streams.get(delta.id)
        if stream is None:
            return  # aborted, and the engine did not know yet
        if delta.finish is not None:
            del self._streams[delta.id]
        stream.push(delta)

    async def _bury(self) -> None:
        """Once the process has ended: hears its last words, ends what is open, cleans up."""
        await self._ended.wait()
        await asyncio.sleep(LAST_WORDS_S)
        self._reader.cancel()
        assert self.process is not None, "something ended"
        self._die(self.process.returncode)
        self._incoming.close()
        self._outgoing.close()
        self._context.term()
        self._runtime_dir.remove()

    def _die(self, exit_code: int | None) -> None:
        self.state = "dead"
        if exit_code and self.error is None:
            self.error = EngineDied(f"the engine process ended with exit code {exit_code}")
        why = self.error.message if self.error else "the engine was stopped"
        for stream in self._streams.values():
            error = f"{why}; the request was not finished"
            stream.push(
                Delta(stream.id, [], finish="error", error=error, error_code=EngineDied.code)
            )
        self._streams.clear()
        self._ready.set()


def _watch(
    process: subprocess.Popen[bytes], loop: asyncio.AbstractEventLoop, ended: asyncio.Event
) -> None:
    process.wait()
    with suppress(RuntimeError):  # the loop is closed: nobody waits
        loop.call_soon_threadsafe(ended.set)


async def _within(timeout_s: float, event: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        logger.warning("the engine did not stop within %.1f s", timeout_s)
