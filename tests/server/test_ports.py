"""One port or two: which routes are where."""

import re
import resource
import socket
from typing import Any

import pytest
from litestar.testing import TestClient

from servekit.errors import ServekitError
from servekit.server.ports import Ports, connections_allowed, listeners
from servekit.telemetry.exporters import PrometheusExporter
from tests.conftest import tiny_config
from tests.server.conftest import FakeEngine, make_service

CHAT, METRICS, READY = "/v1/chat/completions", "/metrics", "/readyz"


def ports_of(**server: Any) -> Ports:
    config = tiny_config(server=server)
    service, _ = make_service(FakeEngine(), config)
    return Ports(listeners(config.server), service, PrometheusExporter())


def paths(ports: Ports) -> list[set[str]]:
    return [
        {route.path for route in server.config.app.routes}  # type: ignore[union-attr]
        for server in ports.servers
    ]


def closed(ports: Ports) -> Ports:
    for one in ports.sockets:
        one.close()
    return ports


def test_without_an_admin_port_everything_is_on_one() -> None:
    (one,) = paths(ports := closed(ports_of()))
    assert {CHAT, METRICS, READY} <= one
    assert ports.url == ports.admin_url


def test_an_admin_port_takes_what_is_for_those_who_run_the_server() -> None:
    traffic, admin = paths(ports := closed(ports_of(admin_port=0)))
    assert {CHAT, READY} <= traffic
    assert {METRICS, READY, "/version", "/v1/servekit/plan"} <= admin
    assert METRICS not in traffic
    assert CHAT not in admin
    assert ports.url != ports.admin_url


@pytest.mark.parametrize("path", [METRICS, "/dashboard", "/v1/servekit/plan", CHAT, "/nowhere"])
def test_who_asks_at_the_wrong_port_is_told_of_the_other(path: str) -> None:
    ports = closed(ports_of(admin_port=0))
    traffic, admin = (TestClient(server.config.app) for server in ports.servers)
    refused = (admin if path == CHAT else traffic).get(path)
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (404, "route_not_found")
    assert ("is not on this port" in error["message"]) == (path != "/nowhere")
    assert not re.search(r"\d{4}", error["message"])


def test_on_one_port_there_is_no_other_to_tell_of() -> None:
    ports = closed(ports_of())
    client = TestClient(ports.servers[0].config.app)
    assert client.get(METRICS).status_code == 200
    assert "on this port" not in client.get("/nowhere").json()["error"]["message"]


def test_an_admin_port_in_use_is_said_by_its_key() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ServekitError, match=r"choose another server\.admin_port="):
            listeners(tiny_config(server={"admin_port": port}).server)


def test_two_ports_are_two() -> None:
    with pytest.raises(ValueError, match="admin_port is the same as port"):
        tiny_config(server={"port": 8000, "admin_port": 8000})


def test_a_client_whose_machine_is_gone_is_found_out() -> None:
    ports = ports_of()
    with socket.create_connection(ports.sockets[0].getsockname()[:2]):
        accepted, _ = ports.sockets[0].accept()
        with accepted:
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30
    closed(ports)


def test_connections_leave_room_for_other_files(monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny_config(server={"max_connections": 4096}).server
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1256, 1256))
    assert connections_allowed(config) == 1000
    monkeypatch.setattr(resource, "getrlimit", lambda which: (resource.RLIM_INFINITY, 0))
    assert connections_allowed(config) == 4096
