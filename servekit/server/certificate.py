"""The TLS pair of a server, read again when its files have changed: a new one needs no restart."""

import logging
import os
import ssl
import time
from collections.abc import Callable

from servekit.config.serving import ServerConfig
from servekit.errors import ConfigError
from servekit.server.entrance import check_tls

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0


class Certificate:
    """Gives each handshake the pair in force; `make` reads it.

    A new pair has a context of its own: in that of before, a certificate with another kind of key
    would only come beside the old one.
    """

    def __init__(self, server: ServerConfig, make: Callable[[], ssl.SSLContext]) -> None:
        self._server, self._make = server, make
        self._state, self._looked_at = self._look(), time.monotonic()
        self.context = self._newest = make()
        # it is asked for clients that name no server, too
        self.context.sni_callback = self._greet

    def _greet(self, client: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        if time.monotonic() - self._looked_at >= LOOK_EVERY_S:
            self._refresh()
        client.context = self._newest

    def _refresh(self) -> None:
        state, self._looked_at = self._look(), time.monotonic()
        if state == self._state:
            return
        self._state = state
        try:
            check_tls(self._server)
            self._newest = self._make()
        except (ConfigError, OSError) as error:
            log.error("%s; the certificate of before stays in force", error)
            return
        log.info("server.tls_cert: a new certificate is in force")

    def _look(self) -> object:
        """Something that differs once a file has changed."""
        try:
            seen = [os.stat(str(path)) for path in (self._server.tls_cert, self._server.tls_key)]
        except OSError as error:
            return error.errno
        return [(one.st_mtime_ns, one.st_size, one.st_ino) for one in seen]
