"""The engine process and the client that owns it, for real."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import psutil
import pytest

from servekit.engine.client import EngineClient
from servekit.engine.local import ANYBODY
from servekit.engine.messages import Delta, Step
from servekit.errors import EngineDied, NotReady, WeightsError
from tests.conftest import tiny_config
from tests.engine.tiny import greedy, prompts, tiny_engine, tiny_folder

CONFIG = tiny_config()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("weights"))


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where runtime directories are made."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    yield tmp_path
    monkeypatch.setattr("tempfile.tempdir", None)


def with_engine(path: Path, use: Callable[[EngineClient], Awaitable[None]]) -> EngineClient:
    async def scenario() -> EngineClient:
        client = EngineClient(CONFIG, path)
        client.start()
        try:
            await client.wait_ready()
            await asyncio.wait_for(use(client), 30)
        finally:
            await client.stop()
        return client

    return asyncio.run(scenario())


async def collect(stream: object) -> list[Delta]:
    return [delta async for delta in stream]  # type: ignore[attr-defined]


def said(deltas: list[Delta]) -> list[int]:
    return [token for delta in deltas for token in delta.tokens]


def test_an_engine_process_serves_many_streams_and_leaves_nothing(folder: Path, runtime: Path):
    asked, words = prompts(12), [greedy(5 + index) for index in range(12)]
    expected = [result.tokens for result in tiny_engine().generate(asked, words)]

    async def use(client: EngineClient) -> None:
        (directory,) = runtime.glob("servekit-*")
        assert directory.stat().st_mode & 0o777 == 0o700
        steps: list[Step] = []
        client.on_step = steps.append
        streams = [client.submit(*one, ANYBODY) for one in zip(asked, words, strict=True)]
        deltas = await asyncio.gather(*map(collect, streams))
        assert sum(step.prefill_tokens for step in steps) <= sum(map(len, asked))
        for one in deltas:
            first, *later = [event.kind for delta in one for event in delta.events]
            assert first == "seated"
            assert set(later) == {"chunk"}
        assert [said(one) for one in deltas] == expected
        assert {one[-1].finish for one in deltas} == {"length"}
        refused = await collect(client.submit([1] * 400, greedy(1), ANYBODY))
        assert refused[-1].error_code == "context_length_exceeded"
        assert client.stats is not None
        assert client.stats.blocks_free == client.stats.blocks_total
        await an_abort_ends_the_stream_and_frees_its_blocks(client)

    client = with_engine(folder, use)
    assert client.state == "dead"
    assert client.process is not None
    assert client.process.returncode == 0
    assert not list(runtime.glob("servekit-*"))
    with pytest.raises(EngineDied, match="the engine was stopped"):
        client.submit([1], greedy(1), ANYBODY)


async def an_abort_ends_the_stream_and_frees_its_blocks(client: EngineClient) -> None:
    async with client.submit([1, 2], greedy(200), ANYBODY) as stream:
        await anext(stream)
    assert (await collect(stream))[-1].finish == "abort"
    stream.abort()
    await until(lambda: client.stats is not None and client.stats.running == 0)
    assert client.stats is not None
    assert client.stats.blocks_free == client.stats.blocks_total


async def until(true: Callable[[], bool], limit_s: float = 5.0) -> None:
    async with asyncio.timeout(limit_s):
        while not true():
            await asyncio.sleep(0.01)


def test_streams_end_when_the_process_is_killed(folder: Path, runtime: Path):
    async def use(client: EngineClient) -> None:
        streams = [client.submit([index], greedy(250), ANYBODY) for index in range(3)]
        await anext(streams[0])
        assert client.process is not None
        killed = time.monotonic()
        client.process.kill()
        ends = [(await collect(stream))[-1] for stream in streams]
        assert time.monotonic() - killed < 1.0
        assert {(end.finish, end.error_code) for end in ends} == {("error", "engine_died")}
        assert "exit code -9" in (ends[0].error or "")
        assert client.state == "dead"

    with_engine(folder, use)
    assert not list(runtime.glob("servekit-*"))


def test_a_failure_to_load_reaches_the_client_in_its_own_words(tmp_path: Path):
    async def use(client: EngineClient) -> None:
        raise AssertionError("it cannot get ready")

    with pytest.raises(WeightsError, match="nowhere is not there"):
        with_engine(tmp_path / "nowhere", use)


def test_an_engine_that_is_loading_takes_no_request_and_can_be_stopped(folder: Path, runtime: Path):
    async def scenario() -> EngineClient:
        client = EngineClient(CONFIG, folder)
        client.start()
        with pytest.raises(NotReady, match="the engine is loading"):
            client.submit([1], greedy(1), ANYBODY)
        await client.stop()
        with pytest.raises(EngineDied):
            await client.wait_ready()
        return client

    started = time.monotonic()
    client = asyncio.run(scenario())
    assert time.monotonic() - started < 2.0
    assert client.state == "dead"
    assert not list(runtime.glob("servekit-*"))


def test_the_process_ends_with_its_parent(folder: Path):
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PARENT), str(folder)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    child.send_signal(signal.SIGTERM)
    child.send_signal(signal.SIGINT)
    time.sleep(0.2)
    assert child.is_running(), "signals to a whole service are for the parent"
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    gone, _ = psutil.wait_procs([child], timeout=5)
    assert gone


PARENT = """
    import asyncio, sys
    from pathlib import Path
    from servekit.engine.client import EngineClient
    from tests.conftest import tiny_config

    async def main():
        client = EngineClient(tiny_config(), Path(sys.argv[1]))
        client.start()
        await client.wait_ready()
        print(client.process.pid, flush=True)
        await asyncio.sleep(60)

    asyncio.run(main())
"""


def test_the_client_imports_no_torch():
    code = "import sys, servekit.engine.client; print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.strip() == "False", result.stderr
