"""What a simulation saw, and what is said about it. Times are seconds since its start."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from servekit.config.schema import Config
from servekit.simulator.columns import Gaps, Lookups, Seats, Steps

End = Literal["finished", "refused", "left", "unfinished"]
"""`left`: the client had no first token within its patience; `unfinished`: the run ended first."""


class Served(NamedTuple):
    """What became of one request. `output_tokens` it got, of `asked_tokens`."""

    at: float
    prompt_tokens: int
    output_tokens: int
    asked_tokens: int
    tenant: str
    priority: int
    slo_class: str
    copy: int
    """Of the model, that the router chose."""
    end: End
    admitted_at: float | None = None
    first_token_at: float | None = None
    finished_at: float | None = None
    cached_tokens: int = 0
    preemptions: int = 0
    code: str = ""
    """Of the error it was refused with."""
    retry_after_s: float | None = None

    @property
    def ttft_s(self) -> float | None:
        """Time to first token."""
        return None if self.first_token_at is None else self.first_token_at - self.at

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first; None if there was no second."""
        if self.first_token_at is None or self.finished_at is None or self.output_tokens < 2:
            return None
        return (self.finished_at - self.first_token_at) / (self.output_tokens - 1)

    @property
    def e2e_s(self) -> float | None:
        """From arrival to the last token."""
        return self.finished_at - self.at if self.end == "finished" and self.finished_at else None

    @property
    def queue_s(self) -> float | None:
        """From arrival to a seat."""
        return None if self.admitted_at is None else self.admitted_at - self.at


@dataclass(slots=True)
class CopyRecord:
    """Of one copy of the model. Totals are of the whole run."""

    steps: Steps
    gaps: Gaps
    blocks_total: int
    prefix_query_tokens: int = 0
    prefix_hit_tokens: int = 0
    wasted_tokens: int = 0
    """Computed once and, after a preemption, again."""
    padding_tokens: int = 0
    """Rows that fill a batch up to the size of a captured graph."""
    swaps: int = 0
    """Preempted requests whose blocks went to host memory."""
    accepted_drafts: int = 0
    drafts: int = 0
    misses: dict[str, int] = field(default_factory=dict)
    """Prompt tokens that were not found in the prefix cache, by why."""
    lookups: Lookups = field(default_factory=Lookups)


@dataclass(slots=True)
class Run:
    """One simulated run: a configuration and a seed."""

    config: Config
    seed: int
    served: list[Served]
    """In order of arrival."""
    copies: list[CopyRecord]
    seats: Seats
    seconds: float
    """Simulated, from 0 to the last event."""
    wall_s: float
    """That the simulation took."""
    times: str = ""
    """Where the seconds of a step come from, for a page."""
    cut: int = 0
    """Requests that were shortened to what the model holds."""


class Estimate(NamedTuple):
    """A number and its 95 % confidence interval; `low` and `high` are NaN where too little was
    seen to give one.
    """

    value: float
    low: float
    high: float


class Latency(NamedTuple):
    """Seconds. `n` requests (or gaps) in all seeds together."""

    mean: Estimate
    p50: Estimate
    p95: Estimate
    p99: Estimate
    n: int


class Target(NamedTuple):
    """One target of the slo, and what the requests that were not refused got."""

    name: Literal["ttft", "tpot"]
    target_s: float
    percentile: float
    value: Estimate
    """Seconds at this percentile."""
    n: int
    """Requests that it is for, in all seeds together."""
    late: int
    """Of those, over the target."""


class Tenant(NamedTuple):
    name: str
    weight: float
    output_tokens_per_s: float
    """Those of all tenants add up to the report's."""
    served_per_s: float
    """Prompt and output tokens of what was served, a second."""
    p95_ttft_s: float
    requests: int


class Class(NamedTuple):
    """Requests of one priority and SLO class, in all seeds together."""

    priority: int
    slo_class: str
    requests: int
    finished: int
    refused: int
    left: int
    queue: Latency
    ttft: Latency


@dataclass(frozen=True, slots=True)
class Series:
    """The first seed over time, in equal intervals; means over each, of all copies together."""

    at: tuple[float, ...]
    """Where an interval ends."""
    running: tuple[float, ...]
    waiting: tuple[float, ...]
    kv_share: tuple[float, ...]
    """Of the blocks, held by somebody."""
    batch_tokens: tuple[float, ...]
    """Of a step."""
    output_tokens_per_s: tuple[float, ...]
    goodput_per_s: tuple[float, ...]
    """By when a request ended."""


