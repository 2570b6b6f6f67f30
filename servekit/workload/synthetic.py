"""Traces that come with servekit: drawn to have the moments that were published of real ones.

No request of a real trace is in them. What is fitted, `SYNTHETIC` says; what it does not say is
plain: lengths are independent of each other and of the times, and gaps between requests of each
other. Draws are stratified: there are as many long and short ones as the distribution says, and
only their order is random. So the moments of a trace are those it was fitted to.
"""

import math
from array import array
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, count
from random import Random
from statistics import NormalDist

from servekit.workload.draws import Zipf
from servekit.workload.trace import Trace

_NORMAL = NormalDist()
LIVE = 64
"""Conversations of which a request may be the next turn."""


@dataclass(frozen=True, slots=True)
class Known:
    """Lengths of which some quantiles are known: log-normal between two of them and above.

    `quantiles` are (share of requests that are not longer, tokens), upwards. Below the first the
    logarithm falls by `below` for each standard deviation, which is chosen so that the mean is met.
    """

    quantiles: tuple[tuple[float, int], ...]
    below: float
    longest: int

    def stratified(self, number: int) -> Iterator[int]:
        known = [(_NORMAL.inv_cdf(share), math.log(value)) for share, value in self.quantiles]
        above = 0
        for draw in strata(number):
            z = _NORMAL.inv_cdf(draw)
            while above < len(known) - 1 and z > known[above][0]:
                above += 1
            at, value = known[max(0, above - 1)]
            slope = self.below
            if above:
                slope = (known[above][1] - value) / (known[above][0] - at)
            yield min(self.longest, max(1, round(math.exp(value + slope * (z - at)))))


def lognormal(mean: float, cv: float, longest: int) -> Known:
    """Of which only a mean and a spread over it are known."""
    sigma = math.sqrt(math.log1p(cv * cv))
    median = mean * math.exp(-sigma * sigma / 2)
    return Known(((0.5, round(median)),), below=sigma, longest=longest)


@dataclass(frozen=True, slots=True)
class Shared:
    """What prompts have in common, in blocks: all begin with one of `starts` starts (Zipf) of
    `start_blocks`, and a share of them, `later_turns`, goes on from an earlier prompt.
    """

    block_size: int
    starts: int
    start_blocks: int
    later_turns: float


@dataclass(frozen=True, slots=True)
class Published:
    """A trace as it is described: how many requests in which time, how bursty, how long."""

    about: str
    requests: int
    seconds: float
    arrival_cv: float
    prompt: Known
    output: Known
    shared: Shared | None = None


SYNTHETIC = {
    "azure_conv": Published(
        about="chat of Azure LLM 2023: 19,366 requests in 3,502 s, prompts of 1155 tokens on "
        "average and answers of 211",
        requests=19_366,
        seconds=3502,
        arrival_cv=1.09,
        prompt=Known(((0.5, 1020), (0.9, 2735), (0.99, 4142)), below=2.03, longest=14_050),
        output=Known(((0.5, 129), (0.75, 395), (0.9, 424), (0.99, 601)), below=0.62, longest=1000),
    ),
    "azure_code": Published(
        about="completions of Azure LLM 2023: 8,819 requests in 3,432 s and in bursts, prompts "
        "of 2048 tokens on average and answers of 28",
        requests=8819,
        seconds=3432,
        arrival_cv=13.2,
        prompt=Known(((0.5, 1469), (0.9, 5194), (0.99, 7436)), below=1.15, longest=7437),
        output=Known(((0.5, 13), (0.9, 55), (0.99, 252)), below=0.9, longest=1900),
    ),
    "burstgpt": Published(
        about="in the manner of BurstGPT: bursts, short prompts and short answers, both of wide "
        "spread; its lengths are rounded guesses",
        requests=20_000,
        seconds=20_000,
        arrival_cv=3.0,
        prompt=lognormal(620, 1.2, longest=31_400),
        output=lognormal(250, 1.0, longest=12_500),
    ),
    "mooncake_conv": Published(
        about="conversations of Mooncake: 12,031 requests in an hour, prompts of 12,035 tokens on "
        "average and answers of 343, of prompt blocks 37 % seen before",
        requests=12_031,
        seconds=3600,
        arrival_cv=1.0,
        prompt=Known(((0.5, 6909), (0.99, 85_401)), below=1.27, longest=126_000),
        output=lognormal(343, 0.75, longest=2000),
        shared=Shared(block_size=512, starts=1, start_blocks=1, later_turns=0.395),
    ),
    "mooncake_toolagent": Published(
        about="tools of Mooncake: 23,608 requests in an hour, prompts of 8,596 tokens on average "
        "and answers of 182, of prompt blocks 59 % seen before",
        requests=23_608,
        seconds=3600,
        arrival_cv=1.0,
        prompt=lognormal(8596, 0.9, longest=126_000),
        output=lognormal(182, 1.2, longest=2000),
        shared=Shared(block_size=512, starts=40, start_blocks=12, later_turns=0.14),
    ),
}
"""Azure, Mooncake conversations: computed of the public files. Mooncake tools: as in its paper
(Qin and others, FAST 2025), the spreads assumed. Numbers of a file nobody says are rounded."""


