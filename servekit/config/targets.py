"""What a deployment is planned for: traffic, promises, guesses ahead, and what a site measured."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from servekit.config.base import Count, CountOrZero, GibOrZero, Group, PositiveFloat, Spread


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


class WorkloadConfig(Group):
    """The traffic that is planned for; lengths are log-normal with these means."""

    request_rate: PositiveFloat = Field(description="requests a second, over all copies")
    arrival_cv: Spread = Field(
        description="spread of the times between requests over their mean; 1: Poisson"
    )
    prompt_tokens: Count = Field(description="tokens of a prompt, on average")
    prompt_cv: Spread = Field(description="its spread over its mean")
    output_tokens: Count = Field(description="tokens of an answer, on average")
    output_cv: Spread = Field(description="its spread over its mean")
    shared_prefix_tokens: CountOrZero = Field(
        description="tokens at the start of every prompt that are the same"
    )

    @model_validator(mode="after")
    def _prefix(self) -> Self:
        if self.shared_prefix_tokens >= self.prompt_tokens:
            raise ValueError(
                f"shared_prefix_tokens ({self.shared_prefix_tokens}) must be less than "
                f"prompt_tokens ({self.prompt_tokens})"
            )
        return self


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
