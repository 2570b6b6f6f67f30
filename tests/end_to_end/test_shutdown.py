"""Signals and kills, from outside, to real processes: nobody is left without a last word."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.end_to_end.tiny_process import TALK, Stream, TinyServer, client_of, until
from tests.engine.tiny import tiny_folder
from tests.server.conftest import eventually

SEATS = {"max_num_seqs": 64, "max_num_batched_tokens": 2048}
ROOM = {"capacity_tokens": 16384}
TOLD_S = 5.0
"""How long a client may wait for the last event once the engine is gone."""


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("weights"))


@pytest.fixture
def start(weights: Path) -> Iterator[Callable[..., TinyServer]]:
    started: list[TinyServer] = []

    def run(slow: dict[str, float] | None = None, **server: Any) -> TinyServer:
        started.append(TinyServer(weights, slow, server=server, scheduler=SEATS, kv=ROOM))
        return started[-1]

    yield run
    for one in started:
        one.end()


async def streams_of(
    client: httpx.AsyncClient, count: int, **fields: Any
) -> tuple[list[Stream], list[asyncio.Task[None]]]:
    streams = [Stream() for _ in range(count)]
    tasks = [asyncio.create_task(one.read(client, **fields)) for one in streams]
    return streams, tasks


def status(server: TinyServer, path: str) -> int:
    return httpx.get(f"{server.url}{path}").status_code


@pytest.mark.parametrize(("drain_s", "cut"), [(30.0, False), (0.3, True)])
def test_of_fifty_streams_none_is_cut_without_a_last_event(
    start: Callable[..., TinyServer], drain_s: float, cut: bool
) -> None:
    server = start({"step": 0.02}, propagation_s=2.0, drain_s=drain_s)
    server.wait_ready()

    async def scenario() -> None:
        async with client_of(server) as client:
            streams, tasks = await streams_of(client, 50, max_tokens=230 if cut else 120)
            await until(lambda: all(one.begun for one in streams))
            server.process.send_signal(signal.SIGTERM)
            await until(lambda: "leaving" in server.said)
            assert (await client.get("/readyz")).status_code == 503
            assert (await client.get("/livez")).status_code == 200
            late = Stream()
            await late.read(client, max_tokens=1)
            assert (late.status, late.whole, late.error) == (200, True, None)
            assert late.headers["connection"] == "close"
            await until(lambda: "draining" in server.said)
            refused = Stream()
            await refused.read(client, max_tokens=1)
            assert (refused.status, refused.error) == (503, "not_ready")
            assert int(refused.headers["retry-after"]) >= 1
            assert refused.headers["connection"] == "close"
            await asyncio.gather(*tasks)
            assert [one for one in streams if not one.whole] == []
            assert {one.error for one in streams} == {"not_ready" if cut else None}

    asyncio.run(scenario())
    assert server.process.wait(10) == 0


@pytest.mark.parametrize("phase", ["load", "warmup"])
def test_an_engine_killed_while_it_loads_ends_the_server(
    start: Callable[..., TinyServer], phase: str
) -> None:
    server = start({phase: 20.0})
    server.wait_phase(phase)
    assert status(server, "/livez") == 200
    refused = httpx.post(f"{server.url}/v1/completions", json=TALK)
    assert (refused.status_code, refused.json()["error"]["phase"]) == (503, phase)
    server.engine().kill()
    assert server.process.wait(TOLD_S) != 0
    assert "the engine process ended with exit code -9" in server.said


@pytest.mark.parametrize(("slow", "begun"), [({"prefill": 20.0}, False), ({"step": 0.02}, True)])
def test_an_engine_killed_at_work_leaves_every_client_with_a_last_event(
    start: Callable[..., TinyServer], slow: dict[str, float], begun: bool
) -> None:
    server = start(slow)
    server.wait_ready()

    async def scenario() -> None:
        async with client_of(server) as client:
            streams, tasks = await streams_of(client, 20, max_tokens=200)
            await until(lambda: all(one.begun for one in streams) if begun else held(server) >= 20)
            killed = time.monotonic()
            server.engine().kill()
            await asyncio.gather(*tasks)
            assert time.monotonic() - killed < TOLD_S
            assert [one for one in streams if not one.whole] == []
            assert {one.error for one in streams} == {"engine_died"}
            assert {one.status for one in streams} == {200 if begun else 503}

    asyncio.run(scenario())
    assert server.process.wait(10) != 0


def test_a_hung_engine_is_noticed_and_its_clients_are_told(
    start: Callable[..., TinyServer],
) -> None:
    server = start({"step": 0.02}, hang_s=2.0)
    server.wait_ready()

    async def scenario() -> None:
        async with client_of(server) as client:
            streams, tasks = await streams_of(client, 5, max_tokens=200)
            await until(lambda: all(one.begun for one in streams))
            server.engine().send_signal(signal.SIGSTOP)
            await asyncio.gather(*tasks)
            assert [one for one in streams if not one.whole] == []
            assert {one.error for one in streams} == {"engine_died"}
            assert "has not been heard for" in streams[0].data[-2]

    asyncio.run(scenario())
    assert server.process.wait(10) != 0
    assert "has not been heard for" in server.said


def test_a_step_that_never_ends_is_noticed_though_the_loop_turns(
    start: Callable[..., TinyServer],
) -> None:
    server = start({"prefill": 60.0}, hang_s=2.0)
    server.wait_ready()
    answer = httpx.post(f"{server.url}/v1/completions", json=TALK, timeout=30)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_died")
    assert "a step of the engine goes on since" in answer.text
    assert server.process.wait(10) != 0


def test_a_long_step_is_not_death(start: Callable[..., TinyServer]) -> None:
    server = start({"prefill": 3.0}, hang_s=60.0)
    server.wait_ready()
    with httpx.stream("POST", f"{server.url}/v1/completions", json=TALK | {"max_tokens": 2}) as one:
        assert [status(server, path) for path in ("/livez", "/readyz")] == [200, 200]
        assert one.read().endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("phase", ["load", "decode"])
def test_a_killed_server_leaves_no_engine(start: Callable[..., TinyServer], phase: str) -> None:
    server = start({"load": 20.0} if phase == "load" else {"step": 0.02})
    if phase == "load":
        server.wait_phase("load")
    else:
        server.wait_ready()
    engine = server.engine()
    if phase == "load":
        server.process.kill()
    else:
        with httpx.stream("POST", f"{server.url}/v1/completions", json=TALK) as answer:
            next(answer.iter_lines())
            server.process.kill()
    assert psutil.wait_procs([engine], timeout=5)[1] == []


CLIENT = """
import sys, httpx
with httpx.stream("POST", sys.argv[1], content=sys.argv[2], timeout=60,
                  headers={"content-type": "application/json"}) as answer:
    print("begun", flush=True)
    for line in answer.iter_lines():
        pass
