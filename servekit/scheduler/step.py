"""A batch in the making, and one under way."""

from dataclasses import dataclass, field

from servekit.scheduler.batch import Batch, Row
from servekit.scheduler.decoding import Columns
from servekit.scheduler.pace import Meter
from servekit.scheduler.request import Request


@dataclass(slots=True)
class Flight:
    """A batch that is not committed, and whose its rows are."""

    batch: Batch
    columns: Columns
    requests: list[Request]
    """Of `batch.others`."""
    meter: Meter | None
    """Of its prompt tokens; None: there was nobody for any."""
    context: float
    """Of its decodes, tokens there were before theirs, on average."""
    strays: list[Request] = field(default_factory=list)
    """Of the columns, those that went out of lock step since."""


@dataclass(slots=True)
class Step:
    """What is decided so far of the rows besides those in lock step."""

    budget: int
    """Tokens it may still take."""
    rows: list[Row] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    prefilling: list[Request] = field(default_factory=list)
    """Those with a seat that lack more than one token."""
    guesses: int = 0
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
        self.guesses += drafts
        self.rows.append(Row(request.id, start, tokens, request.tables, samples, drafts))
        self.requests.append(request)
