"""Parts that only some models have: latent attention, experts, states of fixed size."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from servekit.config.base import Count, CountOrZero, Dtype, Group, PositiveFloat


class Indexer(Group):
    """Chooses the tokens that latent attention reads (DeepSeek-V3.2): the best of all by one small
    key a token, which is cached too.
    """

    heads: Count = Field(description="query heads that score the keys")
    head_dim: Count = Field(description="width of a query head and of the key")
    top_k: Count = Field(description="tokens that are chosen for each query")
    layers: tuple[int, ...] = Field(
        description="indices of layers with one; the others take what the one before them chose"
    )


class Mla(Group):
    """Multi-head latent attention: one latent vector a token stands for all keys and values."""

    kv_lora_rank: Count = Field(description="width of the latent vector")
    q_lora_rank: Count | None = Field(description="width queries pass through; null: none")
    rope_head_dim: Count = Field(description="rotated part of a head, cached beside the latent")
    nope_head_dim: Count = Field(description="part of a query or key head that is not rotated")
    indexer: Indexer | None = Field(description="chooses what attention reads; null: it reads all")


class Moe(Group):
    """Mixture of experts, in every layer but `dense_layers`."""

    experts: Count = Field(description="routed experts of a layer")
    experts_per_token: Count = Field(description="of them, how many a token passes through")
    intermediate_size: Count = Field(description="width of one routed expert")
    shared_intermediate_size: CountOrZero = Field(
        description="width of all shared experts of a layer together; 0: none"
    )
    shared_gate: bool = Field(description="a gate of one output scales the shared experts")
    router: Literal["softmax", "sigmoid", "other"] = Field(
        description="how a token's experts are scored: softmax over all, or sigmoid of each"
    )
    renormalise: bool = Field(description="weights of a token's experts are divided by their sum")
    routed_scale: PositiveFloat = Field(description="weights of routed experts are times this")
    router_bias: bool = Field(description="the router adds a bias, or corrects its scores by one")
    expert_bias: bool = Field(description="projections of the experts add a bias")
    dense_layers: tuple[int, ...] = Field(
        description="indices of layers with one MLP of shape.intermediate_size instead"
    )

    @model_validator(mode="after")
    def _chosen(self) -> Self:
        if self.experts_per_token > self.experts:
            raise ValueError(
                f"experts_per_token ({self.experts_per_token}) is more than the {self.experts} "
                "experts there are"
            )
        return self


STATE_KIND = "how a layer carries its past in a state of fixed size"
STATE_LAYERS = "indices of layers that carry a state instead of keys and values"
STATE_DTYPE = "the recurrent state is held in this; convolutions in model.dtype"
CONV_KERNEL = "tokens that the convolution before the state sees"


class Mamba1(Group):
    kind: Literal["mamba1"] = Field(description=STATE_KIND)
    layers: tuple[int, ...] = Field(description=STATE_LAYERS)
    inner_size: Count = Field(description="channels of the state")
    state_size: Count = Field(description="numbers a channel carries")
    conv_kernel: Count = Field(description=CONV_KERNEL)
    dt_rank: Count = Field(description="width that the step size passes through")
    dtype: Dtype = Field(description=STATE_DTYPE)


class Mamba2(Group):
    kind: Literal["mamba2"] = Field(description=STATE_KIND)
    layers: tuple[int, ...] = Field(description=STATE_LAYERS)
    heads: Count = Field(description="heads of the state")
    head_dim: Count = Field(description="channels of a head")
    groups: Count = Field(description="groups of heads that share their input and output maps")
    state_size: Count = Field(description="numbers a channel carries")
    conv_kernel: Count = Field(description=CONV_KERNEL)
    dtype: Dtype = Field(description=STATE_DTYPE)


class GatedDelta(Group):
    """Gated delta rule; `kda` gates each channel and convolves queries, keys and values apart."""

    kind: Literal["gated_delta", "kda"] = Field(description=STATE_KIND)
    layers: tuple[int, ...] = Field(description=STATE_LAYERS)
    key_heads: Count = Field(description="query and key heads")
    key_head_dim: Count = Field(description="width of a key head")
    value_heads: Count = Field(description="value heads, each with a state of its own")
    value_head_dim: Count = Field(description="width of a value head")
    conv_kernel: Count = Field(description=CONV_KERNEL)
    dtype: Dtype = Field(description=STATE_DTYPE)


State = Annotated[Mamba1 | Mamba2 | GatedDelta, Field(discriminator="kind")]