"""


def asking(server: TinyServer, **fields: Any) -> subprocess.Popen[bytes]:
    """A client in a process of its own."""
    words = [f"{server.url}/v1/completions", json.dumps(TALK | {"max_tokens": 200} | fields)]
    return subprocess.Popen([sys.executable, "-c", CLIENT, *words], stdout=subprocess.PIPE)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("phase", ["queue", "prefill", "decode"])
def test_a_killed_client_frees_its_blocks_at_once(
    start: Callable[..., TinyServer], phase: str, stream: bool
) -> None:
    server = start({"step": 0.02} if phase == "decode" else {"prefill": 3.0})
    server.wait_ready()
    before = [asking(server)] if phase == "queue" else []
    eventually(lambda: held(server) == len(before), seconds=20)
    client = asking(server, n=4, stream=stream)
    try:
        eventually(lambda: held(server) == len(before) + 4, seconds=20)
        if phase == "decode" and stream:
            assert client.stdout is not None
            assert client.stdout.readline() == b"begun\n"
        elif phase == "decode":
            eventually(lambda: server.metric("servekit_batch_tokens") == 4)
        os.kill(client.pid, signal.SIGKILL)
        eventually(lambda: held(server) == len(before))
        assert server.metric("servekit_requests_aborted_total") == 4
        if not before:
            eventually(lambda: server.metric("servekit_kv_used_tokens") == 0)
    finally:
        for one in (client, *before):
            one.kill()
            one.wait()


def held(server: TinyServer) -> float:
    """Requests that run or wait."""
    names = ("servekit_requests_running", "servekit_requests_waiting")
    try:
        return sum(server.metric(name) for name in names)
    except LookupError:
        return 0.0  # the engine has not said anything yet
