"""Keys of a deployment: a line of JSON each, with the hash of the key and never the key itself.

    {"tenant": "acme", "sha256": "9f86d0...", "access": ["inference"], "tokens_per_minute": 60000}

A file of such lines is read again within a second of a change; one that cannot be read leaves the
keys of before in force.
"""

import hmac
import logging
import os
import secrets
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from servekit.errors import ConfigError

log = logging.getLogger(__name__)

ENVIRONMENT = "env:"
LOOK_EVERY_S = 1.0

Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Limit = Annotated[int, msgspec.Meta(ge=1)] | None


class Key(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line; a limit that is null, or not there, is none.

    `max_concurrent` counts answers that run or wait at once, tokens are those of prompts and of
    answers.
    """

    tenant: Name
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    id: Name | None = None
    access: tuple[Literal["inference", "admin"], ...] = ("inference",)
    max_concurrent: Limit = None
    requests_per_minute: Limit = None
    tokens_per_minute: Limit = None

    @property
    def name(self) -> str:
        """What a ledger and metrics call it; of the hash where it was given no `id`."""
        return self.id or self.sha256[:8]


def parse_keys(text: str, source: str) -> list[Key]:
    """Raises ConfigError with the number of a line that is wrong. Empty lines and those that begin
    with # say nothing; no key at all is wrong too, as a file is while it is being replaced."""
    keys: list[Key] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            keys.append(msgspec.json.decode(line, type=Key))
        except msgspec.MsgspecError as error:
            raise ConfigError(
                f"server.api_keys: line {number} of {source} is not a key ({error}); a line is "
                "what `servekit keys new --tenant NAME` prints"
            ) from None
    if not keys:
        raise ConfigError(
            f"server.api_keys: {source} has no key; `servekit keys new --tenant NAME` makes one"
        )
    for what in ("sha256", "name"):
        given = Counter(getattr(key, what) for key in keys)
        (twice, times), *_ = given.most_common(1)
        if times > 1:
            raise ConfigError(f"server.api_keys: {source} has two keys of {what} {twice}")
    return keys


def read_keys(source: str) -> list[Key]:
    """Of a path or `env:NAME`. Raises ConfigError."""
    if source.startswith(ENVIRONMENT):
        name = source.removeprefix(ENVIRONMENT)
        if name not in os.environ:
            raise ConfigError(
                f"server.api_keys is {source}, and the environment variable {name} is not set; set "
                "it to lines of `servekit keys new --tenant NAME`, or give "
                "server.api_keys=FILE"
            )
        return parse_keys(os.environ[name], f"the environment variable {name}")
    try:
        text = Path(source).read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(
            f"server.api_keys: {source} cannot be read ({why}); a file with a line for each key, "
            "made by `servekit keys new --tenant NAME`"
        ) from None
    return parse_keys(text, source)


def new_key(tenant: str, **more: object) -> tuple[str, Key]:
    """A key of 256 random bits, and its line. Raises ConfigError for a name that is none."""
    key = f"sk-{secrets.token_urlsafe(32)}"
    line = {"tenant": tenant, "sha256": sha256(key.encode()).hexdigest(), **more}
    try:
        return key, msgspec.convert(line, Key)
    except msgspec.ValidationError as error:
        raise ConfigError(f"this makes no key: {error}") from None


@dataclass(slots=True)
class KeyRing:
    """The keys in force.

    A key is looked for by a hash under a secret of this process, so that how long a search takes
    tells nothing about the keys that there are.
    """

    source: str
    clock: Callable[[], float] = time.monotonic
    _secret: bytes = field(default_factory=lambda: os.urandom(32), repr=False)
    _keys: dict[bytes, Key] = field(init=False, repr=False)
    _named: dict[str, Key] = field(init=False)
    _state: object = field(init=False)
    _looked_at: float = field(init=False)

    def __post_init__(self) -> None:
        """Raises ConfigError where the source has no good keys."""
        self._state, self._looked_at = self._look(), self.clock()
        self._take(read_keys(self.source))

    def find(self, key: str) -> Key | None:
        """What is known of a key that somebody sent."""
        if self.clock() - self._looked_at >= LOOK_EVERY_S:
            self._refresh()
        digest = sha256(key.encode(errors="surrogatepass")).digest()
        found = self._keys.get(self._mark(digest))
        if found is None or not hmac.compare_digest(bytes.fromhex(found.sha256), digest):
            return None
        return found

    def named(self, name: str) -> Key | None:
        """By what `Key.name` says; None once it is taken out."""
        return self._named.get(name)

    def _mark(self, digest: bytes) -> bytes:
        return blake2b(digest, key=self._secret, digest_size=32).digest()

    def _take(self, keys: list[Key]) -> None:
        self._keys = {self._mark(bytes.fromhex(key.sha256)): key for key in keys}
        self._named = {key.name: key for key in keys}

    def _refresh(self) -> None:
        state, self._looked_at = self._look(), self.clock()
        if state == self._state:
            return
        self._state = state
        try:
            keys = read_keys(self.source)
        except ConfigError as error:
            log.error("%s; the keys of before stay in force", error.message)
            return
        self._take(keys)
        log.info("server.api_keys: %d keys are in force now", len(keys))

    def _look(self) -> object:
        """Something that differs once a file has changed; a variable does not change."""
        if self.source.startswith(ENVIRONMENT):
            return None
        try:
            seen = os.stat(self.source)
        except OSError as error:
            return error.errno
        return seen.st_mtime_ns, seen.st_size, seen.st_ino
