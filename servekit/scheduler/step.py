"""A batch in the making, and one under way."""

from dataclasses import dataclass, field
from typing import NamedTuple

from servekit.scheduler.batch import Batch, Row
from servekit.scheduler.request import Request


class Flight(NamedTuple):
    """A batch that is not committed, and whose its rows are."""

    batch: Batch
    requests: list[Request]


@dataclass(slots=True)
class Step:
    budget: int
    """Tokens it may still take."""
    rows: list[Row] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    out: set[Request] = field(default_factory=set)
    """Get no row: preempted in this step, or to be preempted once nothing of them is in flight."""
    short: bool = False
    """A running request asked for a block and there was none."""

    def add(self, request: Request, tokens: list[int], drafts: int = 0) -> None:
        """A row of the request's next tokens; it samples if the last token wanted is among them."""
        start = request.computed
        end = start + len(tokens)
        samples = end - drafts == request.wanted
        if drafts:
            request.wanted = end
        elif samples and end + 1 < request.limit:
            request.wanted = end + 1
        request.computed = end
        request.in_flight += 1
        self.budget -= len(tokens)
        self.rows.append(Row(request.id, start, tokens, request.blocks, samples, drafts))
        self.requests.append(request)
