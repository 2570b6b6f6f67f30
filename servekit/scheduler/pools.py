"""Two classes sharing one engine: interactive requests first, and a share kept for class batch."""

import math
from collections.abc import Iterable, Iterator

from servekit.scheduler.kv import KvBlocks
from servekit.scheduler.order import IsOpen, Key, Order, Sorted, merge
from servekit.scheduler.request import Request
from servekit.scheduler.settings import Settings


class TwoPool(Order):
    """While both want something, class batch has `batch_share` of the seats and of the prompt
    tokens, and interactive requests the rest; what one does not want is the other's.

    Tokens are kept as a credit of batch: it grows by its share of what interactive requests are
    given and shrinks by what batch is given itself. With credit, batch goes first.
    """

    def __init__(self, settings: Settings, kv: KvBlocks) -> None:
        super().__init__(settings, kv)
        self.batch = Sorted()
        """`line` has the interactive ones."""
        self.batch_seats = 0
        self.own_seats = math.ceil(self.config.batch_share * self.config.max_num_seqs)
        self.credit = 0.0
        self.bound = float(self.config.max_num_batched_tokens)
        """Of credit and of debt: nobody makes up for more than a full step."""
        self.both_want = False

    def __len__(self) -> int:
        return len(self.line) + len(self.batch)

    def rank(self, request: Request) -> Key:
        return (request.slo_class == "batch", request.arrived, request.id)

    def _line_of(self, request: Request) -> Sorted:
        return self.batch if request.slo_class == "batch" else self.line

    def add(self, request: Request) -> None:
        self._line_of(request).add(request, self.key(request))

    def remove(self, request: Request) -> None:
        self._line_of(request).remove(request)

    def requests(self) -> Iterator[Request]:
        yield from self.line
        yield from self.batch

    def merged(
        self, prefilling: Iterable[Request], now: float, is_open: IsOpen
    ) -> Iterator[Request]:
        seated = self.by_key(prefilling)
        batches = [(key, r) for key, r in seated if r.slo_class == "batch"]
        others = [(key, r) for key, r in seated if r.slo_class != "batch"]
        self.both_want = bool((batches or self.batch) and (others or self.line))
        interactive = merge(others, self.line.walk(), is_open)
        batch = merge(batches, self.batch.walk(), is_open)
        first, second = next(interactive, None), next(batch, None)
        while first is not None or second is not None:
            if second is not None and (first is None or self._is_due(second)):
                yield second
                second = next(batch, None)
            elif first is not None:
                yield first
                first = next(interactive, None)

    def _is_due(self, batch: Request) -> bool:
        """It goes before an interactive one: its class has fewer seats or tokens than its share."""
        if batch.id in self.batch.keys:
            return self.batch_seats < self.own_seats
        return self.credit > 0

    def seated(self, request: Request) -> None:
        self.batch_seats += request.slo_class == "batch"

    def ended(self, request: Request) -> None:
        self.batch_seats -= request.slo_class == "batch"

    def charge(self, request: Request, tokens: int) -> None:
        if not self.both_want:
            return
        share = self.config.batch_share
        if request.slo_class == "batch":
            self.credit = max(-self.bound, self.credit - tokens)
        elif share == 1:
            self.credit = self.bound
        else:
            self.credit = min(self.bound, self.credit + tokens * share / (1 - share))

    def challenger(self) -> Request | None:
        return self.line.first if self.batch_seats > self.own_seats else None

    def beaten(self, winner: Request, running: Iterable[Request]) -> list[tuple[float, Request]]:
        return [(0.0, request) for request in running if request.slo_class == "batch"]

    def most_beaten(self) -> int:
        """Class batch keeps its share."""
        return self.batch_seats - self.own_seats

    def ahead(self, request: Request) -> int:
        if request.slo_class == "batch":
            return len(self)
        before, share = len(self.line), self.config.batch_share
        beside = len(self.batch) if share == 1 else int(before * share / (1 - share))
        return before + min(len(self.batch), beside)

    def check(self) -> None:
        super().check()
        self.batch.check()
        assert self.batch_seats >= 0, "class batch gave back more seats than it had"
