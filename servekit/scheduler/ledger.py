"""What came of batches: tokens to their requests, and requests to their end."""

from typing import TYPE_CHECKING

from servekit.scheduler.batch import Batch, FinishReason, Gains, Outcome, Progress
from servekit.scheduler.request import Request, State
from servekit.scheduler.step import Flight

if TYPE_CHECKING:
    from servekit.scheduler.scheduler import Scheduler

Alone = list[tuple[Request, int, int]]
"""Requests out of lock step, each with the position of its last known token and the new one."""


class Ledger:
    """Everybody who is here. A request that ends while a row of it is in flight keeps its blocks
    until that row is committed (`leaving`), so no block is written by two.
    """

    def __init__(self, scheduler: "Scheduler") -> None:
        self.running, self.line, self.kv = scheduler.seats, scheduler.line, scheduler.kv
        self.shortage, self.lengths = scheduler.shortage, scheduler.lengths
        self.door = scheduler.door
        self.requests: dict[int, Request] = {}
        self.leaving: dict[int, Request] = {}

    def commit(self, batch: Batch, outcome: Outcome, now: float) -> Gains:
        """Take in what came of the oldest batch in flight."""
        running, flight = self.running, self.running.flights[0]
        assert flight.batch is batch, f"batch {flight.batch.id} comes before batch {batch.id}"
        assert len(outcome.decoded) == len(flight.columns.ids), "a token is missing, or too many"
        self._part(flight, outcome)
        running.flights.popleft()
        gains, alone = self._commit_columns(flight, outcome.decoded)
        for request, start, token in alone:
            request.in_flight -= 1
            if not self._ended(request, outcome, gains, now):
                self._accept(request, start, [token], 0, gains, now)
        for row, request in zip(batch.others, flight.requests, strict=True):
            request.in_flight -= 1
            if self._ended(request, outcome, gains, now):
                continue
            if row.samples:
                last = row.start + len(row.tokens) - row.drafts - 1
                new = outcome.tokens[request.id]
                self._accept(request, last, new, row.drafts, gains, now)
            else:
                request.committed = row.start + len(row.tokens)
                self.kv.committed(request)
        self.kv.filled(running.decoding.filled())
        return gains

    def _part(self, flight: Flight, outcome: Outcome) -> None:
        """Those that end or fail here go out of lock step, to be looked at one by one."""
        for id in outcome.failed:
            self.running.rest(self.requests[id])
        stop_ids = self.running.decoding.stop_ids
        if not stop_ids.isdisjoint(outcome.decoded):
            for id, token in zip(flight.columns.ids, outcome.decoded, strict=True):
                if token in stop_ids:
                    request = self.requests[id]
                    if request.stops_at(token):
                        self.running.rest(request)

    def _commit_columns(self, flight: Flight, new: list[int]) -> tuple[Gains, Alone]:
        """All those in lock step at once; returns the others."""
        ids, said = flight.columns
        alone: Alone = []
        if flight.strays:
            ids, said, new = ids.copy(), said.copy(), new.copy()
            starts = flight.batch.decodes.starts
            places = {ids.index(request.id): request for request in flight.strays}
            alone = [(places[at], starts[at], new[at]) for at in sorted(places)]
            for at in sorted(places, reverse=True):
                del ids[at], said[at], new[at]
        self.running.decoding.commit(flight.columns, said, new)
        if alone or flight.requests:
            # more is appended, and these lists may be those of the next batch
            ids, new = ids.copy(), new.copy()
        return Gains(ids, new, []), alone

    def _ended(self, request: Request, outcome: Outcome, gains: Gains, now: float) -> bool:
        """It had already, or its row failed."""
        if request.finish:
            self._let_go(request)
            return True
        if request.id in outcome.failed:
            error = outcome.failed[request.id]
            gains.others.append(self.finish(request, "error", now, error=error))
            return True
        return False

    def _accept(
        self,
        request: Request,
        last_known: int,
        new: list[int],
        drafts: int,
        gains: Gains,
        now: float,
    ) -> None:
        """What a row gave whose last known token is at `last_known`."""
        assert 1 <= len(new) <= drafts + 1, f"{len(new)} tokens for {drafts} drafts"
        first = request.first_token_at is None
        if first:
            request.first_token_at = now
            self.door.first_token(request)
        new, stop_token = request.accept(last_known, new, drafts=drafts > 0)
        self.kv.committed(request)
        if stop_token is not None:
            end = self.finish(request, "stop", now, tokens=new, stop_token=stop_token)
            gains.others.append(end)
        elif len(request.tokens) == request.limit:
            gains.others.append(self.finish(request, "length", now, tokens=new))
        elif first or len(new) > 1:
            gains.others.append(_progress(request, new))
        else:
            gains.ids.append(request.id)
            gains.tokens.append(new[0])

    def finish(
        self,
        request: Request,
        finish: FinishReason,
        now: float | None,
        *,
        tokens: list[int] | None = None,
        stop_token: int | None = None,
        error: str | None = None,
    ) -> Progress:
        if request.state is State.RUNNING:
            self.line.ended(request)
            self.shortage.leave(request)
        else:
            self.line.remove(request)
        request.state, request.finish = State.FINISHED, finish
        request.finished_at = now
        self.lengths.finished(request)
        self.door.ended(request)
        self.leaving[request.id] = request
        self._let_go(request)
        return _progress(request, tokens or [], finish, stop_token, error)

    def _let_go(self, request: Request) -> None:
        """Give its blocks back once nothing of it is in flight."""
        if not request.in_flight:
            self.kv.release(request)
            del self.leaving[request.id], self.requests[request.id]


def _progress(
    request: Request,
    tokens: list[int],
    finish: FinishReason | None = None,
    stop_token: int | None = None,
    error: str | None = None,
) -> Progress:
    """With what is known of the request by now."""
    cached, preemptions = request.cached_tokens, request.preemptions
    seated, first = request.admitted_at, request.first_token_at
    queue_s = None if seated is None else seated - request.arrived
    prefill_s = None if seated is None or first is None else first - seated
    return Progress(
        request.id, tokens, finish, stop_token, error, cached, preemptions, queue_s, prefill_s
    )