@cache
def synthetic(name: str) -> Trace:
    """The same for a name, always."""
    published = SYNTHETIC[name]
    number, random = published.requests, Random(name)
    prompts, outputs = (
        [*published.prompt.stratified(number)],
        [*published.output.stratified(number)],
    )
    random.shuffle(prompts)
    random.shuffle(outputs)
    gaps = stratified_gaps(number - 1, published.arrival_cv)
    random.shuffle(gaps)
    scale = published.seconds / sum(gaps)
    shared = published.shared
    return Trace(
        name=name,
        prompt_tokens=array("q", prompts),
        output_tokens=array("q", outputs),
        at=array("d", accumulate((gap * scale for gap in gaps), initial=0.0)),
        sessions=array("q"),
        blocks=grown_blocks(prompts, shared, random) if shared else [],
        block_size=shared.block_size if shared else 0,
        tenants=[],
        priorities=[],
        slo_classes=[],
    )


def strata(number: int) -> Iterator[float]:
    """The middles of so many equal parts of 0 to 1."""
    return ((index + 0.5) / number for index in range(number))


def stratified_gaps(number: int, cv: float) -> list[float]:
    """Of two exponential kinds, of which each takes half of the time (hyperexponential with
    balanced means); one kind, Poisson, for a `cv` of 1. At least 1.
    """
    many = (1 + math.sqrt((cv**2 - 1) / (cv**2 + 1))) / 2
    often = round(number * many)
    kinds = [(often, 1 / many)] + ([(number - often, 1 / (1 - many))] if often < number else [])
    return [-mean * math.log1p(-draw) for size, mean in kinds for draw in strata(size)]


def grown_blocks(prompts: list[int], shared: Shared, random: Random) -> list[tuple[int, ...]]:
    """Of each prompt, in order of time: a start, an earlier prompt's blocks or none, and new ones.

    A later turn goes on from the longest of the last `LIVE` conversations that is not longer. The
    last block of a prompt is never shared: what is not full is written on.
    """
    fresh = count()
    zipf = Zipf(shared.starts)
    starts = [[next(fresh) for _ in range(shared.start_blocks)] for _ in range(shared.starts)]
    live: deque[list[int]] = deque(maxlen=LIVE)
    found = []
    for tokens in prompts:
        size = -(-tokens // shared.block_size)
        before = starts[zipf.of(random.random())]
        if random.random() < shared.later_turns:
            earlier = [blocks for blocks in live if len(blocks) <= size]
            if earlier:
                turn = max(earlier, key=len)
                live.remove(turn)
                before = turn[:-1]
        kept = before[: size - 1]
        blocks = kept + [next(fresh) for _ in range(size - len(kept))]
        live.append(blocks)
        found.append(tuple(blocks))
    return found
