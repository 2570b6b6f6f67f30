"""What requests use, and whose it is: limits of keys, counters by tenant, a line in the ledger."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

import msgspec

from servekit.engine.messages import Caller
from servekit.server.keys import Key
from servekit.server.quota import Quota
from servekit.telemetry.ledger import Ledger
from servekit.telemetry.metrics import Metrics


@dataclass(frozen=True, slots=True)
class Used:
    """By a request until now. Nothing, for one that the engine did not let in.

    Seconds count from the arrival, those of `queue_s` until the engine began with it;
    `finish_reasons` has one for each answer, null for one without
    an end.
    """

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    queue_s: float | None
    ttft_s: float | None
    finish_reasons: Sequence[str | None]


class Entry(msgspec.Struct, frozen=True):
    """A line of the ledger; docs/metering.md says what the fields mean."""

    id: str
    time: str
    tenant: str
    key: str
    model: str
    operation: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    queue_s: float | None
    ttft_s: float | None
    total_s: float
    finish_reasons: Sequence[str | None]
    error: str | None


@dataclass(frozen=True, slots=True)
class Account:
    """Whose a request is, and how large; `arrived` is of the monotonic clock."""

    id: str
    operation: str
    caller: Caller
    arrived: float
    answers: int
    prompt_tokens: int


@dataclass(slots=True, eq=False)
class Bill:
    """Of one request, from its admission to its end."""

    accounts: "Accounts"
    account: Account
    quota: Quota | None
    let_in: bool = False
    settled: bool = False

    def spend(self, tokens: int) -> None:
        """Of an answer, as they come."""
        if self.quota is not None:
            self.quota.tokens.used += tokens

    def settle(self, used: Used, error: str | None) -> "asyncio.Future[None] | None":
        """Counts what was used, once; what it returns is done when the ledger has the line, and
        raises LedgerUnwritable. Who is gone is not waited for."""
        if self.settled or not self.let_in:
            return None
        self.settled = True
        accounts = self.accounts
        accounts.count(self.account.caller, used)
        if accounts.ledger is None:
            return None
        entry = self._entry(used, error)
        written = accounts.ledger.write(msgspec.json.encode(entry) + b"\n")
        return asyncio.wrap_future(written)

    def close(self) -> None:
        """A request that was not let in gives its prompt back."""
        if self.quota is not None:
            self.quota.running -= self.account.answers
            if not self.let_in:
                self.quota.tokens.used -= self.account.prompt_tokens

    def _entry(self, used: Used, error: str | None) -> Entry:
        account = self.account
        total_s = time.monotonic() - account.arrived
        came = datetime.fromtimestamp(time.time() - total_s, UTC)
        return Entry(
            id=account.id,
            time=came.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            tenant=account.caller.tenant,
            key=account.caller.key,
            model=self.accounts.model,
            operation=account.operation,
            prompt_tokens=used.prompt_tokens,
            cached_tokens=used.cached_tokens,
            completion_tokens=used.completion_tokens,
            queue_s=_microseconds(used.queue_s),
            ttft_s=_microseconds(used.ttft_s),
            total_s=round(total_s, 6),
            finish_reasons=used.finish_reasons,
            error=error,
        )


def _microseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)


@dataclass(slots=True)
class Accounts:
    """`named` finds a key by its name; None: there are no keys, and so no limits."""

    model: str
    metrics: Metrics
    ledger: Ledger | None
    named: Callable[[str], Key | None] | None
    quotas: dict[str, Quota] = field(default_factory=dict)

    @contextmanager
    def opened(self, account: Account) -> Iterator[Bill]:
        """Raises an Overloaded or RequestError for what the caller's key does not allow."""
        key = None if self.named is None else self.named(account.caller.key)
        quota = None
        if key is not None:
            quota = self.quotas.setdefault(key.name, Quota())
            quota.enter(key, account.answers, account.prompt_tokens)
        bill = Bill(self, account, quota)
        try:
            yield bill
        finally:
            bill.close()

    def close(self) -> None:
        """Once no request runs any more."""
        if self.ledger is not None:
            self.ledger.close()

    def count(self, caller: Caller, used: Used) -> None:
        """Names come from the key file alone: what strangers send makes no new time series."""
        tenant = caller.tenant if self.named is not None else ""
        self.metrics.tenant_tokens(
            tenant,
            caller.key,
            prompt=used.prompt_tokens,
            cached=used.cached_tokens,
            completion=used.completion_tokens,
        )
