"""One deployment from its port to its end: fetch, load, serve, drain.

The port is open from the first moment; what comes before the model is ready gets 503 with the
progress of it. SIGTERM or an interrupt drains; a second one ends the process at once.
"""

import asyncio
import json
import logging
import math
import os
import signal
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import uvloop

from servekit.config.schema import Config
from servekit.engine.client import EngineClient
from servekit.engine.heartbeat import Heartbeat
from servekit.engine.messages import Caller, Ready, Sampling, Stats
from servekit.errors import EngineDied, NotReady, SourceError
from servekit.model.sources import fetch
from servekit.model.tokenizer import load_tokenizer
from servekit.planner.plan import Plan
from servekit.server.entrance import check_entrance
from servekit.server.errors import error_of
from servekit.server.lifecycle import Lifecycle
from servekit.server.observe import loaded, metrics_of
from servekit.server.pinned import pinned_tokens
from servekit.server.ports import LAST_EVENTS_S, Ports, listeners
from servekit.server.running import RequestStream
from servekit.server.service import Service
from servekit.server.terminal import Terminal, curl_line, reachable, terminal
from servekit.telemetry.discreet import log_to_stderr, on_loop_error
from servekit.telemetry.exporters import exporter_of

T = TypeVar("T")

log = logging.getLogger(__name__)

POLL_S = 0.1
FAILURE_SHOWN_S = 1.0
"""How long /startupz tells of a failed start before the process ends."""
GIB = 1 << 30


def launch(config: Config, plan: Plan, as_json: bool) -> int:
    """Serves until it is told to stop; the exit code. Raises ServekitError without a port, and
    ConfigError where nobody said that everyone may come in."""
    log_to_stderr("%(asctime)s %(levelname)s %(message)s", log_prompts=config.telemetry.log_prompts)
    check_entrance(config)
    sockets = listeners(config.server)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(Deployment(config, plan, sockets, as_json).run())


@dataclass(frozen=True, slots=True)
class Unstarted:
    """Stands for the engine until its weights are here."""

    state: str = "loading"
    info: Ready | None = None
    stats: Stats | None = None
    heartbeat: Heartbeat = field(default_factory=lambda: Heartbeat(math.inf))
    num_open: int = 0

    def submit(self, prompt: list[int], sampling: Sampling, caller: Caller) -> RequestStream:
        raise NotReady("the engine is not started yet")


