"""Deny by default: every route has a class, and a key opens what it is for and nothing else."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from litestar import get, websocket

from servekit.server.access import CLASSES, declared
from tests.conftest import tiny_config
from tests.server.conftest import FakeEngine, Running, chat_body, make_service
from tests.server.keyed import bearer, key_file, line

PAGE_FILES = ("dashboard.css", "dashboard.js", "plotly.js")
CHAT = "/v1/chat/completions"
PROBES = {"/livez", "/readyz", "/health", "/startupz"}
PAGE = {"/dashboard", *(f"/dashboard/{name}" for name in PAGE_FILES)}
"""Files without a number in them: a browser that opens an address sends no key."""
PUBLIC = PROBES | PAGE
LINES = (
    line("sk-user", id="user"),
    line("sk-watch", tenant="ops", id="watch", access=["admin"]),
    line("sk-all", tenant="ops", id="all", access=["inference", "admin"]),
    line("sk-none", id="none", access=[]),
)


@pytest.fixture(scope="module")
def keyed(
    start_server: Callable[..., Running], tmp_path_factory: pytest.TempPathFactory
) -> Running:
    path = key_file(tmp_path_factory.mktemp("keys"), *LINES)
    return start_server(FakeEngine(), tiny_config(server={"api_keys": path}))


def test_every_route_declares_its_class_and_only_probes_and_the_page_are_public() -> None:
    _, app = make_service(FakeEngine(), tiny_config())
    for route in app.routes:
        for handler in getattr(route, "route_handlers", None) or [route.route_handler]:
            if handler.name != "options_handler" and handler.fn.__name__ != "options_handler":
                assert handler.opt["access"] in CLASSES, route.path
                assert (handler.opt["access"] == "public") == (route.path in PUBLIC), route.path


def test_a_route_without_a_class_cannot_be_registered() -> None:
    @get("/new")
    async def forgotten() -> None: ...

    @websocket("/live", opt={"access": "everyone"})
    async def misspelt(socket: Any) -> None: ...

    for handler in (forgotten, misspelt):
        with pytest.raises(TypeError, match="has no class"):
            declared([handler])


def test_without_a_key_every_route_that_is_not_public_is_shut(keyed: Running) -> None:
    _, app = make_service(FakeEngine(), keyed.service.config)
    tried = set()
    with keyed.client() as http:
        for route in app.routes:
            path = str(route.path).replace("{name:path}", "tiny")
            for method in sorted(getattr(route, "methods", ())):
                answer = http.request(method, path)
                opened = answer.status_code != 401
                assert opened == (path in PUBLIC and method != "OPTIONS"), (method, path)
                tried.add(path)
    assert {CHAT, "/metrics", "/version", "/v1/models/tiny", *PUBLIC} <= tried


@pytest.mark.parametrize(
    ("key", "statuses"),
    [
        ("sk-user", (200, 200, 403, 403)),
        ("sk-watch", (403, 403, 200, 200)),
        ("sk-all", (200, 200, 200, 200)),
        ("sk-none", (403, 403, 403, 403)),
        ("sk-other", (401, 401, 401, 401)),
        ("", (401, 401, 401, 401)),
        ("sk-üser", (401, 401, 401, 401)),
    ],
)
def test_a_key_opens_what_it_is_for(keyed: Running, key: str, statuses: tuple[int, ...]) -> None:
    headers = {"authorization": f"Bearer {key}".strip().encode()}
    with keyed.client(headers=headers) as http:
        answers = [
            http.post(CHAT, json=chat_body()),
            http.get("/v1/models"),
            http.get("/metrics"),
            http.get("/version"),
        ]
    assert tuple(answer.status_code for answer in answers) == statuses


def test_a_refusal_is_of_the_shape_that_clients_of_openai_know(keyed: Running) -> None:
    with keyed.client() as http:
        none = http.post(CHAT, json=chat_body())
        wrong = http.get("/metrics", headers=bearer("sk-user"))
    assert none.headers["www-authenticate"] == 'Bearer realm="servekit"'
    error = none.json()["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_api_key")
    assert "Authorization: Bearer KEY" in error["message"]
    assert wrong.json()["error"]["code"] == "wrong_key_class"
    assert "key user is for inference" in wrong.json()["error"]["message"]


def test_a_refused_body_is_not_read(keyed: Running) -> None:
    """Headers alone are answered, with a body announced that never comes."""
    import socket

    with socket.create_connection(("127.0.0.1", keyed.port), timeout=5) as connection:
        head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        connection.sendall(f"{head}content-length: 4000000\r\n\r\n".encode())
        assert b" 401 " in connection.recv(100)


def test_a_server_without_keys_asks_nobody(http: httpx.Client) -> None:
    paths = ("/v1/models", "/metrics", "/version")
    assert [http.get(path).status_code for path in paths] == [200, 200, 200]


def test_no_refusal_says_the_key(keyed: Running, caplog: pytest.LogCaptureFixture) -> None:
    with keyed.client(headers=bearer("sk-mistyped")) as http:
        assert "sk-mistyped" not in http.get("/v1/models").text
    assert "sk-mistyped" not in caplog.text
