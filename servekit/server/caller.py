"""Who sends a request: tenants are told apart by the key they send, and share no cached block."""

import os
from dataclasses import dataclass, field
from hashlib import blake2b, sha256

from servekit.engine.messages import Caller
from servekit.server.wire import SamplingFields

NAME_DIGITS = 16


@dataclass(frozen=True, slots=True)
class Callers:
    """A key becomes a name, which may be seen, and a salt, which nobody can guess.

    The secret is drawn anew at each start: whoever learns a salt, or measures what is cached,
    learns nothing of another tenant's prompts.
    """

    secret: bytes = field(default_factory=lambda: os.urandom(32), repr=False)

    def caller(self, authorization: str | None, fields: SamplingFields) -> Caller:
        key = bearer_key(authorization)
        return Caller(
            tenant=tenant_of(key),
            salt=blake2b(key.encode(), key=self.secret, digest_size=16).digest(),
            priority=fields.priority or 0,
            slo_class=fields.slo_class or "interactive",
        )


def bearer_key(authorization: str | None) -> str:
    """Of `Bearer KEY`; empty where there is none."""
    scheme, _, key = (authorization or "").strip().partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


def tenant_of(key: str) -> str:
    """The first digits of the key's SHA-256, so that scheduler.tenant_weights holds no secret:
    `printf %s "$KEY" | sha256sum | cut -c1-16`. Without a key: the empty name.
    """
    return sha256(key.encode()).hexdigest()[:NAME_DIGITS] if key else ""