@dataclass(frozen=True, slots=True)
class Report:
    """Several seeds of one configuration, in plain numbers. Shares are of 1.

    All but `counts` leaves out what began while the system warmed up. Estimates are means over
    seeds. Rates are of the whole deployment, all copies together.
    """

    name: str
    seeds: tuple[int, ...]
    requests: int
    """A seed."""
    simulated_s: float
    """A seed, on average."""
    wall_s: float
    """All seeds together."""
    warm_up_s: float
    """Cut off at the start (MSER-5), on average."""

    ttft: Latency
    tpot: Latency
    itl: Latency
    e2e: Latency
    queue: Latency

    targets: tuple[Target, ...]
    """Of the slo, those that are set."""

    offered_per_s: Estimate
    """Requests that came."""
    served_per_s: Estimate
    """Requests that finished."""
    refused_per_s: Estimate
    left_per_s: Estimate
    output_tokens_per_s: Estimate
    total_tokens_per_s: Estimate
    """Prompt and output tokens of what was served."""
    goodput_per_s: Estimate
    """Requests within slo.ttft_ms and slo.tpot_ms; without targets, all that finished."""
    goodput_share: Estimate
    """Of those that came."""
    attained_share: Estimate
    """Within the targets, of those that were not refused."""
    refused_share: Estimate
    """Of those that came."""
    left_share: Estimate

    kv_mean_share: Estimate
    kv_max_share: float
    hit_share: Estimate
    """Prompt tokens found in the prefix cache, of all."""
    misses: Mapping[str, float]
    """Share of prompt tokens not found, by why."""
    running: Estimate
    """Requests with a seat, of all copies, on average over time."""
    waiting: Estimate
    batch_tokens: Estimate
    """Of a step, on average over steps."""
    batch_decodes: Estimate
    step_s: Estimate
    """Seconds of a step, on average over steps."""
    busy_share: Estimate
    """Of the time, some step was under way."""
    empty_seat_share: Estimate
    """Of max_num_seqs, on average over the time in which some step was under way."""
    idle_seat_share: Estimate
    """The same, where only seats count that are empty while somebody waits."""
    padding_share: Estimate
    """Rows that only fill a graph, of all rows of tokens."""

    preempted_share: Estimate
    """Requests that were preempted, of those seated."""
    wasted_share: Estimate
    """Tokens computed again, of all computed."""
    preemptions: int
    """All seeds together, the warm-up too; of these `swaps` to host memory."""
    swaps: int
    preempted_tokens: float
    """That were computed of a request when it was preempted and not swapped, on average."""
    fairness: Estimate | None
    """Most over least that tenants were served, each over its weight; None with one tenant."""
    tenants: tuple[Tenant, ...]
    classes: tuple[Class, ...]
    """One or more, those that go first first."""

    saturated: bool
    """The queue grew, on balance: no rate of the run would go on for ever."""
    queue_growth_per_s: Estimate
    """Requests that wait, more each second."""

    counts: Mapping[str, int]
    """Requests by how they ended, all seeds: finished, refused, left, unfinished."""
    refused: Mapping[str, int]
    """By code of the error."""
    retry_after_s: float | None
    """Median of what the refused were told."""
    series: Series
    times: str = ""
    """Where the seconds of a step come from, for a page."""
    cut: int = 0
    """Requests that were shortened to what the model holds."""
    alike: int = 0
    """Further seeds that changed nothing, as of a replayed trace; they count nowhere."""


class Difference(NamedTuple):
    """Of one number of a report from the first one's, seed by seed."""

    key: str
    estimate: Estimate
    relative: float
    is_clear: bool
    """The interval leaves 0 out."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The same arrivals through several configurations, common random numbers."""

    key: str
    """What varies, such as `scheduler`."""
    names: tuple[str, ...]
    reports: tuple[Report, ...]
    differences: tuple[tuple[Difference, ...], ...]
    """Of each report from the first; the first has none."""
    highest: Mapping[str, str]
    """Who is clearly above every other in a number, by the number."""
    lowest: Mapping[str, str]
    runs: tuple[Run, ...]
    """Of the first seed, for pictures."""
