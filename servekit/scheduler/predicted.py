"""Blocks that are kept free by what is expected of those that run."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from math import ceil, sqrt
from operator import add, sub
from statistics import NormalDist

from servekit.scheduler.kv import KvBlocks
from servekit.scheduler.lengths import OutputLengths
from servekit.scheduler.parts import POINTS, Part, added, part_of
from servekit.scheduler.request import Request
from servekit.scheduler.reserve import Greedy, Reserve, WorstCase, needs
from servekit.scheduler.settings import Settings
from servekit.scheduler.survival import Odds, Survival, bucket_of

KEEP_STEPS, KEEP_STEPS_TIGHT = 128, 16
"""So long a prediction for those that run is good for, where blocks are many and where they are
few; who comes and goes is counted at once."""
DOUBTED = 0.5
"""Of the sum of standard errors: those of requests of different ages have little in common, those
of others all."""
BUDGET = 0.005
"""Of requests, that may be preempted."""
WARIER, WARIEST = 0.2, 3.0
"""Sigmas that are kept free for each that was, and for all together at most."""
MAX_ODDS = 1000
"""Kept at once."""
NORMAL = NormalDist()


class Predicted(Greedy):
    """What all are expected to take at the worst time to come, at a quantile.

    At a time t ahead a request that now has c tokens holds the blocks of c + t with the
    probability p that it has not ended by then, and none otherwise. Of independent requests the
    means p·b and the variances p(1-p)·b² add up, and the sum is near a normal one; nor can it be
    more than if nobody ended. The largest sum over t is what must be free: blocks that are given
    back before it count, those given back after it do not (Gong et al. 2025, with distributions
    instead of their point predictions). Time is counted in tokens of one request.

    Close times are many: in the life of a request blocks may run short in some step of many, at a
    time t ahead in about mean length / t of them. So they are held to a quantile as much stricter.

    And p is an estimate, which is off by as much for all requests of a kind: while few answers are
    known that is most of the error, and it does not average out. Its standard errors are added up.

    Where there is room for everybody at its longest, nothing is kept free, nor worked out.

    What is wrong with all that is seen in the end: with each request that is preempted a little
    more is kept free, and with each that ends a little less, so that in the long run as many are
    as `BUDGET` says, or fewer (Gibbs and Candes 2021).
    """

    def __init__(self, settings: Settings, lengths: OutputLengths) -> None:
        super().__init__(settings, lengths)
        self.lengths = lengths
        self.longest = settings.max_model_len
        self.risk = 1.0 - settings.scheduler.reserve_quantile
        self.points: list[int] = []
        self.quantiles: list[float] = []
        self.sigmas: list[float] = []
        """At each point: of the quantile, and those that are kept free."""
        self.sums = added([])
        self.parts: dict[int, Part] = {}
        """Of those that run."""
        self.asking: dict[int, Part] = {}
        """Of those that would."""
        self.worst: dict[int, int] = {}
        """What is to be free for each of them, as long as nobody comes or goes."""
        self.odds: dict[tuple[int, int], tuple[Survival, Odds]] = {}
        """Of living to each point, of requests of a class that are about as far. The survival of
        the class is kept, or another might come to have its id.
        """
        self.wary = 0.0
        """Sigmas more, for of late somebody was preempted."""
        self.ends = 0
        """Requests that had ended when that was counted."""
        self.since = 0
        """The step at which all that was made."""
        self.refreshes = 0
        """Of `lengths`, by then."""
        self.own_share = 1.0
        """Of the blocks that requests hold, those that are free when they end; the others are
        shared."""

    def blocks(self, request: Request, running: Sequence[Request], kv: KvBlocks, step: int) -> int:
        if (len(running) + 1) * kv.blocks_for(self.longest, filling=True) <= kv.num_free:
            self._forget()
            return 0
        ahead = request.limit - len(request.tokens)
        tight = kv.num_free < 2 * self.last + kv.settings.num_blocks // 16
        stale = not 0 <= step - self.since < (KEEP_STEPS_TIGHT if tight else KEEP_STEPS)
        lengths = self.lengths
        news = lengths.is_due(step) or lengths.refreshes != self.refreshes
        unfit = not self.points or self.points[-1] < ahead or len(self.parts) != len(running)
        if stale or news or unfit:
            self.since = step
            self._refresh(request, running, kv)
        worst = self.worst.get(request.id)
        if worst is None:
            part = self.asking.get(request.id)
            if part is None:
                part = self.asking[request.id] = self._part(request, at_once=True)
            worst = self.worst[request.id] = self._worst(part)
        self.last = worst
        return worst

    def _forget(self) -> None:
        self.last = 0
        self.points.clear()
        self.parts.clear()

    def seated(self, request: Request) -> None:
        if not self.points:
            return
        part, tokens = self.asking.pop(request.id, None), len(request.tokens)
        decodes = tokens > len(request.prompt)
        if part is None or decodes or self.need(tokens + 1) > self.need(tokens):
            part = self._part(request)
        self.parts[request.id] = part
        self._count(part, add)

    def left(self, request: Request) -> None:
        part = self.parts.pop(request.id, None)
        if part is not None:
            self._count(part, sub)
        self.asking.pop(request.id, None)

    def failed(self) -> None:
        self.wary = min(WARIEST, self.wary + WARIER)
        self.sigmas = self._sigmas()
        self.worst.clear()

    def _sigmas(self) -> list[float]:
        ended = self.lengths.ends - self.ends
        self.ends += ended
        self.wary = max(0.0, self.wary - ended * BUDGET * WARIER)
        return [each + self.wary for each in self.quantiles]

    def _count(self, part: Part, change: Callable[[float, float], float]) -> None:
        self.worst.clear()
        pairs = zip(self.sums, part, strict=True)
        self.sums = Part(*(list(map(change, all, one)) for all, one in pairs))

    def _refresh(self, request: Request, running: Sequence[Request], kv: KvBlocks) -> None:
        self.need = needs(kv)
        self.lengths.refresh(running, self.since)
        self.unsure = self.lengths.unsure
        longest = max([one.limit - len(one.tokens) for one in (request, *running)])
        self._look(1 << (longest + 2).bit_length())
        mean = self.lengths.survival(request).remaining(0, self.points[-1])
        self.quantiles = [
            NORMAL.inv_cdf(1.0 - self.risk * min(1.0, point / mean)) for point in self.points
        ]
        self.sigmas = self._sigmas()
        in_tables = sum([self.need(len(one.tokens)) for one in running])
        in_use = kv.settings.num_blocks - 1 - kv.num_free
        self.own_share = min(1.0, in_use / in_tables) if in_tables else 1.0
        self.asking.clear()
        self.worst.clear()
        self.parts = {one.id: self._part(one) for one in running}
        self.sums = added(list(self.parts.values()))

    def _look(self, longest: int) -> None:
        """So many tokens ahead; odds are kept as long as they are of the same times and lengths."""
        refreshes = self.lengths.refreshes
        if self.points and self.points[-1] == longest and self.refreshes == refreshes:
            return
        self.refreshes = refreshes
        self.odds.clear()
        ratio = (longest / 2) ** (1 / (POINTS - 1))
        self.points = [round(2 * ratio**index) for index in range(POINTS)]

    def _odds(self, request: Request, done: int) -> Odds:
        survival, bucket = self.lengths.survival(request), bucket_of(done)
        key = (id(survival), bucket)
        known = self.odds.get(key)
        if known is None:
            if len(self.odds) >= MAX_ODDS:
                self.odds.clear()
            known = self.odds[key] = survival, survival.odds(bucket, self.points)
        return known[1]

    def _part(self, request: Request, *, at_once: bool = False) -> Part:
        """`at_once`: the first of what it will hold is that which its seat takes."""
        tokens, last, need = len(request.tokens), request.limit - 1, self.need
        done = tokens - len(request.prompt)
        odds, off = self._odds(request, done)
        # the newest token has a block only once it is in a step, but a prompt has all its own
        held = need(tokens + 1 if at_once else tokens - 1 if done else tokens)
        own = self.own_share * held
        # who reaches max_tokens between two points is taken to do so at the later one
        alive = min(POINTS, bisect_left(self.points, last - tokens) + 1)
        most = [need(tokens + point) for point in self.points[: alive - 1]]
        most.append(need(min(tokens + self.points[alive - 1], last)))
        return part_of(most, held, own, odds, off)

    def _worst(self, part: Part) -> int:
        """Blocks that those that run and this one take by the worst time."""
        worst = 0.0
        growth, spread, doubt, most = self.sums
        for index, sigmas in enumerate(self.sigmas):
            wrong = DOUBTED * (doubt[index] + part.doubt[index])
            # a sum that was taken apart may come out just below 0
            sigma = sqrt(max(0.0, spread[index] + part.spread[index]) + wrong * wrong)
            likely = growth[index] + part.growth[index] + sigmas * sigma
            worst = max(worst, min(likely, most[index] + part.most[index]))
        return ceil(worst - 1e-6)


RESERVES: dict[str, Callable[[Settings, OutputLengths], Reserve]] = {
    "greedy": Greedy,
    "worst_case": WorstCase,
    "predicted": Predicted,
}
"""`scheduler.reserve` in the configuration picks a row."""