class Deployment:
    """What is running, and the steps of its life."""

    def __init__(
        self, config: Config, plan: Plan, sockets: list[socket.socket], as_json: bool
    ) -> None:
        self.config, self.plan, self.as_json = config, plan, as_json
        self.exporter = exporter_of(config)
        self.metrics = metrics_of(config, plan, self.exporter, lambda: self.service.snapshot())
        self.lifecycle = Lifecycle()
        self.service = Service(config, Unstarted(), self.metrics, self.lifecycle, plan.to_json())
        self.engine: EngineClient | None = None
        self.ports = Ports(sockets, self.service, self.exporter)
        self.stop_asked = asyncio.Event()
        self.terminal: Terminal = terminal()

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(on_loop_error)
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.on_signal, number)
        serving = asyncio.create_task(self.ports.serve())
        self.terminal.say(f"listening on {self.ports.url}, loading {self.config.model.name}")
        if self.config.server.admin_port is not None:
            self.terminal.say(f"health, metrics and plan on {self.ports.admin_url}")
        try:
            return await self.live()
        finally:
            self.terminal.close()
            self.ports.close()
            await serving
            if self.engine is not None:
                await self.engine.stop()
            self.service.accounts.close()
            await in_thread(lambda: self.exporter.close(LAST_EVENTS_S))

    def on_signal(self, number: int) -> None:
        """The second time, nothing is waited for."""
        if self.stop_asked.is_set():
            self.terminal.close()
            if self.engine is not None:
                self.engine.kill()
            os._exit(128 + number)
        self.stop_asked.set()

    async def live(self) -> int:
        """From loading to the end; the exit code."""
        starting = asyncio.create_task(self.start())
        watching = asyncio.create_task(self.watch())
        stopping = asyncio.create_task(self.stop_asked.wait())
        try:
            await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if stopping.done():
                return 0
            if error := starting.exception():
                return await self.fail(error)
            await asyncio.wait({watching, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if stopping.done():
                await self.leave(watching)
            return await (self.mourn() if watching.done() else self.drain())
        finally:
            for task in (starting, watching, stopping):
                task.cancel()
            await asyncio.gather(starting, watching, stopping, return_exceptions=True)

    async def start(self) -> None:
        """Weights here, tokenizer and engine loaded, ready."""
        model = self.config.model
        self.lifecycle.progress("fetch")
        path = await in_thread(lambda: fetch(model.source, model.sha256, self.on_fetch))
        self.engine = EngineClient(self.config, path)
        self.service.engine = self.engine
        self.engine.on_step = self.metrics.step
        self.engine.start()
        self.service.tokenizer, info = await asyncio.gather(
            in_thread(lambda: load_tokenizer(path, model.chat_template)), self.engine.wait_ready()
        )
        self.engine.learn(self.service.vocabulary)
        for tokens in pinned_tokens(self.config.kv.pinned_prompts, self.service.loaded):
            self.engine.pin(tokens)
        self.lifecycle.become_ready()
        self.compare(info)

    def on_fetch(self, phase: str, done: int, total: int) -> None:
        """Called in the thread that fetches; raising there is how it is told to stop."""
        if self.stop_asked.is_set():
            raise SourceError("interrupted; what has been fetched is kept")
        self.lifecycle.progress("fetch" if phase == "download" else phase, done, total)

    async def watch(self) -> None:
        """Shows progress while loading; returns when the engine is dead."""
        while self.service.engine.state != "dead":
            if self.engine is not None and self.lifecycle.state == "loading":
                progress = self.engine.progress
                self.lifecycle.progress(progress.phase, progress.done, progress.total)
            if self.lifecycle.state != "failed":
                self.terminal.show(self.lifecycle.phases)
            self.service.tick()
            stopped = self.service.engine.heartbeat.stopped
            await asyncio.sleep(POLL_S)
            # looked at twice: it may have been this process that stood still
            if stopped and (why := self.service.engine.heartbeat.stopped) and self.engine:
                self.engine.give_up(why)

    def compare(self, info: Ready) -> None:
        """Planned beside measured, and how to say the first word."""
        planned = self.plan.ledger.weights.bytes
        loaded(self.metrics, self.config, info)
        self.terminal.show(self.lifecycle.phases)
        self.terminal.close()
        self.terminal.say(
            f"weights: planned {planned / GIB:.3f} GiB, measured {info.weights_bytes / GIB:.3f} "
            f"GiB; KV cache: planned {self.plan.kv.capacity_tokens:,} tokens, measured "
            f"{info.capacity_tokens:,} tokens"
        )
        url = self.ports.url
        self.terminal.say(f"ready: {self.config.model.name} on {url}", style="bold green")
        chat = self.service.loaded.has_chat_template
        keyed = self.config.server.api_keys is not None
        tls = self.config.server.tls_cert is not None
        line = curl_line(
            reachable(url), self.config.model.name, chat=chat, keyed=keyed, unnamed=tls
        )
        self.terminal.say(line)
        if self.as_json:
            ready = {"event": "ready", "url": url, "admin_url": self.ports.admin_url}
            print(json.dumps({**ready, "model": self.config.model.name}), flush=True)

    async def fail(self, error: BaseException) -> int:
        """Start-up went wrong; says so at the terminal and at /startupz."""
        assert isinstance(error, Exception)
        ours = error_of(error)
        self.lifecycle.fail(ours)
        self.terminal.close()
        self.terminal.say(f"servekit: {ours.message}", style="bold red")
        await asyncio.sleep(FAILURE_SHOWN_S)
        return ours.exit_code

    async def leave(self, dying: asyncio.Task[None]) -> None:
        """Unready, and serving until those who send requests know; not longer than the engine."""
        wait_s = self.config.server.propagation_s
        self.lifecycle.leave()
        log.info("leaving: new requests are served for %g s more", wait_s)
        await asyncio.wait({dying}, timeout=wait_s)

    async def drain(self) -> int:
        """No new requests; those that run may finish until the deadline, then are told."""
        limit = self.config.server.drain_s
        self.lifecycle.drain()
        log.info(
            "draining: %d requests have %.0f s to finish", len(self.service.generations), limit
        )
        await self.until_idle(limit)
        if self.service.engine.state == "dead":
            return await self.mourn()
        self.service.end_all(
            NotReady(f"this server shuts down and the {limit:g} s to finish are over"),
            "drain_deadline",
        )
        await self.until_idle(LAST_EVENTS_S)
        return 0

    async def mourn(self) -> int:
        """The engine is gone: every client gets a last event."""
        error = self.engine.error if self.engine is not None else None
        message = error.message if error is not None else "the engine process is gone"
        self.terminal.say(f"servekit: {message}", style="bold red")
        self.service.end_all(EngineDied(message), EngineDied.code)
        await self.until_idle(LAST_EVENTS_S)
        return 1

    async def until_idle(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while not self.service.idle and loop.time() < deadline:
            await asyncio.sleep(POLL_S / 5)


async def in_thread(work: Callable[[], T]) -> T:
    """Like asyncio.to_thread, but the process does not wait for the thread at its end."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: Exception | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        outcome: tuple[Any, Exception | None]
        try:
            outcome = (work(), None)
        except Exception as error:
            outcome = (None, error)
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, *outcome)

    threading.Thread(target=run, daemon=True).start()
    return await future
