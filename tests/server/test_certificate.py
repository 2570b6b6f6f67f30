"""A certificate that is renewed under a running server."""

import asyncio
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trustme
import uvloop
from trustme import KeyType

from servekit.server import certificate
from servekit.server.ports import Ports, listeners
from servekit.telemetry.exporters import NoExporter
from tests.conftest import tiny_config
from tests.server.conftest import FakeEngine, eventually, make_service

Renew = Callable[[KeyType], str]


@pytest.fixture
def renew(tmp_path: Path) -> Renew:
    """Puts a new pair in the place of the one before; its certificate."""

    def pair(kind: KeyType) -> str:
        issued = trustme.CA().issue_cert("127.0.0.1", "localhost", key_type=kind)
        issued.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
        issued.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
        return issued.cert_chain_pems[0].bytes().decode()

    return pair


@pytest.fixture
def first(renew: Renew) -> str:
    return renew(KeyType.ECDSA)


@pytest.fixture
def port(first: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Where a server listens that looks at its files for each handshake."""
    monkeypatch.setattr(certificate, "LOOK_EVERY_S", 0.0)
    files = {"tls_cert": str(tmp_path / "cert.pem"), "tls_key": str(tmp_path / "key.pem")}
    config = tiny_config(server=files)
    service, _ = make_service(FakeEngine(), config)
    ports = Ports(listeners(config.server), service, NoExporter())
    thread = threading.Thread(target=serve, args=(ports,), daemon=True)
    thread.start()
    eventually(lambda: ports.servers[0].started)
    yield ports.sockets[0].getsockname()[1]
    ports.close()
    thread.join(5)


def serve(ports: Ports) -> None:
    """On the event loop of a deployment."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(ports.serve())


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("kind", [KeyType.ECDSA, KeyType.RSA])
def test_a_new_certificate_is_in_force_for_new_connections(
    port: int, first: str, renew: Renew, kind: KeyType, named: bool
) -> None:
    address = ("localhost" if named else "127.0.0.1", port)
    assert ssl.get_server_certificate(address) == first
    second = renew(kind)
    assert second != first
    assert ssl.get_server_certificate(address) == second


def test_a_pair_that_does_not_match_keeps_that_of_before_and_says_so_once(
    port: int, first: str, renew: Renew, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    key = (tmp_path / "key.pem").read_bytes()
    renew(KeyType.ECDSA)
    (tmp_path / "key.pem").write_bytes(key)
    for _ in range(2):
        assert ssl.get_server_certificate(("127.0.0.1", port)) == first
    assert caplog.text.count("the certificate of before stays in force") == 1
    last = renew(KeyType.ECDSA)
    assert ssl.get_server_certificate(("127.0.0.1", port)) == last
