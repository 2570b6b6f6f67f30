"""Who runs when: the scheduler's group of the configuration."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from servekit.config.base import Count, CountOrZero, FloatOrZero, Group, PositiveFloat

Order = Literal[
    "fcfs", "priority", "shortest_prefill", "longest_prefix", "deadline", "fair", "two_pool"
]


class SchedulerConfig(Group):
    policy: Literal["continuous", "static"] = Field(
        description="continuous: requests join and leave at every step; "
        "static: a batch runs to its end before the next is admitted"
    )
    order: Order = Field(
        description="who is seated first. fcfs: first come; priority: lower priority number, which "
        "may also take the seat of a running higher one; shortest_prefill: fewest prompt tokens to "
        "compute; longest_prefix: most tokens found in the cache; deadline: least time left to "
        "slo.ttft_ms; fair: the tenant served least by its weight; two_pool: interactive requests "
        "before those of class batch, which keep batch_share of the seats"
    )
    reserve: Literal["predicted", "worst_case", "greedy"] = Field(
        description="KV blocks that must be free for a new request, its own aside. predicted: what "
        "all running ones are expected to need; worst_case: their max_tokens; greedy: none"
    )
    reserve_quantile: Annotated[float, Field(ge=0.5, le=0.9999)] = Field(
        description="how sure predicted wants to be that blocks suffice"
    )
    max_num_seqs: Count = Field(description="requests that run at once")
    max_num_batched_tokens: Count = Field(description="tokens computed in one step, at most")
    max_step_ms: PositiveFloat | None = Field(
        description="while requests decode, a step takes prompt tokens for so long at most, by the "
        "step-time model; null: as many as max_num_batched_tokens allows, or with decode_slowdown "
        "as fit into slo.tpot_ms"
    )
    decode_slowdown: Annotated[float, Field(ge=1.01, le=1000)] | None = Field(
        description="a step with prompt tokens takes at most so many times one without, as long as "
        "no prompt would be late for slo.ttft_ms; null: max_step_ms alone decides"
    )
    max_num_waiting: Count = Field(description="requests that may wait; more are refused with 429")
    max_waiting_tokens: Count | None = Field(
        description="prompt tokens that may wait to be computed; more are refused with 429; null: "
        "any number"
    )
    max_wait_s: PositiveFloat | None = Field(
        description="a request that is predicted to wait longer for its first token is refused "
        "with 429; null: none is"
    )
    max_skip_ahead: CountOrZero = Field(
        description="waiting requests that are looked at past the first one that does not fit"
    )
    aging_s: PositiveFloat = Field(
        description="who waits so long is passed by nobody any more; it makes up for a thousand "
        "prompt tokens, and in one turn of eight for a priority number or a missed target"
    )
    takeovers_per_s: FloatOrZero = Field(
        description="seats that waiting requests of lower priority number may take from running "
        "ones of higher, a second"
    )
    victim: Literal["cheapest", "last_arrived"] = Field(
        description="who gives blocks back when there are none. cheapest: least to compute again "
        "for each block freed"
    )
    max_preemptions: CountOrZero = Field(
        description="times that one request is preempted, while another could be instead"
    )
    batch_share: Annotated[float, Field(ge=0, le=1)] = Field(
        description="with order two_pool: share of the seats and of a step's prompt tokens that "
        "requests of class batch get while interactive ones wait"
    )
    tenant_weights: dict[str, PositiveFloat] = Field(
        description="with order fair: share of each tenant against 1 of those not named; the name "
        "of a tenant is the one that server.api_keys gives it; on a server without keys, the first "
        "16 hexadecimal digits of the SHA-256 of the key that is sent"
    )

    @model_validator(mode="after")
    def _budget(self) -> Self:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) is less than max_num_seqs "
                f"({self.max_num_seqs}): a step could not give every running request its one token"
            )
        return self
