"""The numbers of one decoder-only model."""

from typing import Annotated, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from servekit.config.base import Count, CountOrZero, Group, Layers, PositiveFloat
from servekit.config.parts import Indexer, Mla, Moe, State

Factor = Annotated[float, Field(ge=1, le=1e6)]
ROPE_KIND = "how rotary frequencies are scaled for a longer context; default: not at all"


class DefaultRope(Group):
    kind: Literal["default"] = Field(description=ROPE_KIND)
    theta: PositiveFloat = Field(description="base of the rotary frequencies")


class LinearRope(Group):
    kind: Literal["linear"] = Field(description=ROPE_KIND)
    theta: PositiveFloat = Field(description="base of the rotary frequencies")
    factor: Factor = Field(description="positions are divided by this")


class Llama3Rope(Group):
    kind: Literal["llama3"] = Field(description=ROPE_KIND)
    theta: PositiveFloat = Field(description="base of the rotary frequencies")
    factor: Factor = Field(description="low frequencies are divided by this")
    low_freq_factor: PositiveFloat = Field(description="below this many turns: divided")
    high_freq_factor: PositiveFloat = Field(description="above this many turns: left alone")
    original_max_position_embeddings: Count = Field(description="context before scaling, tokens")


class YarnRope(Group):
    kind: Literal["yarn"] = Field(description=ROPE_KIND)
    theta: PositiveFloat = Field(description="base of the rotary frequencies")
    factor: Factor = Field(description="how much longer the context became")
    original_max_position_embeddings: Count = Field(description="context before scaling, tokens")
    beta_fast: PositiveFloat = Field(description="turns above which a frequency is left alone")
    beta_slow: PositiveFloat = Field(description="turns below which a frequency is divided")
    attention_factor: PositiveFloat | None = Field(
        description="multiplies cos and sin; null: 0.1 ln(factor) + 1"
    )


class OtherRope(Group):
    """None, partial, or scaled in a way that the decoder does not compute: it is planned only."""

    kind: Literal["other"] = Field(description=ROPE_KIND)


Rope = Annotated[
    DefaultRope | LinearRope | Llama3Rope | YarnRope | OtherRope, Field(discriminator="kind")
]


class Heads(NamedTuple):
    """Key and value heads of one layer, the width of a query or key head, and of a value head."""

    kv_heads: int
    head_dim: int
    value_head_dim: int


