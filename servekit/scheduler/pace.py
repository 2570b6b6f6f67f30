"""How many prompt tokens a step takes: as many as those who decode can bear."""

from collections.abc import Iterable, Sequence
from itertools import islice
from math import exp, inf, log

from servekit.scheduler.request import Request
from servekit.scheduler.settings import Settings, StepTime

Chunk = tuple[int, int]
"""Prompt tokens in a step, and tokens of that prompt that are there already."""

LOOK_AHEAD = 32
"""Prompts in order that are looked at for whether they will be late."""
HASTE = 1.25
"""A prompt is hurried when it would need so many times less than it will; more may come."""
CLOSE = 0.03
"""A step that is shorter than it may be by less than this share is full."""
LOST = 1.5
"""Times what decodes alone take, where that is more than a step may take: it is lost already."""
TRIES = 4
SAMPLED = 64
"""Steps of a kind that are all measured; after them, one in `SPARSE`."""
SPARSE = 8
SMOOTH = 0.05
"""Weight of the last step in the average of steps."""


class Drift:
    """Measured over modelled seconds of one kind of step, as a running geometric mean."""

    def __init__(self) -> None:
        self.steps = 0
        self.samples = 0
        self.log = 0.0
        self.factor = 1.0

    @property
    def due(self) -> bool:
        """Whether this step is to be measured; to be asked once a step."""
        self.steps += 1
        return self.steps <= SAMPLED or self.steps % SPARSE == 0

    def learn(self, measured: float, modelled: float) -> None:
        """The first ones move it far; one odd step (a pause, a compilation) never does later."""
        if measured <= 0 or modelled <= 0:
            return
        self.samples += 1
        off = log(measured / modelled) - self.log
        self.log += max(-1.0, min(1.0, off)) * max(0.03, 1 / self.samples)
        self.factor = exp(self.log)


class Meter:
    """Room for prompt tokens in one step. Decodes have had theirs."""

    def __init__(
        self, pace: "Pace", now: float, decodes: int, context: float, pending: Iterable[Request]
    ) -> None:
        self.pace = pace
        self.now = now
        self.decodes = decodes
        self.context = context
        self.pending = pending
        self.tokens = 0
        self.chunks: list[Chunk] = []
        self.seconds: float | None = None
        """Of the step as it is now, where somebody had to know."""
        self.full = False
        self.limit: float | None = None
        """Seconds that it may take; None: nobody had to know yet."""

    def allow(self, start: int, missing: int) -> int:
        """Tokens that the next prompt may take, of which `start` are there and `missing` are not.

        0: nobody may take more in this step. The first prompt of a step gets a block's worth
        whatever that takes, or it would never be done.
        """
        most = min(missing, self.tokens)
        if self.full or most <= 0:
            self.full = self.full or self.tokens <= 0
            return 0
        if self.limit is None:
            self.limit = self.pace.step_limit(self)
        if self.limit == inf:
            return most
        block = self.pace.block_size
        found = self._fit(start, most, self.limit)
        if found < most:
            found -= found % block if found >= block else 0
            if found < block:
                found = min(block, most) if not self.chunks else 0
                self.full = not found
        return found

    def spend(self, start: int, tokens: int) -> None:
        self.chunks.append((tokens, start))
        self.tokens -= tokens
        self.full = self.tokens <= 0
        self.seconds = None
        if self.limit is not None and self.limit < inf and not self.full:
            self.seconds = self._with(start, 0)
            self.full = self.seconds > (1 - CLOSE) * self.limit

    def _with(self, start: int, tokens: int) -> float:
        """Seconds of the step with one more chunk."""
        chunks = [*self.chunks, (tokens, start)] if tokens else self.chunks
        return self.pace.seconds(self.decodes, self.context, chunks)

    def _fit(self, start: int, most: int, limit: float) -> int:
        """The most tokens with which the step stays within the limit.

        Seconds grow faster and faster with the tokens, so the chord from below to above meets the
        limit at a number that is not too large, and the next chord from there is closer.
        """
        high, above = float(most), self._with(start, most)
        if above <= limit:
            return most
        low = 0.0
        below = self.seconds if self.seconds is not None else self._with(start, 0)
        if below >= limit:
            return 0
        for _ in range(TRIES):
            middle = low + (high - low) * (limit - below) / (above - below)
            middle = min(high - 1, float(int(middle)))
            if middle <= low:
                break
            found = self._with(start, int(middle))
            if found > limit:
                high, above = middle, found
            else:
                low, below = middle, found
                if found > (1 - CLOSE) * limit:
                    break
        return int(low)


