"""What hardware cannot compute, what it computes slowly, and what this release does not run."""

from collections.abc import Iterator
from dataclasses import dataclass

from servekit.config.base import DTYPE_BYTES
from servekit.config.schema import Config
from servekit.spec.decodable import beyond_the_decoder
from servekit.spec.formats import FORMATS


@dataclass(frozen=True, slots=True)
class Refusal:
    """One sentence, and the key and value that mend it."""

    text: str
    key: str
    value: str


RATES = {
    "fp8": ("fp8_tflops", "fp8", "compute capability 8.9"),
    "int8": ("int8_tflops", "int8", "tensor cores for it"),
    "fp4": ("fp4_tflops", "fp4", "compute capability 10.0"),
}
"""By what a weight format computes in: the rate it needs, its name, where hardware has it."""

KV_RATES = {"fp8": "fp8_tflops", "nvfp4": "fp4_tflops"}


def refusals(config: Config) -> Iterator[Refusal]:
    """What no change of memory mends."""
    hardware = config.hardware
    if hardware.bf16:
        return
    found = {"model.dtype": config.model.dtype, "kv.dtype": config.kv.dtype}
    if config.kv.dtype == config.model.dtype:
        del found["kv.dtype"]  # it follows, or is the next to be refused
    for key, dtype in found.items():
        if dtype == "bfloat16":
            yield Refusal(
                f"{key}=bfloat16: {described(config)} has no bfloat16 in hardware; use "
                f"{key}=float16",
                key,
                "float16",
            )


def described(config: Config) -> str:
    """The hardware's name, with its compute capability where it has one."""
    hardware = config.hardware
    number = hardware.compute_capability
    return f"{hardware.name} (compute capability {number})" if number else hardware.name


def slow_formats(config: Config) -> Iterator[str]:
    """Formats that save memory on this hardware and no arithmetic."""
    weights, hardware = config.quantization.weights, config.hardware
    compute = None if weights == "none" else FORMATS[weights].compute
    if compute in RATES:
        field, name, needed = RATES[compute]
        if getattr(hardware, field) is None:
            yield (
                f"quantization.weights={weights}: {described(config)} has no {name} arithmetic "
                f"({needed}), so weights take less memory and are computed at the 16-bit rate"
            )
    rate = KV_RATES.get(config.kv.dtype)
    if rate is not None and getattr(hardware, rate) is None:
        yield (
            f"kv.dtype={config.kv.dtype}: {described(config)} has no {config.kv.dtype} "
            "arithmetic, so keys and values are widened as they are read: the cache holds more, "
            "at the 16-bit rate"
        )


def slow_links(config: Config) -> Iterator[str]:
    """Traffic between devices that leaves the link between them."""
    parallelism, hardware = config.parallelism, config.hardware
    joined = max(parallelism.tensor, parallelism.expert_group)
    if joined > 1 and not hardware.p2p:
        yield (
            f"{hardware.name} devices do not read each other's memory: what {joined} ranks "
            "exchange in every layer goes through the host"
        )
    span = max(parallelism.tensor * parallelism.pipeline, parallelism.expert_group)
    if span > hardware.devices_per_node:
        yield (
            f"{span} devices that exchange activations are more than the "
            f"{hardware.devices_per_node} of one machine: they cross the network, whose speed is "
            "a guess here"
        )


STORED_KV = (*DTYPE_BYTES, "fp8", "int8")


def cannot_run(config: Config) -> list[str]:
    """What this release plans and does not run, a phrase each; empty for what it runs."""
    found = []
    parallelism, quantization, kv = config.parallelism, config.quantization, config.kv
    if parallelism.devices > 1:
        found.append(f"{parallelism.devices} devices, where it runs on one")
    if quantization.weights != "none":
        found.append(f"quantization.weights={quantization.weights}, where it holds them 16-bit")
    if kv.dtype not in STORED_KV:
        found.append(f"kv.dtype={kv.dtype}, where it stores {', '.join(STORED_KV)}")
    if config.speculative.method != "none":
        found.append(f"speculative.method={config.speculative.method}, where it guesses nothing")
    return found + beyond_the_decoder(config.model.shape)
