"""What bounds each kernel: the bytes it must move and the operations it must do, and the time that
memory or tensor cores need for them at their published peaks.

Llama 3.1 8B on one H200, a layer; rates and sizes are those of conf/hardware and conf/model. No
time here was measured: a kernel is good where it comes near.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from servekit.config.compose import load
from servekit.config.schema import Config
from servekit.spec.model import GIB

WORDS = ["model=llama3_8b", "hardware=h200"]
BATCHES = (1, 16, 64, 256)
CONTEXTS = (1024, 8192, 131072)
PROMPT = 2048
ACTIVATION = 2
KV_BYTES = {"bf16": 2.0, "fp8": 1.0}


@dataclass(frozen=True, slots=True)
class Work:
    """Of one launch."""

    kernel: str
    shape: str
    bytes: float
    flops: float

    def bound_us(self, config: Config) -> float:
        return max(self.memory_us(config), self.compute_us(config))

    def memory_us(self, config: Config) -> float:
        return self.bytes / (config.hardware.bandwidth_gb_s * 1e3)

    def compute_us(self, config: Config) -> float:
        return self.flops / (config.hardware.bf16_tflops * 1e6)


def works(config: Config) -> Iterator[Work]:
    shape = config.model.shape
    hidden, width = shape.hidden_size, shape.intermediate_size
    heads, kv_heads, head_dim = shape.heads, shape.kv_heads, shape.head_dim
    for rows in (*BATCHES, PROMPT):
        label = f"{rows} tokens"
        yield Work("rms_norm", label, ACTIVATION * hidden * (2 * rows + 1), 4 * rows * hidden)
        yield Work("add_rms_norm", label, ACTIVATION * hidden * (4 * rows + 1), 5 * rows * hidden)
        yield Work("gated_activation", label, ACTIVATION * rows * 3 * width, 5 * rows * width)
        moved = (heads + 2 * kv_heads) * head_dim
        # read once and written once, with a row of cos and sin
        size = ACTIVATION * rows * (2 * moved + 2 * head_dim) + 8 * rows
        yield Work("rope_and_cache", label, size, 3 * rows * (heads + kv_heads) * head_dim)
    memory = config.hardware.memory_gib * GIB  # more tokens than it holds are in no batch
    for kind, stored in KV_BYTES.items():
        for batch in BATCHES:
            for context in CONTEXTS:
                if batch * context * shape.layers * ACTIVATION * 2 * kv_heads * head_dim > memory:
                    continue
                read = batch * context * 2 * kv_heads * head_dim * stored
                own = ACTIVATION * batch * 2 * heads * head_dim
                flops = 4 * batch * context * heads * head_dim
                yield Work("paged_decode", f"{kind}, {batch} x {context:,}", read + own, flops)
    for context in (0, *CONTEXTS):
        # half of the prompt's own square is masked, and need not be computed
        pairs = PROMPT * context + PROMPT * (PROMPT + 1) / 2
        read = (context + PROMPT) * 2 * kv_heads * head_dim * 2
        own = ACTIVATION * PROMPT * 2 * heads * head_dim
        name = f"{PROMPT:,} tokens after {context:,}"
        yield Work("paged_prefill", name, read + own, 4 * pairs * heads * head_dim)


def main() -> int:
    config = load(WORDS).config
    hardware = config.hardware
    table = Table(
        title=f"Bounds of a layer of {config.model.name} on {hardware.name}: "
        f"{hardware.bandwidth_gb_s:,.0f} GB/s, {hardware.bf16_tflops:,.0f} TFLOPS in bf16"
    )
    for heading in ("kernel", "shape"):
        table.add_column(heading)
    for heading in ("MB", "GFLOP", "FLOP/byte", "memory us", "compute us", "bound us"):
        table.add_column(heading, justify="right")
    for work in works(config):
        table.add_row(
            work.kernel,
            work.shape,
            f"{work.bytes / 1e6:,.3f}",
            f"{work.flops / 1e9:,.3f}",
            f"{work.flops / work.bytes:.1f}",
            f"{work.memory_us(config):,.2f}",
            f"{work.compute_us(config):,.2f}",
            f"{work.bound_us(config):,.2f}",
        )
    Console(width=130).print(table)
    return 0
