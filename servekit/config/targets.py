"""What a deployment is planned for: traffic, promises, guesses ahead, and what a site measured."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from servekit.config.base import (
    Count,
    CountOrZero,
    FloatOrZero,
    GibOrZero,
    Group,
    PositiveFloat,
    Spread,
)


class SpeculativeConfig(Group):
    method: Literal["none", "ngram", "draft", "mtp"] = Field(
        description="who guesses tokens ahead: earlier text, a small model, or the model's own "
        "extra layers"
    )
    tokens: Annotated[int, Field(ge=0, le=100)] = Field(
        description="tokens guessed before each step"
    )
    acceptance: Annotated[float, Field(ge=0, le=1)] = Field(
        description="share of guesses that hold, each given those before it"
    )
    draft_parameters: Count | None = Field(description="of the small model; null: method is other")
    draft_kv_bytes_per_token: Count | None = Field(
        description="keys and values of the small model, bytes; null: method is other"
    )

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if (self.method == "none") != (self.tokens == 0):
            raise ValueError("tokens is 0 with method none, and at least 1 with any other")
        draft = (self.draft_parameters, self.draft_kv_bytes_per_token)
        if any((value is not None) != (self.method == "draft") for value in draft):
            raise ValueError(
                "draft_parameters and draft_kv_bytes_per_token are for method draft, and needed "
                "there"
            )
        return self


class SloConfig(Group):
    ttft_ms: PositiveFloat | None = Field(description="time to first token; null: no target")
    tpot_ms: PositiveFloat | None = Field(
        description="time per output token after the first; null: no target"
    )
    percentile: Annotated[float, Field(ge=50, lt=100)] = Field(
        description="share of requests that must meet the targets, percent"
    )
    goodput_per_s: PositiveFloat | None = Field(
        description="requests a second within the targets; null: no target"
    )
    usd_per_million_output_tokens: PositiveFloat | None = Field(
        description="ceiling of the cost at full load; null: none"
    )
    enforce: Literal["refuse", "warn"] = Field(
        description="whether serve refuses a plan that misses a target"
    )
    admission: Literal["observe", "enforce"] = Field(
        description="enforce: a request that is predicted to miss ttft_ms is refused with 429 and "
        "told when to come again; observe: such requests are only counted"
    )


class WorkloadConfig(Group):
    """The traffic that is planned for and simulated; lengths are log-normal with these means.

    With a `trace` its times and lengths are taken instead of request_rate, arrivals and lengths.
    """

    arrivals: Literal["open", "bursts", "closed"] = Field(
        description="open: at request_rate with gaps of arrival_cv; bursts: the same, burst_size "
        "at once; closed: concurrency clients, each of which asks again once it is answered"
    )
    request_rate: PositiveFloat = Field(description="requests a second, over all copies")
    arrival_cv: Spread = Field(
        description="spread of the times between requests over their mean; 1: Poisson"
    )
    burst_size: Count = Field(description="requests that come at once, with arrivals: bursts")
    concurrency: Count = Field(description="clients, with arrivals: closed")
    prompt_tokens: Count = Field(description="tokens of a prompt, on average")
    prompt_cv: Spread = Field(description="its spread over its mean; 0: all are of one length")
    output_tokens: Count = Field(description="tokens of an answer, on average")
    output_cv: Spread = Field(description="its spread over its mean; 0: all are of one length")
    shared_prefix_tokens: CountOrZero = Field(
        description="tokens at the start of prompts that are the same"
    )
    shared_prefixes: Count = Field(
        description="different such starts; the k-th is chosen as often as 1/k (Zipf)"
    )
    turns: PositiveFloat = Field(
        description="requests of a conversation, on average; each begins with all that was said"
    )
    think_s: FloatOrZero = Field(description="from an answer to the next turn, seconds on average")
    patience_s: PositiveFloat | None = Field(
        description="clients leave when there is no first token by then; null: they stay"
    )
    batch_share: Annotated[float, Field(ge=0, le=1)] = Field(
        description="share of requests that are of class batch, which nobody waits for"
    )
    tenants: dict[str, PositiveFloat] = Field(
        description="share of requests of each tenant; none: all are of one"
    )
    priorities: dict[str, PositiveFloat] = Field(
        description="share of requests with each priority, a whole number; none: all have 0"
    )
    trace: str | None = Field(
        description="a file to replay (Azure, BurstGPT, Vidur CSV, Mooncake JSONL, ShareGPT JSON), "
        "or the name of one that comes with servekit; null: as the other keys say"
    )
    trace_speed: PositiveFloat = Field(
        description="how many times faster than recorded a trace is replayed"
    )

    @model_validator(mode="after")
    def _prefix(self) -> Self:
        if self.shared_prefix_tokens >= self.prompt_tokens:
            raise ValueError(
                f"shared_prefix_tokens ({self.shared_prefix_tokens}) must be less than "
                f"prompt_tokens ({self.prompt_tokens})"
            )
        if wrong := [name for name in self.priorities if not _is_whole(name)]:
            raise ValueError(f"priorities are whole numbers; {', '.join(wrong)} is none")
        if self.turns < 1:
            raise ValueError(f"turns ({self.turns}) is at least 1: a conversation has a request")
        return self


def _is_whole(text: str) -> bool:
    return text.removeprefix("-").isdecimal()


class Constants(Group):
    """What a start-up log of this deployment, or of one like it, measured."""

    source: str = Field(min_length=1, description="the log these were read from")
    weights_ratio: PositiveFloat | None = Field(
        description="measured weights over planned ones; null: the log does not say, or is of "
        "another model"
    )
    activations_ratio: PositiveFloat | None = Field(
        description="measured activations over planned ones; null: the log does not say"
    )
    runtime_gib: GibOrZero | None = Field(
        description="context, libraries and collectives, GiB; null: the log does not say"
    )
    graphs_gib: GibOrZero | None = Field(
        description="captured graphs, GiB; null: the log does not say, or is of another model"
    )


class CalibrationConfig(Group):
    constants: Constants | None = Field(
        description="of this site, from servekit plan --from-log; null: the model alone"
    )
