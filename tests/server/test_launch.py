"""A server process from its port to its end."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.conftest import chat_body, eventually

ROOT = Path(__file__).resolve().parents[2]
CHAT = "/v1/chat/completions"


class Child:
    """A server process; `said` is what it wrote to stderr so far."""

    def __init__(self, mode: str, port: int, drain_s: float, **groups: dict[str, Any]) -> None:
        self.process = subprocess.Popen(
            [
                sys.executable,
                str(ROOT / "tests/server/launch_child.py"),
                mode,
                *map(str, (port, drain_s)),
                json.dumps(groups),
            ],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        self.said = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said += line

    def url(self) -> str:
        eventually(lambda: "listening on" in self.said, seconds=20)
        found = re.search(r"listening on (\S+),", self.said)
        assert found is not None
        return found[1]

    def ready(self) -> str:
        eventually(lambda: "curl" in self.said, seconds=20)
        return self.url()

    def end(self, seconds: float = 10) -> int:
        code = self.process.wait(seconds)
        self._reader.join(5)
        return code


@pytest.fixture
def start() -> Iterator[Callable[..., Child]]:
    children: list[Child] = []

    def run(mode: str = "serves", port: int = 0, drain_s: float = 5.0) -> Child:
        children.append(Child(mode, port, drain_s))
        return children[-1]

    yield run
    for child in children:
        child.process.kill()
        child.end()


def stream_lines(url: str, got_one: threading.Event, lines: list[str]) -> None:
    body = chat_body(stream=True)
    cut = contextlib.suppress(httpx.RemoteProtocolError)
    with cut, httpx.stream("POST", f"{url}{CHAT}", json=body, timeout=20) as answer:
        for line in answer.iter_lines():
            if line:
                lines.append(line.removeprefix("data: "))
                got_one.set()


def streaming(url: str) -> tuple[threading.Thread, list[str]]:
    """A client in the middle of a stream of about 1.2 s."""
    lines: list[str] = []
    got_one = threading.Event()
    client = threading.Thread(target=stream_lines, args=(url, got_one, lines))
    client.start()
    assert got_one.wait(10)
    return client, lines


def test_it_starts_serves_drains_and_exits_zero_without_torch(start: Callable[..., Child]) -> None:
    child = start()
    url = child.ready()
    client, lines = streaming(url)
    child.process.send_signal(signal.SIGTERM)
    eventually(lambda: httpx.get(f"{url}/readyz").status_code == 503)
    refused = httpx.post(f"{url}{CHAT}", json=chat_body())
    assert (refused.status_code, refused.headers["connection"]) == (503, "close")
    client.join(10)
    assert json.loads(lines[-2])["choices"][0]["finish_reason"] == "stop"
    assert lines[-1] == "[DONE]"
    assert child.end() == 0
    assert "load done" in child.said
    assert "planned" in child.said
    assert "engine stopped" in child.said
    assert "torch imported: False" in child.said


def test_at_the_drain_deadline_streams_get_a_last_event(start: Callable[..., Child]) -> None:
    child = start(drain_s=0.2)
    client, lines = streaming(child.ready())
    child.process.send_signal(signal.SIGINT)
    client.join(10)
    assert json.loads(lines[-2])["error"]["code"] == "not_ready"
    assert lines[-1] == "[DONE]"
    assert child.end() == 0


def test_a_second_signal_ends_it_at_once(start: Callable[..., Child]) -> None:
    child = start(drain_s=30.0)
    client, _ = streaming(child.ready())
    child.process.send_signal(signal.SIGTERM)
    eventually(lambda: "draining" in child.said)
    child.process.send_signal(signal.SIGTERM)
    assert child.end(2) == 128 + signal.SIGTERM
    client.join(10)


def test_a_signal_while_fetching_ends_it_well(start: Callable[..., Child]) -> None:
    child = start("slow")
    url = child.url()
    eventually(lambda: httpx.get(f"{url}/startupz").json().get("fraction") == 0.01)
    child.process.send_signal(signal.SIGTERM)
    assert child.end(5) == 0


def test_an_engine_that_dies_ends_streams_and_process(start: Callable[..., Child]) -> None:
    child = start("dies")
    client, lines = streaming(child.ready())
    client.join(10)
    assert json.loads(lines[-2])["error"]["code"] == "engine_died"
    assert lines[-1] == "[DONE]"
    assert child.end(5) == 1
    assert "servekit: killed" in child.said


def test_a_source_that_fails_is_said_in_a_sentence(start: Callable[..., Child]) -> None:
    child = start("fails")
    report = httpx.get(f"{child.url()}/startupz")
    assert report.status_code == 503
    assert child.end(5) == 1
    assert "servekit: the index has no such package; check model.source" in child.said
    assert "Traceback" not in child.said


def test_a_port_in_use_is_said_in_a_sentence(start: Callable[..., Child]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        child = start(port=port)
        assert child.end(15) == 1
    assert f"cannot listen on 127.0.0.1:{port}" in child.said
    assert "server.port=" in child.said
    assert "Traceback" not in child.said
