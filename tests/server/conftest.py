"""A server over a scripted engine: real HTTP, no model."""

import asyncio
import codecs
import math
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
import uvicorn

from servekit.config.schema import Config
from servekit.engine.heartbeat import Heartbeat
from servekit.engine.messages import Caller, Delta, Event, Ready, Sampling, Stats, TokenLogprobs
from servekit.errors import EngineDied, TemplateError
from servekit.server.app import build_app
from servekit.server.lifecycle import Lifecycle
from servekit.server.ports import Server, bounds_of
from servekit.server.protocol import BoundedConfig
from servekit.server.service import Service
from servekit.telemetry.exporters import exporter_of
from servekit.telemetry.metrics import Metrics
from servekit.telemetry.service_level import promised
from tests.conftest import tiny_config

BOS, EOS, END = 256, 257, 258
SPECIAL = {BOS: "<bos>", EOS: "<eos>", END: "<end>"}


class ByteStream:
    def __init__(self, skip_special_tokens: bool) -> None:
        self.skip = skip_special_tokens
        self.decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, ids: Sequence[int]) -> str:
        return "".join(self.decoder.decode(byte_piece(token, self.skip)) for token in ids)

    def finish(self) -> str:
        return self.decoder.decode(b"", final=True)


def byte_piece(token: int, skip_special: bool) -> bytes:
    if token in SPECIAL:
        return b"" if skip_special else SPECIAL[token].encode()
    return bytes([token])


class ByteTokenizer:
    """A token is a byte; three more are special."""

    vocab_size = 259
    eos_ids = frozenset({EOS, END})
    longest_token = 4

    has_chat_template = True
    template_names = frozenset({"role", "content"})

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [BOS] * add_special_tokens + list(text.encode())

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        stream = self.text_stream(skip_special_tokens)
        return stream.push(ids) + stream.finish()

    def token_bytes(self, token_id: int, skip_special_tokens: bool = True) -> bytes:
        return byte_piece(token_id, skip_special_tokens)

    def text_stream(
        self, skip_special_tokens: bool = True, continues_text: bool = False
    ) -> ByteStream:
        return ByteStream(skip_special_tokens)

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        if any(message["role"] == "tool" for message in messages):
            raise TemplateError("this template knows no tools", param="messages")
        said = "".join(f"{one['role']}: {one['content']}\n" for one in messages)
        return said + "assistant: " * add_generation_prompt


class Telling:
    """A stream of deltas that one iterates over, for those who listen."""

    def listen(self, hear: Callable[[Delta | Exception], None]) -> None:
        self.telling = asyncio.ensure_future(self._tell(hear))

    async def _tell(self, hear: Callable[[Delta | Exception], None]) -> None:
        try:
            async for delta in self:  # type: ignore[attr-defined]
                hear(delta)
        except Exception as error:
            hear(error)


@dataclass
class FakeStream(Telling):
    engine: "FakeEngine"
    prompt: list[int]
    sampling: Sampling
    caller: Caller
    aborted: bool = False
    finished: bool = False
    waker: asyncio.Event = field(default_factory=asyncio.Event)

    def abort(self) -> None:
        self.aborted = not self.finished
        self.waker.set()

    async def _step(self) -> None:
        try:
            await asyncio.wait_for(self.waker.wait(), self.engine.step_s or 0.0001)
        except TimeoutError:
            if not self.engine.step_s:
                await asyncio.sleep(0)

    async def __aiter__(self) -> AsyncIterator[Delta]:
        if self.engine.refusal is not None:
            error, code, retry_after_s = self.engine.refusal
            yield Delta(
                0,
                [],
                finish="error",
                error=error,
                error_code=code,
                retry_after_s=retry_after_s,
            )
            return
        yield Delta(0, [])
        if self.engine.events:
            yield Delta(0, [], events=self.engine.events)
        tokens = self.engine.script(self.prompt, self.sampling)[: self.sampling.max_tokens]
        stops = set(self.sampling.stop_token_ids)
        size = self.engine.tokens_per_step
        for start in range(0, len(tokens), size):
            await self._step()
            if self.engine.state == "dead":
                raise EngineDied("the engine process is gone")
            if self.aborted:
                yield Delta(0, [], finish="abort")
                return
            part = tokens[start : start + size]
            stop = next((token for token in part if token in stops), None)
            if stop is not None:
                part = part[: part.index(stop) + 1]
            last = stop is not None or start + size >= len(tokens)
            self.finished = last
            yield Delta(
                0,
                part,
                logprobs=self._logprobs(part),
                finish=("length" if stop is None else "stop") if last else None,
                stop_token=stop,
                cached_tokens=self.engine.cached_tokens,
                preemptions=self.engine.preemptions,
                queue_s=0.25,
                prefill_s=0.5,
            )
            if last:
                return

    def _logprobs(self, tokens: list[int]) -> list[TokenLogprobs] | None:
        count = self.sampling.logprobs
        if count is None:
            return None
        tops = [(ord("a") + i, -1.0 - i if i else float("-inf")) for i in range(count)]
        return [TokenLogprobs(-0.5, tops) for _ in tokens]