class Pace:
    """Makes a meter for each step, and learns from what steps really took."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.config = settings, settings.scheduler
        self.block_size = settings.kv.block_size
        self.step_time: StepTime | None = settings.step_time
        self.decoding, self.mixed = Drift(), Drift()
        self.budget_tokens = self.config.max_num_batched_tokens
        """Prompt tokens that the last step with prompts had room for."""
        self.step_s = 0.0
        """Of late, on average, as measured."""
        self._chunks: dict[tuple[int, int, int | None], tuple[int, float]] = {}

    def meter(
        self,
        now: float,
        decodes: int,
        context: float,
        pending: Iterable[Request] = (),
        guesses: int = 0,
    ) -> Meter:
        """For a step in which `decodes` requests, that see `context` tokens on average, go on by a
        token each, and check `guesses` more in all. `pending` are the prompts in order, those with
        a seat and those that wait; it is read only where it matters, and not far.
        """
        meter = Meter(self, now, decodes, context, pending)
        meter.tokens = max(0, self.config.max_num_batched_tokens - decodes - guesses)
        return meter

    def observe(self, meter: Meter, seconds: float) -> None:
        """What the step of this meter took."""
        self._learn(meter.decodes, meter.context, meter.chunks, seconds)
        if meter.chunks:
            spent = sum(tokens for tokens, _ in meter.chunks)
            self.budget_tokens = spent if meter.full else spent + meter.tokens

    def decoded(self, decodes: int, context: float, seconds: float) -> None:
        """What a step without prompts took."""
        self._learn(decodes, context, (), seconds)

    def _learn(self, decodes: int, context: float, chunks: Sequence[Chunk], seconds: float) -> None:
        self.step_s += (seconds - self.step_s) * (SMOOTH if self.step_s else 1.0)
        drift = self.mixed if chunks else self.decoding
        if self.step_time is not None and drift.due:
            drift.learn(seconds, self.step_time.seconds(decodes, context, chunks))

    def seconds(self, decodes: float, context: float, chunks: Sequence[Chunk] = ()) -> float:
        """Of a step, as far as is known; 0 where nothing is."""
        if self.step_time is None:
            return 0.0
        drift = self.mixed if chunks else self.decoding
        return drift.factor * self.step_time.seconds(decodes, context, chunks)

    def step_limit(self, meter: Meter) -> float:
        """Seconds that a step with prompts may take; no end where nobody decodes."""
        if not meter.decodes or self.step_time is None:
            return inf
        fast = self.fast_s
        if fast == inf and self.config.decode_slowdown is None:
            return inf
        alone = self.seconds(meter.decodes, meter.context)
        if alone >= fast:
            fast = LOST * alone
        if self.config.decode_slowdown is None:
            return fast
        slow = min(fast, self.config.decode_slowdown * alone)
        if slow < fast and self._is_late(meter, slow, fast):
            return fast
        return slow

    @property
    def fast_s(self) -> float:
        """Of a step that is hurried. Who says how much decodes may be slowed down, and not how long
        a step may be, still has a target for them.
        """
        limit = self.config.max_step_ms
        if limit is None and self.config.decode_slowdown is not None:
            limit = self.settings.slo.tpot_ms
        return inf if limit is None else limit / 1000

    def _is_late(self, meter: Meter, slow: float, fast: float) -> bool:
        """Would a prompt be late at the slow pace that is not at the fast one? Or are several late
        either way? Then all that counts is how soon the work is done. One that is late either way
        is not hurried: everybody else would pay for what it does not get.
        """
        at_slow = at_fast = 0.0
        ahead = late = 0
        for request in islice(meter.pending, LOOK_AHEAD):
            ahead += request.wanted - request.computed
            if request.due == inf:
                continue
            if not at_slow:
                at_slow = self.rate(meter.decodes, meter.context, slow)
                at_fast = self.rate(meter.decodes, meter.context, fast)
            if meter.now + HASTE * ahead / at_slow > request.due:
                late += 1
                if late > 1 or meter.now + ahead / at_fast <= request.due:
                    return True
        return False

    def rate(self, decodes: int, context: float, limit: float) -> float:
        """Prompt tokens a second beside these decodes, in steps of at most so many seconds.

        It changes slowly, so all are rounded (decodes to 8, the others to some percent) and what
        comes of them is remembered; who asks first makes no difference.
        """
        if self.step_time is None:
            return inf
        factor = self.mixed.factor
        key = (
            decodes if decodes < 16 else decodes // 8 * 8 + 4,
            round(4 * log(context + 1)),
            round(50 * log(limit / factor)) if decodes and limit < inf else None,
        )
        if key not in self._chunks:
            if len(self._chunks) > 1000:
                self._chunks.clear()
            self._chunks[key] = self._chunk(*key)
        tokens, seconds = self._chunks[key]
        return tokens / (factor * seconds)

    def _chunk(self, decodes: int, context: int, limit: int | None) -> tuple[int, float]:
        """Tokens and seconds of a step, as an uncorrected model has it; both rounded logarithms."""
        plain = Pace(self.settings)
        meter = plain.meter(0.0, decodes, exp(context / 4))
        meter.limit = inf if limit is None else exp(limit / 50)
        tokens = max(1, meter.allow(0, meter.tokens))
        return tokens, plain.seconds(decodes, meter.context, [(tokens, 0)])