class Shape(Group):
    """The numbers that make one decoder-only model. `model.decoder` runs those of plain attention
    and MLP; the rest, and whatever `planned_only` names, is for the planner alone.
    """

    layers: Layers = Field(description="decoder layers")
    hidden_size: Count = Field(description="width of the residual stream")
    heads: Count = Field(description="query heads")
    kv_heads: Count = Field(description="key and value heads; divides heads")
    head_dim: Count = Field(description="width of one head; not always hidden_size / heads")
    value_head_dim: Count | None = Field(description="width of a value head; null: head_dim")
    full_kv_heads: Count | None = Field(
        description="kv_heads of layers that see everything, where others slide; null: the same"
    )
    full_head_dim: Count | None = Field(
        description="head_dim of layers that see everything, where others slide; null: the same"
    )
    full_keys_are_values: bool = Field(
        description="layers that see everything project keys only, which are their values too"
    )
    intermediate_size: Count = Field(
        description="width of the MLP; of dense layers, beside experts"
    )
    gated_mlp: bool = Field(description="the MLP has a gate beside its up projection")
    vocab_size: Count = Field(description="rows of the embedding")
    max_position_embeddings: Count = Field(description="longest context it was made for, tokens")
    rms_norm_eps: PositiveFloat = Field(description="added to the mean square in every norm")
    activation: Literal["silu", "gelu_tanh", "other"] = Field(description="of the MLP")
    tie_word_embeddings: bool = Field(description="the head is the embedding transposed")
    qkv_bias: bool = Field(description="query, key and value projections add a bias")
    output_bias: bool = Field(description="the attention output projection adds a bias")
    mlp_bias: bool = Field(description="the MLP projections add a bias")
    qk_norm: bool = Field(description="RMS norm over each query and key head before rope")
    norm_unit_offset: bool = Field(description="norms multiply by 1 + weight (Gemma)")
    post_norms: bool = Field(description="norms after attention and MLP too (Gemma 2 and 3)")
    scale_embeddings: bool = Field(description="embeddings times sqrt(hidden_size) (Gemma)")
    attention_scale: PositiveFloat | None = Field(
        description="scores are multiplied by this; null: head_dim ** -0.5"
    )
    attention_logit_softcap: PositiveFloat | None = Field(
        description="scores become cap * tanh(score / cap)"
    )
    final_logit_softcap: PositiveFloat | None = Field(
        description="logits become cap * tanh(logit / cap)"
    )
    sliding_window: Count | None = Field(
        description="tokens seen by sliding-window layers, itself included; null: all layers full"
    )
    window_kind: Literal["sliding", "chunked"] = Field(
        description="sliding: each token looks back that far; chunked: to the start of its chunk"
    )
    full_attention_layers: tuple[int, ...] = Field(
        description="indices of layers that see everything, where sliding_window is set"
    )
    shared_kv_layers: tuple[int, ...] = Field(
        description="indices of layers that read the keys and values of an earlier layer"
    )
    mlp_only_layers: tuple[int, ...] = Field(
        description="indices of layers with neither attention nor state"
    )
    mixer_only_layers: tuple[int, ...] = Field(description="indices of layers without an MLP")
    mla: Mla | None = Field(description="latent attention; null: plain keys and values")
    moe: Moe | None = Field(description="mixture of experts; null: one MLP a layer")
    state: State | None = Field(description="layers with a state of fixed size; null: none")
    mtp_layers: Annotated[int, Field(ge=0, le=100)] = Field(
        description="layers after the last that guess further tokens; held with speculative.method"
        "=mtp only"
    )
    other_parameters: CountOrZero = Field(
        description="parameters outside the decoder, such as a vision tower; kept in 16 bits"
    )
    planned_only: tuple[str, ...] = Field(
        description="what this model computes and the decoder does not, a phrase each"
    )
    rope: Rope = Field(description="rotary embedding of full-attention layers")
    local_rope: Rope | None = Field(
        description="rotary embedding of sliding-window layers; null: the same"
    )

    @model_validator(mode="after")
    def _heads_and_layers(self) -> Self:
        for name in ("kv_heads", "full_kv_heads"):
            count = getattr(self, name)
            if count is not None and self.heads % count:
                raise ValueError(f"{name} ({count}) must divide heads ({self.heads})")
        for name in ("head_dim", "full_head_dim"):
            width = getattr(self, name)
            if width is not None and width % 2:
                raise ValueError(f"{name} ({width}) must be even for rotary embeddings")
        if self.mla is not None and self.has_two_kinds:
            raise ValueError(
                "full_kv_heads, full_head_dim and full_keys_are_values are for plain keys and "
                "values; with mla leave them null and false"
            )
        for name, indices in self.layer_lists.items():
            outside = [layer for layer in indices if not 0 <= layer < self.layers]
            if outside:
                raise ValueError(f"{name} {outside} are not among {self.layers} layers")
        return self

    @property
    def layer_lists(self) -> dict[str, tuple[int, ...]]:
        """Every list of layer indices, by its key."""
        return {
            "full_attention_layers": self.full_attention_layers,
            "shared_kv_layers": self.shared_kv_layers,
            "mlp_only_layers": self.mlp_only_layers,
            "mixer_only_layers": self.mixer_only_layers,
            "mla.indexer.layers": self.indexed_layers,
            "moe.dense_layers": self.moe.dense_layers if self.moe else (),
            "state.layers": self.state.layers if self.state else (),
        }

    @property
    def attention_layers(self) -> tuple[int, ...]:
        """Layers with attention of any kind, those that share their keys and values too."""
        without = {*self.mlp_only_layers, *(self.state.layers if self.state else ())}
        return tuple(layer for layer in range(self.layers) if layer not in without)

    @property
    def own_kv_layers(self) -> tuple[int, ...]:
        """Layers with keys and values of their own."""
        shared = {*self.shared_kv_layers}
        return tuple(layer for layer in self.attention_layers if layer not in shared)

    @property
    def indexer(self) -> Indexer | None:
        """What chooses the tokens that latent attention reads."""
        return self.mla.indexer if self.mla is not None else None

    @property
    def indexed_layers(self) -> tuple[int, ...]:
        return self.indexer.layers if self.indexer is not None else ()

    @property
    def dense_layers(self) -> tuple[int, ...]:
        """Layers with one MLP of `intermediate_size`."""
        having = [layer for layer in range(self.layers) if layer not in self.mixer_only_layers]
        if self.moe is None:
            return tuple(having)
        return tuple(layer for layer in having if layer in self.moe.dense_layers)

    @property
    def moe_layers(self) -> tuple[int, ...]:
        """Layers with experts."""
        having = {*range(self.layers)} - {*self.mixer_only_layers, *self.dense_layers}
        return tuple(sorted(having)) if self.moe is not None else ()

    def window(self, layer: int) -> int | None:
        """Tokens that layer may look back on, itself included; None: all of them."""
        return None if layer in self.full_attention_layers else self.sliding_window

    def heads_of(self, *, full: bool) -> Heads:
        """Of layers that see everything (`window` is None), or of the others."""
        width = (self.full_head_dim if full else None) or self.head_dim
        return Heads(
            kv_heads=(self.full_kv_heads if full else None) or self.kv_heads,
            head_dim=width,
            value_head_dim=self.value_head_dim or width,
        )

    @property
    def has_two_kinds(self) -> bool:
        """Layers that see everything have other keys and values than those that slide."""
        same = self.heads_of(full=True) == self.heads_of(full=False)
        return not same or self.full_keys_are_values
