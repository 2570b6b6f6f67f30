"""A connection that sends too much, too slowly, or nonsense: what it is told, and that it ends."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from servekit.server.lifecycle import Lifecycle
from servekit.server.protocol import MAX_HEAD_BYTES, MAX_HEADERS
from tests.conftest import tiny_config
from tests.server.conftest import FakeEngine, Running, chat_body, eventually, says

GET = b"GET /v1/models HTTP/1.1\r\nhost: x\r\n"
POST = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"


@pytest.fixture
def impatient(start_server: Callable[..., Running]) -> Running:
    return start_server(FakeEngine(), tiny_config(server={"read_timeout_s": 0.3}))


@pytest.fixture
def connection(server: Running) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as one:
        yield one


def connected(server: Running) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=10)


def all_of(connection: socket.socket) -> bytes:
    """Until the server closes it."""
    received = b""
    while data := connection.recv(65536):
        received += data
    return received


def answered(connection: socket.socket) -> bool:
    """Reads a whole list of models."""
    received = b""
    while not received.endswith(b"}]}"):
        received += connection.recv(65536)
    return received.startswith(b"HTTP/1.1 200")


def refusal(received: bytes) -> tuple[int, dict[str, Any]]:
    head, _, body = received.partition(b"\r\n\r\n")
    assert b"connection: close" in head.lower()
    return int(head.split()[1]), json.loads(body)["error"]


def request(body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    return POST + b"content-length: %d\r\n\r\n" % len(data) + data


@pytest.mark.parametrize(
    "head",
    [
        GET + b"".join(b"x-%d: y\r\n" % n for n in range(MAX_HEADERS)) + b"\r\n",
        GET + b"cookie: " + b"a" * MAX_HEAD_BYTES + b"\r\n\r\n",
        GET + b"cookie: " + b"a" * (MAX_HEAD_BYTES + 1),
        b"GET /" + b"a" * MAX_HEAD_BYTES + b" HTTP/1.1\r\nhost: x\r\n\r\n",
    ],
    ids=["many", "long", "endless", "address"],
)
def test_a_head_that_is_too_large_is_431(connection: socket.socket, head: bytes) -> None:
    connection.sendall(head)
    status, error = refusal(all_of(connection))
    assert (status, error["code"]) == (431, "headers_too_large")
    assert str(MAX_HEAD_BYTES) in error["message"]


def test_as_many_headers_as_allowed_are_taken(connection: socket.socket) -> None:
    others = b"".join(b"x-%d: y\r\n" % n for n in range(MAX_HEADERS - 2))
    connection.sendall(GET + others + b"connection: close\r\n\r\n")
    assert all_of(connection).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "sent", [b"\x16\x03\x01\x02\x00\x01\x00", b"SSH-2.0-x\r\n", b"GET /a\0b HTTP/1.1\r\n\r\n"]
)
def test_what_is_no_http_is_answered_in_the_one_shape(
    connection: socket.socket, sent: bytes
) -> None:
    connection.sendall(sent)
    status, error = refusal(all_of(connection))
    assert (status, error["code"]) == (400, "invalid_request")


def test_a_head_that_trickles_is_cut_off(impatient: Running) -> None:
    with connected(impatient) as connection:
        stop = threading.Event()

        def trickle() -> None:
            connection.sendall(GET)
            while not stop.wait(0.05):
                connection.sendall(b"x")

        sender = threading.Thread(target=trickle)
        sender.start()
        status, error = refusal(all_of(connection))
        stop.set()
        sender.join()
    assert (status, error["code"]) == (408, "request_timeout")
    assert "server.read_timeout_s" in error["message"]


def test_a_body_that_trickles_is_cut_off_before_it_costs_anything(impatient: Running) -> None:
    with connected(impatient) as connection:
        connection.sendall(POST + b"content-length: 1000\r\n\r\n{")
        status, error = refusal(all_of(connection))
    assert (status, error["code"]) == (408, "request_timeout")
    assert impatient.engine.streams == []
    assert not impatient.service.generations


def test_a_connection_that_says_nothing_is_closed_without_a_word(impatient: Running) -> None:
    with connected(impatient) as connection:
        assert all_of(connection) == b""


def test_an_answer_may_take_longer_than_a_request(impatient: Running) -> None:
    impatient.engine.script, impatient.engine.step_s = says("x" * 20), 0.05
    with connected(impatient) as connection:
        connection.sendall(request(chat_body(stream=True)))
        received = b""
        while b"[DONE]" not in received:
            received += connection.recv(65536)
    assert received.count(b'"content":"x"') == 20


def test_a_kept_connection_may_rest_between_requests(impatient: Running) -> None:
    with connected(impatient) as connection:
        connection.sendall(GET + b"\r\n")
        assert answered(connection)
        time.sleep(0.5)
        connection.sendall(GET + b"\r\n")
        assert answered(connection)


def test_a_connection_too_many_is_503_and_the_others_are_served(
    start_server: Callable[..., Running],
) -> None:
    server = start_server(FakeEngine(), tiny_config(server={"max_connections": 2}))
    with connected(server) as first, connected(server) as second:
        for one in (first, second):
            one.sendall(GET + b"\r\n")
            assert answered(one)
        with connected(server) as third:
            third.sendall(GET + b"\r\n")
            received = all_of(third)
        status, error = refusal(received)
        assert (status, error["code"]) == (503, "too_many_connections")
        assert b"retry-after: 1" in received
        first.sendall(GET + b"\r\n")
        assert answered(first)
    eventually(lambda: not get_is_refused(server))


def get_is_refused(server: Running) -> bool:
    with connected(server) as one:
        one.sendall(GET + b"connection: close\r\n\r\n")
        return not all_of(one).startswith(b"HTTP/1.1 200")


def test_nonsense_behind_a_request_does_not_cut_its_answer(
    server: Running, connection: socket.socket
) -> None:
    server.engine.step_s = 0.01
    connection.sendall(request(chat_body(stream=True)) + b"\0nonsense\r\n\r\n")
    received = all_of(connection)
    assert received.count(b"HTTP/1.1") == 1
    assert b"[DONE]" in received


@pytest.mark.parametrize("state", ["leaving", "draining"])
def test_who_goes_down_closes_connections_after_their_answer(
    server: Running, connection: socket.socket, state: Any
) -> None:
    server.service.lifecycle = Lifecycle(state=state)
    connection.sendall(b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n")
    received = all_of(connection)
    server.service.lifecycle = Lifecycle(state="ready")
    assert received.startswith(b"HTTP/1.1 200")
    assert b"connection: close" in received