def says(text: str, end: int | None = EOS) -> Callable[[list[int], Sampling], list[int]]:
    tokens = [*text.encode(), *([] if end is None else [end])]
    return lambda prompt, sampling: tokens


@dataclass
class FakeEngine:
    """Says what `script` says, a few tokens a step; remembers what it was asked."""

    state: str = "ready"
    info: Ready | None = field(
        default_factory=lambda: Ready(
            max_model_len=256,
            max_servable_tokens=1024,
            capacity_tokens=1024,
            num_blocks=65,
            weights_bytes=1000,
            kv_bytes=2000,
            load_s=0.1,
            warmup_s=0.1,
        )
    )
    stats: Stats | None = None
    heartbeat: Heartbeat = field(
        default_factory=lambda: Heartbeat(math.inf, loading=False, heard_at=math.inf)
    )
    script: Callable[[list[int], Sampling], list[int]] = field(
        default_factory=lambda: says("Hello, world!")
    )
    step_s: float = 0.0
    tokens_per_step: int = 1
    cached_tokens: int = 0
    preemptions: int = 0
    refusal: tuple[str, str, float | None] | None = None
    events: list[Event] = field(default_factory=list)
    streams: list[FakeStream] = field(default_factory=list)

    def submit(self, prompt: list[int], sampling: Sampling, caller: Caller) -> FakeStream:
        stream = FakeStream(self, prompt, sampling, caller)
        self.streams.append(stream)
        return stream

    @property
    def num_open(self) -> int:
        return sum(not (stream.finished or stream.aborted) for stream in self.streams)

    @property
    def aborted(self) -> int:
        return sum(stream.aborted for stream in self.streams)


def make_service(engine: FakeEngine, config: Config) -> tuple[Service, Any]:
    exporter = exporter_of(config)
    service = Service(
        config=config,
        engine=engine,
        metrics=Metrics(
            exporter.meter, config.model.name, lambda: service.snapshot(), promised(config.slo)
        ),
        lifecycle=Lifecycle(),
        plan={"verdict": "ok"},
        tokenizer=ByteTokenizer(),
    )
    service.lifecycle.become_ready()
    return service, build_app(service, exporter)


@dataclass
class Running:
    """A server in a thread of this process."""

    url: str
    service: Service
    engine: FakeEngine
    loop: asyncio.AbstractEventLoop
    port: int

    def client(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=10.0, **options)


@pytest.fixture(scope="session")
def start_server() -> Iterator[Callable[..., Running]]:
    started: list[tuple[uvicorn.Server, threading.Thread]] = []

    def start(engine: FakeEngine | None = None, config: Config | None = None) -> Running:
        engine = engine or FakeEngine()
        service, app = make_service(engine, config or tiny_config())
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        options = {"log_level": "error", "timeout_graceful_shutdown": 1}
        server = Server(BoundedConfig(app, bounds_of(service), **options))
        loops: list[asyncio.AbstractEventLoop] = []

        async def serve() -> None:
            loops.append(asyncio.get_running_loop())
            await server.serve(sockets=[listener])

        thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
        thread.start()
        started.append((server, thread))
        eventually(lambda: server.started)
        return Running(f"http://127.0.0.1:{port}", service, engine, loops[0], port)

    yield start
    for server, _ in started:
        server.should_exit = True
    for _, thread in started:
        thread.join(5)


def eventually(condition: Callable[[], object], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to be"
        time.sleep(0.005)


@pytest.fixture(scope="session")
def shared_server(start_server: Callable[..., Running]) -> Running:
    return start_server()


@pytest.fixture
def server(shared_server: Running) -> Iterator[Running]:
    """One server for all tests; its engine is as new for each."""
    fresh = FakeEngine()
    for name, value in vars(fresh).items():
        setattr(shared_server.engine, name, value)
    shared_server.service.lifecycle.state = "ready"
    yield shared_server
    eventually(lambda: not shared_server.service.generations)


@pytest.fixture
def http(server: Running) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


def chat_body(text: str = "hi", **fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": text}], **fields}


def chunks_of(text: str) -> list[str]:
    """The data of each server-sent event."""
    events = [line for line in text.split("\n\n") if line]
    assert all(event.startswith("data: ") for event in events)
    return [event.removeprefix("data: ") for event in events]
