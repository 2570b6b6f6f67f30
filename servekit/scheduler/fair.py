"""Virtual token counter: the tenant that was served least by its weight goes first.

After "Fairness in Serving Large Language Models" (Sheng et al., OSDI 2024): a tenant's counter
grows by what is computed for it, a tenant that comes back is lifted to those that are there, and
between two tenants that always wait the counters never drift apart by more than a batch.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from servekit.scheduler.kv import KvBlocks
from servekit.scheduler.order import IsOpen, Order, Sorted, merge
from servekit.scheduler.request import Request
from servekit.scheduler.settings import Settings

OUTPUT_WEIGHT = 2
"""An output token costs as much as so many prompt tokens."""

MANY_TENANTS = 1000
"""Accounts that are kept before those that say nothing any more are thrown away."""


@dataclass(slots=True)
class Account:
    """What of a seated request its tenant was charged for."""

    request: Request
    price: float
    """of an output token, by its tenant's weight"""
    prompt: int
    """tokens at its start; what is cached is free, and so is what a preemption lost"""
    tokens: int
    """of prompt and output that were there when it last was charged for output"""


class Fair(Order):
    """First come first served within a tenant, least served first between them.

    Prompt tokens are charged as they are planned, so a long prompt shares the room in steps as
    well; output is charged only when somebody asks for the order, not token by token.
    """

    def __init__(self, settings: Settings, kv: KvBlocks) -> None:
        super().__init__(settings, kv)
        self.lines: dict[str, Sorted] = {}
        """Of tenants that wait."""
        self.served: dict[str, float] = {}
        """Prompt tokens and OUTPUT_WEIGHT times output tokens, over the tenant's weight."""
        self.accounts: dict[int, Account] = {}
        self.floor = 0.0
        """What the tenant that was last to leave the line had."""

    def __len__(self) -> int:
        return sum(len(line) for line in self.lines.values())

    def weight(self, tenant: str) -> float:
        return self.config.tenant_weights.get(tenant, 1.0)

    def add(self, request: Request) -> None:
        tenant = request.tenant
        if tenant not in self.lines:
            if not request.preemptions:
                self._lift(tenant)
            self.lines[tenant] = Sorted()
        self.lines[tenant].add(request, self.key(request))

    def _lift(self, tenant: str) -> None:
        """Who did not ask saved nothing up: it starts beside the least served of those who wait."""
        self._settle()
        level = min((self.served[other] for other in self.lines), default=self.floor)
        self.served[tenant] = max(self.served.get(tenant, 0.0), level)
        if len(self.served) > MANY_TENANTS:
            busy = {account.request.tenant for account in self.accounts.values()} | {tenant}
            self.served = {
                name: served
                for name, served in self.served.items()
                if name in self.lines or name in busy or served > level
            }

    def remove(self, request: Request) -> None:
        line = self.lines[request.tenant]
        line.remove(request)
        if not line:
            del self.lines[request.tenant]
            self.floor = max(self.floor, self.served[request.tenant])

    def requests(self) -> Iterator[Request]:
        return (request for line in self.lines.values() for request in line)

    def merged(
        self, prefilling: Iterable[Request], now: float, is_open: IsOpen
    ) -> Iterator[Request]:
        self._settle()
        seated: dict[str, list[Request]] = {}
        for request in prefilling:
            seated.setdefault(request.tenant, []).append(request)
        tenants = seated.keys() | self.lines.keys() if is_open() else seated.keys()
        lines = {
            tenant: merge(
                self.by_key(seated.get(tenant, ())),
                self.lines[tenant].walk() if tenant in self.lines else (),
                is_open,
            )
            for tenant in tenants
        }
        # who got nothing of what it was offered comes again after the others
        turns = [(0, self.served[tenant], tenant) for tenant in tenants]
        heapify(turns)
        while turns:
            refused, before, tenant = heappop(turns)
            offered = next(lines[tenant], None)
            if offered is not None:
                yield offered
                after = self.served[tenant]
                heappush(turns, (refused + (after == before), after, tenant))

    def seated(self, request: Request) -> None:
        paid = len(request.prompt) if request.preemptions else request.computed
        price = OUTPUT_WEIGHT / self.weight(request.tenant)
        self.accounts[request.id] = Account(request, price, paid, len(request.tokens))

    def charge(self, request: Request, tokens: int) -> None:
        account = self.accounts[request.id]
        new = min(request.computed, len(request.prompt)) - account.prompt
        if new > 0:
            account.prompt += new
            self.served[request.tenant] += new / self.weight(request.tenant)

    def ended(self, request: Request) -> None:
        self._charge_output((self.accounts.pop(request.id),))

    def _settle(self) -> None:
        self._charge_output(self.accounts.values())

    def _charge_output(self, accounts: Iterable[Account]) -> None:
        served = self.served
        for account in accounts:
            request = account.request
            tokens = len(request.tokens)
            if tokens != account.tokens:
                served[request.tenant] += account.price * (tokens - account.tokens)
                account.tokens = tokens

    def ahead(self, request: Request) -> int:
        """Its own tenant's, and of each other as many as are served beside them, by weight."""
        own = len(self.lines.get(request.tenant, ()))
        turns = (own + 1) / self.weight(request.tenant)
        others = (
            min(len(line), turns * self.weight(tenant))
            for tenant, line in self.lines.items()
            if tenant != request.tenant
        )
        return own + int(sum(others))

    def check(self) -> None:
        for line in self.lines.values():
            line.check()
            assert line, "a tenant that waits for nothing is in line"
