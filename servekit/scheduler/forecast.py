"""When a request that comes now would have its first token."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp, inf, log
from typing import Protocol

from servekit.scheduler.kv import KvBlocks
from servekit.scheduler.lengths import OutputLengths
from servekit.scheduler.pace import Pace
from servekit.scheduler.request import Request
from servekit.scheduler.reserve import Reserve
from servekit.scheduler.running import Running
from servekit.scheduler.settings import Settings
from servekit.scheduler.survival import Survival
from servekit.scheduler.waiting import Line


class Standing(Protocol):
    """What of a scheduler is looked at."""

    @property
    def running(self) -> Sequence[Request]: ...

    @property
    def seats(self) -> Running: ...

    @property
    def line(self) -> Line: ...

    @property
    def kv(self) -> KvBlocks: ...

    @property
    def reserve(self) -> Reserve: ...

    @property
    def steps_total(self) -> int: ...


SAMPLE = 32
"""Running requests that stand for all of them."""
TURNS = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0)
"""Of the mean answer: where departures are counted."""
KEEP_STEPS = 8
"""So long a view of what runs is good for."""
SMOOTH = 0.05


@dataclass(slots=True)
class View:
    """What runs, as far as newcomers care."""

    step: int
    running: int
    decodes: int
    context: float
    rate: float
    """Prompt tokens a second."""
    departures: list[tuple[float, float]] = field(default_factory=list)
    """(steps from now, requests that are expected to have ended by then)"""


class Forecast:
    """Waits, from what is ahead and how fast it goes away; corrected by how it turned out."""

    def __init__(self, settings: Settings, pace: Pace, lengths: OutputLengths) -> None:
        self.config = settings.scheduler
        self.pace = pace
        self.lengths = lengths
        self.bias = 0.0
        """Mean of log(realised / predicted) of late."""
        self.prompt_tokens = 0.0
        """Of a prompt, on average, as far as they are not cached."""
        self._view: View | None = None
        self._looked: View | None = None
        """The one of those who only want to know."""

    @property
    def is_known(self) -> bool:
        return self.pace.step_time is not None

    def ttft_s(self, request: Request, standing: Standing) -> float:
        """Seconds from now to its first token; uncorrected."""
        if standing.running:
            # nobody may have asked for long, if nobody waits
            kv, step = standing.kv, standing.steps_total
            standing.reserve.blocks(request, standing.running, kv, step)
        fresh = self._uncached(request, standing)
        return self._ttft_s(request, fresh, standing)

    def alone_s(self, request: Request, standing: Standing) -> float:
        """Seconds to its first token if nobody else were here; uncorrected."""
        return self._uncached(request, standing) / self.pace.rate(0, 0.0, inf)

    def typical(self, standing: Standing) -> float | None:
        """Of a request like those that came, if one came now; None where nothing is known.

        To ask changes nothing of what is predicted for others.
        """
        if not self.is_known:
            return None
        deciding, self._view = self._view, self._looked
        try:
            return self.corrected(self._ttft_s(None, self.prompt_tokens, standing))
        finally:
            self._looked, self._view = self._view, deciding

    def served(self, request: Request) -> None:
        """It has its first token, so what was to compute of its prompt is known."""
        fresh = len(request.prompt) - request.cached_tokens
        self.prompt_tokens += (fresh - self.prompt_tokens) * (SMOOTH if self.prompt_tokens else 1.0)

    def corrected(self, predicted_s: float) -> float:
        return predicted_s * exp(self.bias)

    def learn(self, predicted_s: float, realised_s: float) -> None:
        if predicted_s > 0 and realised_s > 0:
            off = log(realised_s / predicted_s) - self.bias
            self.bias += SMOOTH * max(-1.0, min(1.0, off))

    def tokens_s(self, tokens: float, standing: Standing) -> float:
        """Seconds until so many prompt tokens are computed."""
        if not self.is_known:
            return 0.0
        return tokens * self._uncached_share(standing) / self._view_of(standing).rate

    def _ttft_s(self, request: Request | None, fresh: float, standing: Standing) -> float:
        view = self._view_of(standing)
        line = standing.line
        count, known = (len(line), line.tokens) if request is None else line.ahead(request)
        tokens = known * self._uncached_share(standing)
        departures = self._departures(count, tokens + fresh, standing)
        if departures and request is not None:
            self.lengths.refresh(standing.running, standing.steps_total)
        seat_s = self.departures_s(departures, standing) * (1.0 + self.lengths.unsure)
        return max(seat_s, (self._missing(standing) + tokens) / view.rate) + fresh / view.rate

    def _departures(self, ahead: int, tokens: float, standing: Standing) -> float:
        """Running requests that must end before one with so many ahead of it has a seat and blocks,
        when those and it have so many tokens.
        """
        running = len(standing.running)
        if not running:
            return 0.0
        seats = ahead + 1 - (self.config.max_num_seqs - running)
        kv, reserve = standing.kv, standing.reserve
        reserved = reserve.last * (1.0 + reserve.unsure)
        lacking = tokens / kv.block_size + reserved - kv.num_free
        # who ends gives back what it holds, and what is reserved for it
        each = max(1.0, (kv.settings.num_blocks - 1 - kv.num_free + reserved) / running)
        return max(0.0, float(seats), lacking / each)

    def departures_s(self, count: float, standing: Standing) -> float:
        """Seconds until so many of those that run, and of those that follow them, have ended."""
        if count <= 0 or not standing.running:
            return 0.0
        view = self._view_of(standing)
        if not view.departures:
            view.departures = self._count_departures(standing.running)
        steps_before = ended_before = 0.0
        for steps, ended in view.departures:
            if ended >= count:
                share = (count - ended_before) / (ended - ended_before)
                return self._steps_s(view, steps_before + share * (steps - steps_before))
            steps_before, ended_before = steps, ended
        return self._steps_s(view, steps_before * count / max(1e-9, ended_before))

    def _steps_s(self, view: View, steps: float) -> float:
        return steps * (self.pace.step_s or self.pace.seconds(view.decodes, view.context))

    def _count_departures(self, running: Sequence[Request]) -> list[tuple[float, float]]:
        """At some times, how many seats were given back until then: by those that run, and by those
        that took theirs after them (a renewal process).
        """
        some = running[:: -(-len(running) // SAMPLE)]
        weight = len(running) / len(some)
        known = [
            (self.lengths.survival(r), len(r.tokens) - len(r.prompt), r.max_tokens) for r in some
        ]
        mean = sum([survival.remaining(0, limit) for survival, _, limit in known]) / len(known)
        typical, _, longest = known[len(known) // 2]
        found: list[tuple[float, float]] = []
        for turn in TURNS:
            steps = max(1.0, turn * mean)
            gone = weight * sum([_ended(*one, steps) for one in known])
            before = 0.0
            for at, total in found:
                gone += (total - before) * _ended(typical, 0, longest, steps - at)
                before = total
            found.append((steps, gone))
        return found

    def _view_of(self, standing: Standing) -> View:
        view, seats, step = self._view, standing.seats, standing.steps_total
        running = len(standing.running)
        if (
            view is None
            or step - view.step >= KEEP_STEPS
            or abs(running - view.running) > view.running // 16
        ):
            decodes, context = len(seats.decoding), seats.decoding.mean_context
            rate = self.pace.rate(decodes, context, self.pace.fast_s) if self.is_known else 0.0
            view = self._view = View(step, running, decodes, context, rate)
        return view

    def _missing(self, standing: Standing) -> int:
        """Tokens of seated prompts that are not computed yet."""
        return sum([request.wanted - request.computed for request in standing.seats.loose])

    def _uncached_share(self, standing: Standing) -> float:
        asked = standing.kv.query_tokens_total
        return 1.0 - standing.kv.hit_tokens_total / asked if asked else 1.0

    def _uncached(self, request: Request, standing: Standing) -> int:
        return len(request.tokens) - standing.kv.probable_hit(request)


def _ended(survival: Survival, done: int, limit: int, steps: float) -> float:
    """The probability that an answer of `done` tokens ends within so many more."""
    if done + steps >= limit:
        return 1.0
    return 1.0 - survival.beyond(done + steps) / survival.beyond(done)
