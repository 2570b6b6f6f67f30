"""The declared workload as one copy of the model sees it."""

import math
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from servekit.config.schema import Config
from servekit.config.targets import WorkloadConfig
from servekit.planner.prediction.queueing import lognormal_points, lognormal_quantile
from servekit.spec.kv import KvLayout
from servekit.workload.moments import Moments, moments


@dataclass(frozen=True)  # without slots, so that means are worked out once
class Traffic:
    """Requests of one copy; lengths in tokens, log-normal, prompt and answer independent.

    `limit` is the longest request that is served, prompt and answer: longer ones are refused, so
    no length counts for more. `prefix` is what a prompt finds in the cache.
    """

    rate: float
    arrival_cv: float
    prompt: float
    prompt_cv: float
    output: float
    output_cv: float
    prefix: float
    limit: int

    def prompt_quantile(self, probability: float) -> float:
        """Tokens of a prompt, those in the cache too."""
        quantile = lognormal_quantile(self.prompt, self.prompt_cv, probability)
        return min(max(1.0, quantile), self.longest_prompt)

    @cached_property
    def longest_prompt(self) -> float:
        return max(1.0, self.limit - 1.0)

    def cached(self, prompt: float) -> float:
        """Tokens of such a prompt that are not computed again; its last one always is."""
        return max(0.0, min(self.prefix, prompt - 1))

    @cached_property
    def prompts(self) -> tuple[tuple[float, float], ...]:
        """(tokens, weight) of a few prompts that stand for all."""
        points = lognormal_points(self.prompt, self.prompt_cv)
        return tuple((min(max(1.0, v), self.longest_prompt), w) for v, w in points)

    @cached_property
    def new_tokens(self) -> float:
        """Tokens of a prompt that must be computed, on average."""
        return sum(w * (v - self.cached(v)) for v, w in self.prompts)

    @cached_property
    def new_cv(self) -> float:
        """Spread of the tokens that must be computed, over their mean."""
        mean = self.new_tokens
        second = sum(w * (v - self.cached(v)) ** 2 for v, w in self.prompts)
        return math.sqrt(max(0.0, second / mean**2 - 1))

    @cached_property
    def depth(self) -> float:
        """Tokens before a prompt token that is computed, on average over all of them."""
        pairs = sum(w * (v**2 - self.cached(v) ** 2) / 2 for v, w in self.prompts)
        return pairs / self.new_tokens

    @cached_property
    def context(self) -> float:
        """Mean context of a token that is being decoded.

        A request is met in proportion to how long it runs, so the tokens already written are
        E[n^2] / 2 E[n], as the age in a renewal process, not half the mean.
        """
        written = self.output * (1 + self.output_cv**2) / 2
        return min(self.prompt + written, float(self.limit))

    @cached_property
    def request(self) -> int:
        """Tokens that a request of mean lengths holds at its end."""
        return max(1, min(math.ceil(self.prompt + self.output), self.limit))

    @cached_property
    def unevenness(self) -> float:
        """Mean square of the tokens that requests hold over the square of their mean, at least 1.

        What a cache has room for varies as much more than a count of equal requests would.
        """
        spread = math.hypot(self.prompt * self.prompt_cv, self.output * self.output_cv)
        return 1 + (spread / (self.prompt + self.output)) ** 2

    def answer_at(self, deviations: float) -> float:
        """Tokens of an answer that is so many standard deviations from the median one."""
        sigma = math.sqrt(math.log1p(self.output_cv**2))
        tokens = self.output * math.exp(sigma * (deviations - sigma / 2))
        return min(max(1.0, tokens), float(self.limit))

    def longest_of(self, requests: float) -> float:
        """Tokens of the longest answer among so many, about: its median quantile."""
        probability = requests / (requests + 1)
        quantile = lognormal_quantile(self.output, self.output_cv, probability)
        return max(self.output, min(quantile, float(self.limit)))


def traffic(config: Config, layout: KvLayout) -> Traffic:
    """A share of the declared workload, as a router that deals requests at random hands it out.

    Dealing at random thins the arrivals: their squared spread comes nearer to the 1 of Poisson.
    Of what prompts repeat, full blocks count, and only where kv.prefix_caching is on: the hits of
    a cache that forgets nothing. Raises ConfigError where the workload's trace cannot be read.
    """
    work, data = moments_of(config.workload), config.parallelism.data
    limit = min(config.model.max_model_len, layout.longest_request)
    full_blocks = work.repeated // layout.block_size * layout.block_size
    return Traffic(
        rate=work.rate / data,
        arrival_cv=math.sqrt(max(0.0, 1 + (work.arrival_cv**2 - 1) / data)),
        prompt=min(work.prompt, max(1.0, limit - 1.0)),
        prompt_cv=work.prompt_cv,
        output=min(work.output, max(1.0, float(limit))),
        output_cv=work.output_cv,
        prefix=full_blocks if config.kv.prefix_caching else 0.0,
        limit=limit,
    )


def moments_of(work: WorkloadConfig) -> Moments:
    """Means and spreads; those of a trace, which take a moment, are worked out once."""
    return moments(work) if work.trace is None else _of_trace(_Work(work.model_dump_json(), work))


@dataclass(frozen=True, slots=True)
class _Work:
    """A workload that can be looked up: by what it says."""

    key: str
    config: WorkloadConfig = field(compare=False)


@lru_cache(maxsize=8)
def _of_trace(work: _Work) -> Moments:
    return moments(work.config)
