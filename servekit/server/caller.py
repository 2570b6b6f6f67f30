"""Who sends a request: tenants are told apart by the key they send, and share no cached block."""

import os
from dataclasses import dataclass, field
from hashlib import blake2b, sha256

from servekit.engine.messages import Caller
from servekit.errors import Forbidden, Unauthorized
from servekit.server.access import Access
from servekit.server.keys import Key, KeyRing
from servekit.server.wire import SamplingFields

NAME_DIGITS = 16

ASK = "send it as `Authorization: Bearer KEY`"


@dataclass(frozen=True, slots=True)
class Callers:
    """A key becomes a tenant, who may be seen, and a salt, which nobody can guess.

    The secret is drawn anew at each start: whoever learns a salt, or measures what is cached,
    learns nothing of another tenant's prompts. Without `ring` everyone is let in, and each key that
    is sent is a tenant of its own.
    """

    ring: KeyRing | None = None
    secret: bytes = field(default_factory=lambda: os.urandom(32), repr=False)

    def authorize(self, authorization: str | None, access: Access) -> None:
        """Raises Unauthorized without a key that is known, Forbidden if it is not for `access`."""
        if self.ring is not None and access not in (known := self._known(authorization)).access:
            raise Forbidden(
                f"this route is of class {access}, and key {known.name} is for "
                f"{' and '.join(known.access) or 'nothing'}; use another key"
            )

    def caller(self, authorization: str | None, fields: SamplingFields) -> Caller:
        if self.ring is None:
            sent = bearer_key(authorization)
            tenant, key, salt = tenant_of(sent), "", self._salt("key", sent)
        else:
            known = self._known(authorization)
            tenant, key, salt = known.tenant, known.name, self._salt("tenant", known.tenant)
        return Caller(
            tenant=tenant,
            salt=salt,
            priority=fields.priority or 0,
            slo_class=fields.slo_class or "interactive",
            key=key,
        )

    def _known(self, authorization: str | None) -> Key:
        assert self.ring is not None, "there are keys"
        sent = bearer_key(authorization)
        if not sent:
            raise Unauthorized(f"this server asks for a key; {ASK}")
        if (key := self.ring.find(sent)) is None:
            raise Unauthorized("this key is not known here; check it, or ask for a new one")
        return key

    def _salt(self, kind: str, name: str) -> bytes:
        person = kind.encode()
        data = name.encode(errors="surrogatepass")
        return blake2b(data, key=self.secret, digest_size=16, person=person).digest()


def bearer_key(authorization: str | None) -> str:
    """Of `Bearer KEY`; empty where there is none."""
    scheme, _, key = (authorization or "").strip().partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


def tenant_of(key: str) -> str:
    """Of a server without keys of its own, the first digits of the SHA-256 of what was sent, so
    that scheduler.tenant_weights holds no secret: `printf %s "$KEY" | sha256sum | cut -c1-16`.
    Without a key: the empty name.
    """
    return sha256(key.encode()).hexdigest()[:NAME_DIGITS] if key else ""
