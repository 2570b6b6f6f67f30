"""A client that goes away stops costing anything."""

import json
import socket
from typing import Any

import httpx
import pytest

from tests.server.conftest import Running, chat_body, eventually, says


def ask_and_leave(server: Running, path: str, body: dict[str, Any]) -> socket.socket:
    """A connection with a request on it; closing it is leaving."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    connection = socket.create_connection(("127.0.0.1", server.port))
    connection.sendall(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
    return connection


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("n", [1, 4])
def test_leaving_aborts_every_request_of_the_client(
    server: Running, http: httpx.Client, stream: bool, n: int
) -> None:
    server.engine.script = says("x" * 200)
    server.engine.step_s = 0.02
    body = chat_body(stream=stream, n=n)
    connection = ask_and_leave(server, "/v1/chat/completions", body)
    eventually(lambda: len(server.engine.streams) == n)
    assert server.engine.aborted == 0
    connection.close()
    eventually(lambda: server.engine.aborted == n, seconds=1.0)
    eventually(lambda: not server.service.generations, seconds=1.0)


def test_leaving_aborts_a_batch_of_prompts(server: Running) -> None:
    server.engine.script = says("x" * 200)
    server.engine.step_s = 0.02
    body = {"model": "tiny", "prompt": ["a", "b"], "n": 2, "max_tokens": 100}
    connection = ask_and_leave(server, "/v1/completions", body)
    eventually(lambda: len(server.engine.streams) == 4)
    connection.close()
    eventually(lambda: server.engine.aborted == 4, seconds=1.0)


def test_those_who_leave_are_counted(server: Running, http: httpx.Client) -> None:
    def left() -> float:
        lines = http.get("/metrics").text.splitlines()
        name = 'servekit_requests_aborted_total{reason="client_disconnected"}'
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name))

    server.engine.step_s = 0.05
    before = left()
    connection = ask_and_leave(server, "/v1/chat/completions", chat_body(n=3))
    eventually(lambda: len(server.engine.streams) == 3)
    connection.close()
    eventually(lambda: left() == before + 3, seconds=1.0)


def test_an_answer_that_is_complete_aborts_nothing(server: Running, http: httpx.Client) -> None:
    http.post("/v1/chat/completions", json=chat_body(n=2))
    assert server.engine.aborted == 0


def test_one_who_leaves_does_not_disturb_another(server: Running, http: httpx.Client) -> None:
    server.engine.step_s = 0.01
    leaving = ask_and_leave(server, "/v1/chat/completions", chat_body(stream=True))
    eventually(lambda: server.engine.streams)
    leaving.close()
    answer = http.post("/v1/chat/completions", json=chat_body()).json()
    assert answer["choices"][0]["message"]["content"] == "Hello, world!"
