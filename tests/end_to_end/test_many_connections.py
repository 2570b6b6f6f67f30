"""A thousand clients that wait for a token, on one event loop."""

import asyncio
import json
import resource
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.end_to_end.tiny_process import TALK, TinyServer
from tests.engine.tiny import tiny_folder
from tests.server.conftest import eventually

CONNECTIONS = 1000
COMMENT, OK = b": keep-alive\n\n", b"HTTP/1.1 200"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[TinyServer]:
    """One seat, and whoever has it holds it."""
    one = TinyServer(
        tiny_folder(tmp_path),
        {"step": 0.5},
        scheduler={"max_num_seqs": 1, "max_num_waiting": 2 * CONNECTIONS},
        server={"keepalive_s": 1.0},
    )
    yield one
    one.end()


@pytest.fixture
def many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CONNECTIONS + 256
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"this user may open {hard} files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def waiting(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps(TALK | {"max_tokens": 200}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    return reader, writer


def test_a_thousand_streams_are_kept_alive_and_let_go(server: TinyServer, many_files: None) -> None:
    server.wait_ready()
    port = int(server.url.rsplit(":", 1)[1])

    async def scenario() -> None:
        ends = await asyncio.gather(*(waiting(port) for _ in range(CONNECTIONS)))
        async with asyncio.timeout(60):
            for reader, _ in ends[1:]:
                assert (await reader.readuntil(COMMENT)).startswith(OK)
            for reader, _ in ends[1:]:
                await reader.readuntil(COMMENT)
        assert httpx.get(f"{server.url}/livez").status_code == 200
        assert server.metric("servekit_requests_waiting") == CONNECTIONS - 1
        for _, writer in ends:
            writer.transport.abort()

    asyncio.run(scenario())
    eventually(lambda: server.metric("servekit_requests_waiting") == 0, seconds=20)
    eventually(lambda: server.metric("servekit_kv_used_tokens") == 0, seconds=20)
