"""Requests as a trace recorded them; what it does not say of them is drawn as declared."""

from collections.abc import Iterator
from itertools import count

from servekit.config.targets import WorkloadConfig
from servekit.workload.arrival import Arrival, Runs, grown
from servekit.workload.drawn import Client, Clients, cut
from servekit.workload.trace import Trace


class Recorded:
    """Of a trace with times each request comes at its own. Without, a conversation begins whenever
    the workload says, its next request follows the answer, and after the last conversation the
    first comes again, about other things.
    """

    def __init__(
        self, trace: Trace, work: WorkloadConfig, *, max_model_len: int, seed: int
    ) -> None:
        self._trace = trace
        self._conversations = trace.conversations()
        self.turns = len(trace) / len(self._conversations)
        self._limit = max_model_len
        self._clients = Clients(work, seed)
        # even numbers: of blocks, odd ones: of what is a request's alone
        self._tokens = count(1, 2)

    def replayed(self, speed: float) -> Iterator[Arrival]:
        """All requests at their own times, so many times faster than recorded."""
        trace = self._trace
        latest: dict[int, Arrival] = {}
        for index, at in enumerate(trace.at):
            if not trace.sessions:
                yield self._arrival(index, at / speed, session=index, before=None)
                continue
            session = trace.sessions[index]
            arrival = self._arrival(index, at / speed, session, latest.get(session))
            latest[session] = arrival
            yield arrival

    def opening(self, session: int, at: float) -> Arrival:
        rows = self._conversations[session % len(self._conversations)]
        return self._arrival(rows[0], at, session, before=None)

    def following(self, before: Arrival, at: float) -> Arrival | None:
        """The next request of its conversation. None after the last one, or where a trace with
        times says itself when that comes.
        """
        rows = self._conversations[before.session % len(self._conversations)]
        turn = before.turn + 1
        if self._trace.at or turn == len(rows):
            return None
        return self._arrival(rows[turn], at, before.session, before)

    def _arrival(self, index: int, at: float, session: int, before: Arrival | None) -> Arrival:
        trace = self._trace
        asked = trace.prompt_tokens[index], trace.output_tokens[index]
        prompt, output = cut(*asked, self._limit)
        client = self._client(index, session)
        return Arrival(
            at=at,
            prompt_tokens=prompt,
            output_tokens=output,
            runs=self._runs(index, prompt, before),
            answer=next(self._tokens),
            tenant=client.tenant,
            priority=client.priority,
            slo_class=client.slo_class,
            session=session,
            turn=before.turn + 1 if before else 0,
            is_cut=(prompt, output) != asked,
        )

    def _client(self, index: int, session: int) -> Client:
        trace, drawn = self._trace, self._clients.of(session)
        if not (trace.tenants or trace.priorities or trace.slo_classes):
            return drawn
        tenant = trace.tenants[index] if trace.tenants else None
        priority = trace.priorities[index] if trace.priorities else None
        slo_class = trace.slo_classes[index] if trace.slo_classes else None
        return Client(
            tenant=drawn.tenant if tenant is None else tenant,
            priority=drawn.priority if priority is None else priority,
            slo_class=slo_class or drawn.slo_class,
        )

    def _runs(self, index: int, prompt: int, before: Arrival | None) -> Runs:
        blocks = self._trace.blocks[index] if self._trace.blocks else ()
        if not blocks:
            own = next(self._tokens)
            return grown(before, prompt, own) if before else ((own, prompt),)
        size, left, runs = self._trace.block_size, prompt, []
        for block in blocks:
            if left <= 0:
                break
            runs.append((2 * block, min(size, left)))
            left -= size
        if left > 0:
            runs.append((next(self._tokens), left))
        return tuple(runs)
