"""/v1/stream: many requests on one WebSocket, each with the events of its route."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from websockets.sync.client import ClientConnection, connect

from tests.conftest import tiny_config
from tests.server.conftest import FakeEngine, Running, chat_body, eventually, says

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: chat_body(stream=True, stream_options={"include_usage": True}),
    COMPLETIONS: {"model": "tiny", "prompt": "hi", "stream": True},
    RESPONSES: {"model": "tiny", "input": "hi", "stream": True},
}


def open_socket(server: Running, **options: Any) -> ClientConnection:
    url = server.url.replace("http://", "ws://") + "/v1/stream"
    return connect(url, open_timeout=10, close_timeout=5, **options)


@pytest.fixture
def socket(server: Running) -> Iterator[ClientConnection]:
    with open_socket(server) as socket:
        yield socket


def ask(socket: ClientConnection, id: str, route: str = CHAT, **fields: Any) -> None:
    socket.send(json.dumps({"id": id, "route": route, "body": BODIES[route] | fields}))


def heard(socket: ClientConnection, ends: int = 1) -> dict[str, list[dict[str, Any]]]:
    """By id, all that is said until so many requests have had their last word."""
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    while ends:
        said = json.loads(socket.recv(timeout=10))
        found[said.pop("id")].append(said)
        ends -= said["type"] in ("done", "error")
    return found


def data_of(said: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one["data"] for one in said if one["type"] == "event"]


def neutral(chunk: Any) -> str:
    """Without what differs from request to request."""
    own = {"id", "item_id", "created", "created_at"}
    if isinstance(chunk, dict):
        return str({name: neutral(value) for name, value in chunk.items() if name not in own})
    return str([neutral(one) for one in chunk]) if isinstance(chunk, list) else str(chunk)


@pytest.mark.parametrize("route", BODIES)
def test_the_events_are_those_of_the_route(
    server: Running, http: httpx.Client, socket: ClientConnection, route: str
) -> None:
    server.engine.script = says("Héllo 🙂")
    text = http.post(route, json=BODIES[route]).text
    lines = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
    streamed = [json.loads(line) for line in lines if line != "[DONE]"]
    ask(socket, "a", route)
    (said,) = heard(socket).values()
    assert [neutral(chunk) for chunk in data_of(said)] == [neutral(chunk) for chunk in streamed]
    assert said[-1] == {"type": "done"}


def test_requests_in_flight_are_told_apart_by_id(server: Running, socket: ClientConnection) -> None:
    server.engine.step_s = 0.002
    server.engine.script = lambda prompt, sampling: [*f"seed {sampling.seed}".encode(), 257]
    for seed in range(5):
        ask(socket, f"id {seed}", seed=seed)
    for id, said in heard(socket, ends=5).items():
        choices = [choice for chunk in data_of(said) for choice in chunk["choices"]]
        assert "".join(one["delta"].get("content", "") for one in choices) == id.replace(
            "id", "seed"
        )


def test_a_cancelled_request_ends_in_the_engine_and_the_others_go_on(
    server: Running, socket: ClientConnection
) -> None:
    server.engine.script = says("Hello, world! " * 5)
    server.engine.step_s = 0.005
    ask(socket, "long")
    ask(socket, "other")
    socket.recv(timeout=10)
    socket.send('{"id": "long", "cancel": true}')
    said = heard(socket, ends=2)
    assert said["long"][-1] == {"type": "done", "cancelled": True}
    assert said["other"][-1] == {"type": "done"}
    assert [stream.aborted for stream in server.engine.streams] == [True, False]
    socket.send('{"id": "long", "cancel": true}')
    ask(socket, "long", max_tokens=1)
    assert heard(socket)["long"][-1] == {"type": "done"}


def test_a_request_that_is_cancelled_at_once_has_a_last_word(
    server: Running, socket: ClientConnection
) -> None:
    server.engine.script = says("Hello, world! " * 5)
    server.engine.step_s = 0.01
    ask(socket, "a")
    socket.send('{"id": "a", "cancel": true}')
    assert heard(socket)["a"][-1] == {"type": "done", "cancelled": True}


def test_a_client_that_goes_frees_all_that_ran_for_it(server: Running) -> None:
    server.engine.script = says("Hello, world! " * 10)
    server.engine.step_s = 0.05
    with open_socket(server) as socket:
        for id in "abc":
            ask(socket, id)
        eventually(lambda: len(server.engine.streams) == 3)
    eventually(lambda: server.engine.aborted == 3)
    eventually(lambda: not server.service.generations)


@pytest.mark.parametrize(
    ("message", "id", "status", "param"),
    [
        ("{", None, 400, None),
        ("[]", None, 400, None),
        ('{"route": "/v1/completions"}', None, 400, None),
        ('{"id": "a", "surprise": 1}', None, 400, None),
        ('{"id": "a"}', "a", 400, "route"),
        ('{"id": "a", "route": "/metrics", "body": {}}', "a", 400, "route"),
        ('{"id": "a", "route": "/v1/completions", "body": {"model": "tiny"}}', "a", 400, "/prompt"),
        ('{"id": "a", "route": "/v1/completions", "body": {"model": "b", "prompt": "a"}}',
         "a", 404, "model"),
        ('{"id": "a", "route": "/v1/completions", "body": {"model": "tiny", "prompt": "a"}, '
         '"timeout_ms": 0}', "a", 400, "x-request-timeout-ms"),
        ('{"id": "' + "a" * 200 + '"}', None, 400, "id"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_one_message_ends_no_other(
    socket: ClientConnection, message: str, id: str | None, status: int, param: str | None
) -> None:
    socket.send(message)
    said = json.loads(socket.recv(timeout=10))
    assert (said["id"], said["type"], said["status"]) == (id, "error", status)
    assert said["error"]["param"] == param
    ask(socket, "b", COMPLETIONS)
    assert heard(socket)["b"][-1] == {"type": "done"}


def test_an_id_in_use_is_refused(server: Running, socket: ClientConnection) -> None:
    server.engine.step_s = 0.01
    ask(socket, "a")
    ask(socket, "a")
    said = heard(socket, ends=2)["a"]
    assert [one["error"]["param"] for one in said if one["type"] == "error"] == ["id"]
    assert said[-1] == {"type": "done"}


def test_what_the_engine_refuses_is_an_error_with_its_status(
    server: Running, socket: ClientConnection
) -> None:
    server.engine.refusal = ("no", "queue_full", 2.5)
    ask(socket, "a")
    (said,) = heard(socket)["a"]
    assert (said["status"], said["error"]["code"], said["retry_after_s"]) == (
        429,
        "queue_full",
        2.5,
    )


def test_an_engine_that_dies_is_an_event_and_then_the_last_word(
    server: Running, socket: ClientConnection
) -> None:
    server.engine.script = says("Hello, world! " * 10)
    server.engine.step_s = 0.02
    ask(socket, "a")
    socket.recv(timeout=10)
    server.engine.state = "dead"
    said = heard(socket)["a"]
    assert said[-2]["data"]["error"]["code"] == "engine_died"
    assert said[-1] == {"type": "done"}


def test_fields_without_effect_are_named_or_refused(socket: ClientConnection) -> None:
    ask(socket, "a", user="me")
    assert heard(socket)["a"][-1] == {"type": "done", "ignored_fields": ["user"]}
    body = BODIES[CHAT] | {"user": "me"}
    strict = {"id": "b", "route": CHAT, "body": body, "unknown_fields": "refuse"}
    socket.send(json.dumps(strict))
    assert heard(socket)["b"][-1]["error"]["code"] == "unsupported_parameter"


def test_before_it_is_ready_a_request_is_told_so(server: Running, socket: ClientConnection) -> None:
    server.service.lifecycle.state = "loading"
    ask(socket, "a")
    (said,) = heard(socket)["a"]
    assert (said["status"], said["error"]["code"]) == (503, "not_ready")


def test_a_message_larger_than_a_body_may_be_is_refused_and_costs_no_connection(
    start_server: Callable[..., Running],
) -> None:
    server = start_server(FakeEngine(), tiny_config(server={"max_body_mib": 0.001}))
    with open_socket(server) as socket:
        ask(socket, "a", COMPLETIONS, prompt="x" * 1100)
        said = json.loads(socket.recv(timeout=10))
        assert (said["id"], said["error"]["code"]) == (None, "body_too_large")
        ask(socket, "b", COMPLETIONS)
        assert heard(socket)["b"][-1] == {"type": "done"}
