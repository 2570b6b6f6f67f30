"""Before anything is fetched: is it meant that these people may come in, and by this door?"""

import ipaddress
import ssl
from pathlib import Path
from typing import Any

from servekit.config.schema import Config
from servekit.config.serving import ServerConfig
from servekit.errors import ConfigError
from servekit.server.keys import read_keys


def check_entrance(config: Config) -> None:
    """Raises ConfigError for an open door, for keys that cannot be read, for a TLS pair that is
    none."""
    server = config.server
    if server.api_keys is not None:
        read_keys(server.api_keys)
    elif not (is_loopback(server.host) or server.allow_anyone):
        raise ConfigError(
            f"server.host={server.host} is reached from other machines, and without "
            "server.api_keys anyone there may use this server; give server.api_keys=FILE (its "
            "lines are made by `servekit keys new --tenant NAME`), or server.host=127.0.0.1, or, "
            "where something before it asks who comes, server.allow_anyone=true"
        )
    check_tls(server)


def is_loopback(host: str) -> bool:
    """A name may lead anywhere, but for the one that never does."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def tls_files(server: ServerConfig) -> dict[str, Any]:
    """For uvicorn; empty without TLS."""
    if server.tls_cert is None:
        return {}
    return {"ssl_certfile": server.tls_cert, "ssl_keyfile": server.tls_key}


def check_tls(server: ServerConfig) -> None:
    """Raises ConfigError, also for a certificate and a key that do not match."""
    if server.tls_cert is None or server.tls_key is None:
        return
    for key, path in (("tls_cert", server.tls_cert), ("tls_key", server.tls_key)):
        if not Path(path).is_file():
            raise ConfigError(f"server.{key}: there is no file {path}")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(server.tls_cert, server.tls_key, password=_no_password)
    except (OSError, ssl.SSLError, ValueError) as error:
        raise ConfigError(
            f"server.tls_cert={server.tls_cert} and server.tls_key={server.tls_key} make no TLS "
            f"server: {_why(error)}"
        ) from None


def _no_password() -> str:
    raise ValueError("the key is encrypted; give one that is not")


def _why(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        if error.reason == "KEY_VALUES_MISMATCH":
            return "the key is not that of the certificate"
        return f"one of them is not a PEM file of its kind ({error.reason or error})"
    return getattr(error, "strerror", None) or str(error)
