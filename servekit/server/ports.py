"""The ports of a deployment: one for traffic, and one for those who run it if they want their own.

Both are open from the first moment and served by one event loop.
"""

import asyncio
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import uvicorn

from servekit.config.serving import ServerConfig
from servekit.errors import ServekitError
from servekit.server.access import CLASSES, Access
from servekit.server.app import MIB, Exporter, build_app
from servekit.server.certificate import Certificate
from servekit.server.entrance import tls_files
from servekit.server.protocol import BoundedConfig, Bounds
from servekit.server.service import Service

SHARES: tuple[frozenset[Access], ...] = (
    frozenset({"public", "inference"}),
    frozenset({"public", "admin"}),
)
"""Classes of routes on the traffic port and on an admin port of its own: probes may ask either."""

LAST_EVENTS_S = 2.0
"""How long clients may take to be given the last event of a stream that is cut short."""

SPARE_FILES = 256
"""Open files beside the connections: sockets to the engine, logs, weights being fetched."""

DEAD_PEER: dict[str, int] = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
"""A client whose machine went away says nothing; it is found out after these seconds."""


def listen(host: str, port: int, key: str = "server.port") -> socket.socket:
    """Raises ServekitError with a sentence if the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # sockets inherit this from the one that accepts them
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in DEAD_PEER.items():
        if (option := getattr(socket, name, None)) is not None:
            listener.setsockopt(socket.IPPROTO_TCP, option, value)
    try:
        listener.bind((host, port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise ServekitError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose another "
            f"{key}=... (0 takes a free one) or server.host=..., or stop what uses it"
        ) from None
    return listener


def allow_files(connections: int) -> None:
    """Raises the limit of open files for so many connections, as far as this user may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def connections_allowed(config: ServerConfig) -> int:
    """Of each port: as configured, or what the limit of open files leaves for it."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return config.max_connections
    share = (soft - SPARE_FILES) // (1 if config.admin_port is None else 2)
    return max(1, min(config.max_connections, share))


def listeners(config: ServerConfig) -> list[socket.socket]:
    """That of the traffic, then that of the admin port if it has one; raises ServekitError."""
    allow_files(config.max_connections * (1 if config.admin_port is None else 2))
    traffic = listen(config.host, config.port)
    if config.admin_port is None:
        return [traffic]
    try:
        return [traffic, listen(config.host, config.admin_port, "server.admin_port")]
    except ServekitError:
        traffic.close()
        raise


class Server(uvicorn.Server):
    """Leaves signals to the deployment, which drains before it closes the port."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Ports:
    """Serves the routes of a deployment on its one or two listeners."""

    def __init__(self, sockets: list[socket.socket], service: Service, exporter: Exporter) -> None:
        self.sockets = sockets
        scheme = "https" if tls_files(service.config.server) else "http"
        self.urls = [_url(scheme, one) for one in sockets]
        shares = SHARES if len(sockets) > 1 else (frozenset(CLASSES),)
        self.servers = [_server(service, exporter, share) for share in shares]

    @property
    def url(self) -> str:
        return self.urls[0]

    @property
    def admin_url(self) -> str:
        return self.urls[-1]

    async def serve(self) -> None:
        """Returns some time after `close`, once the last events have left."""
        pairs = zip(self.servers, self.sockets, strict=True)
        await asyncio.gather(*(server.serve(sockets=[one]) for server, one in pairs))

    def close(self) -> None:
        for server in self.servers:
            server.should_exit = True


def _url(scheme: str, listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def bounds_of(service: Service) -> Bounds:
    config = service.config.server
    return Bounds(
        read_timeout_s=config.read_timeout_s,
        max_connections=connections_allowed(config),
        going_down=lambda: service.lifecycle.going_down,
        refused=service.metrics.refused,
    )


def _server(service: Service, exporter: Exporter, classes: frozenset[Access]) -> Server:
    return Server(
        BoundedConfig(
            build_app(service, exporter, classes),
            bounds_of(service),
            log_config=None,
            log_level="error",
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=int(LAST_EVENTS_S),
            # a message somewhat larger than a body may be gets an error, and costs no connection
            ws_max_size=int(2 * service.config.server.max_body_mib * MIB),
            **_tls(service.config.server),
        )
    )


def _tls(config: ServerConfig) -> dict[str, Any]:
    """For uvicorn; empty without TLS."""
    files = tls_files(config)
    if files:
        files["ssl_context_factory"] = lambda _, make: Certificate(config, make).context
    return files
