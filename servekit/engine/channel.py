"""The two sockets between server and engine process, in a runtime directory of their own.

The server's process makes the directory and passes a `Launch` to the engine's standard input. It
listens for messages from the engine; the engine listens for those to it. A socket that connects
may send before the other listens, so nothing is lost while a process starts.
"""

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import zmq

from servekit.config.schema import Config
from servekit.engine.messages import FromEngine, ToEngine

READABLE = int(zmq.POLLIN)

LINGER_MS = 2000
"""How long a last message may take to leave."""


@dataclass(frozen=True, slots=True)
class Launch:
    """What an engine process is told at its start."""

    config: Config
    path: Path
    """the weights: a .gguf file or a Hugging Face folder"""
    runtime_dir: Path
    parent_pid: int


def to_engine(runtime_dir: Path) -> str:
    return f"ipc://{runtime_dir}/to_engine"


def from_engine(runtime_dir: Path) -> str:
    return f"ipc://{runtime_dir}/from_engine"


def unbounded(socket: zmq.Socket[Any], linger_ms: int) -> None:
    """Never drops or blocks: what may be in flight is bounded by the scheduler's queue."""
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.LINGER, linger_ms)


class Mailbox:
    """The engine's end."""

    def __init__(self, runtime_dir: Path) -> None:
        self._context = zmq.Context()
        self._incoming = self._context.socket(zmq.PULL)
        self._outgoing = self._context.socket(zmq.PUSH)
        for socket in (self._incoming, self._outgoing):
            unbounded(socket, LINGER_MS)
        self._incoming.bind(to_engine(runtime_dir))
        self._outgoing.connect(from_engine(runtime_dir))
        self._decoder = msgspec.msgpack.Decoder(ToEngine)
        self._encoder = msgspec.msgpack.Encoder()
        self._sending = threading.Lock()
        self._pollers: dict[int | None, zmq.Poller] = {}

    def receive(self, wait_s: float | None, until: int | None = None) -> list[ToEngine]:
        """All that has come; if nothing has, waits for it so long, None for ever.

        It waits no longer once the descriptor `until` can be read.
        """
        messages = self._come()
        if messages or wait_s == 0:
            return messages
        self._poller(until).poll(None if wait_s is None else int(wait_s * 1000))
        return self._come()

    def _come(self) -> list[ToEngine]:
        messages: list[ToEngine] = []
        while int(self._incoming.get(zmq.EVENTS)) & READABLE:
            messages.append(self._decoder.decode(self._incoming.recv()))
        return messages

    def _poller(self, until: int | None) -> zmq.Poller:
        """Kept: this is asked for several times a step."""
        if (poller := self._pollers.get(until)) is None:
            poller = self._pollers[until] = zmq.Poller()
            poller.register(self._incoming, zmq.POLLIN)
            if until is not None:
                poller.register(until, zmq.POLLIN)
        return poller

    def send(self, message: FromEngine) -> None:
        """Also from the thread that loads, while the loop's own says that it is there."""
        with self._sending:
            self._outgoing.send(self._encoder.encode(message))

    def close(self) -> None:
        """Returns once the last message has left."""
        self._incoming.close()
        self._outgoing.close()
        self._context.term()
