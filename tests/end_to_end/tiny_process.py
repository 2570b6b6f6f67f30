"""Starts `tiny_server.py`, and clients that read streams of it."""

import asyncio
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.server.conftest import eventually

ROOT = Path(__file__).resolve().parents[2]
TALK = {"prompt": "x" * 20, "model": "tiny", "stream": True, "ignore_eos": True, "temperature": 0}


class TinyServer:
    """The process; `slow` draws out phases of its engine, `groups` change the configuration."""

    def __init__(
        self, weights: Path, slow: dict[str, float] | None = None, **groups: dict[str, Any]
    ) -> None:
        script = str(ROOT / "tests/end_to_end/tiny_server.py")
        self.process = subprocess.Popen(
            [sys.executable, script, str(weights), json.dumps(groups)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "SLOW": json.dumps(slow or {})},
        )
        self.said, self.out = "", ""
        for stream, name in ((self.process.stderr, "said"), (self.process.stdout, "out")):
            threading.Thread(target=self._read, args=(stream, name), daemon=True).start()

    def _read(self, stream: Any, name: str) -> None:
        for line in stream:
            setattr(self, name, getattr(self, name) + line)

    @property
    def url(self) -> str:
        eventually(lambda: "listening on" in self.said, seconds=60)
        found = re.search(r"listening on (\S+),", self.said)
        assert found is not None
        return found[1]

    def wait_ready(self) -> dict[str, Any]:
        eventually(lambda: '"ready"' in self.out or self.process.poll() is not None, seconds=60)
        assert self.process.poll() is None, self.said
        return json.loads(self.out.splitlines()[0])

    def wait_phase(self, phase: str) -> None:
        eventually(lambda: self.startup().get("phase") == phase, seconds=60)

    def startup(self) -> dict[str, Any]:
        return httpx.get(f"{self.url}/startupz").json()

    def metric(self, name: str) -> float:
        for line in httpx.get(f"{self.url}/metrics").text.splitlines():
            if line.startswith((f"{name} ", f"{name}{{")):
                return float(line.rsplit(" ", 1)[1])
        raise LookupError(name)

    def engine(self) -> psutil.Process:
        eventually(lambda: psutil.Process(self.process.pid).children(), seconds=60)
        return psutil.Process(self.process.pid).children()[0]

    def end(self) -> None:
        """Whatever state it is in."""
        self.process.kill()
        self.process.wait()


class Stream:
    """A streamed request and the data of its events; `whole` once it had a last one."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.data: list[str] = []
        self.comments = 0
        self.broken = False

    @property
    def begun(self) -> bool:
        return any('"text"' in one for one in self.data)

    @property
    def error(self) -> str | None:
        """The code of the error that it ended with."""
        for one in self.data[-2:]:
            if one.startswith('{"error"'):
                return str(json.loads(one)["error"]["code"])
        return None

    @property
    def whole(self) -> bool:
        """It ended with `[DONE]`, and before that with a reason or an error; or it was refused."""
        if self.status != 200:
            return self.error is not None
        if self.broken or not self.data or self.data[-1] != "[DONE]":
            return False
        finished = '"finish_reason":"' in "".join(self.data[-3:])
        return finished or self.error is not None

    async def read(self, client: httpx.AsyncClient, **fields: Any) -> None:
        try:
            async with client.stream("POST", "/v1/completions", json=TALK | fields) as answer:
                self.status, self.headers = answer.status_code, dict(answer.headers)
                async for line in answer.aiter_lines():
                    if line.startswith("data: "):
                        self.data.append(line.removeprefix("data: "))
                    elif line.startswith("{"):
                        self.data.append(line)
                    self.comments += line.startswith(":")
        except httpx.TransportError:
            self.broken = True


async def until(condition: Any, seconds: float = 30.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


def client_of(server: TinyServer, connections: int = 100) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=server.url,
        timeout=60,
        limits=httpx.Limits(max_connections=connections, max_keepalive_connections=0),
    )
