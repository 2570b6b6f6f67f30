"""What comes in frames of a WebSocket and is no message of ours."""

import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import httpx
import pytest
from websockets.exceptions import ConnectionClosedError
from websockets.sync.client import connect

from servekit.server.frames import MOST_FRAMES
from tests.server.conftest import Running

MIB = 1 << 20
OPEN = (
    b"GET /v1/stream HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
PING = b"\x89\xfd\0\0\0\0" + b"x" * 125


@contextmanager
def opened(server: Running) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", server.port), timeout=2) as raw:
        raw.sendall(OPEN)
        assert b" 101 " in raw.recv(4096)
        yield raw


def send_while_it_is_taken(raw: socket.socket, most: int) -> int:
    """Bytes of PING after PING that went, until none go any more for the timeout of `raw`."""
    pings, sent = PING * 2000, 0
    with suppress(TimeoutError):
        while sent < most:
            sent += raw.send(pings[sent % len(pings) :])
    return sent


def test_pings_of_a_client_that_does_not_read_are_not_kept(server: Running) -> None:
    """The server stops to read them, and answers all of them once the client does read."""
    with opened(server) as raw:
        most = 128 * MIB
        sent = send_while_it_is_taken(raw, most)
        assert sent < most
        pings = -(-sent // len(PING))
        rest = pings * len(PING) - sent
        pongs, told = pings * (2 + 125), len(raw.recv(MIB))
        while told < pongs:
            told += len(raw.recv(MIB))
            if rest and told > pongs // 4:
                raw.sendall(PING[-rest:])
                rest = 0
        assert told == pongs


def test_a_message_in_frames_without_end_closes_its_connection(
    server: Running, http: httpx.Client
) -> None:
    """Empty frames: the bytes of the message stay below every limit."""
    first, more = b"\x01\x80\0\0\0\0", b"\0\x80\0\0\0\0"
    with opened(server) as raw:
        raw.sendall(first + more * (MOST_FRAMES + 1))
        said = raw.recv(4096)
    assert said[:2] == bytes([0x88, len(said) - 2])
    assert int.from_bytes(said[2:4]) == 1008
    assert b"4096 frames" in said
    assert http.get("/livez").status_code == 200


def test_what_is_no_text_closes_its_connection_and_logs_nothing(
    server: Running, http: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.WARNING),
        connect(server.url.replace("http", "ws") + "/v1/stream") as client,
    ):
        client.send(b"\xff\xfe", text=True)
        with pytest.raises(ConnectionClosedError) as closed:
            client.recv(timeout=10)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1007
    assert not caplog.records
    assert http.get("/livez").status_code == 200
