"""What matrix products are computed in, and how fast the hardware is at it."""

from servekit.config.schema import Config, HardwareConfig
from servekit.spec.efficiency import Arithmetic
from servekit.spec.formats import FORMATS


def plain(config: Config) -> Arithmetic:
    """Of weights in no format of their own."""
    return "32bit" if config.model.dtype == "float32" else "16bit"


def arithmetic(config: Config) -> Arithmetic:
    """What quantised weights are multiplied in, on this hardware."""
    weights, hardware = config.quantization.weights, config.hardware
    if weights == "none":
        return plain(config)
    compute = FORMATS[weights].compute
    if hardware.fp4_tflops and weights in ("mxfp4", "nvfp4"):
        return "fp4"
    if hardware.fp8_tflops and compute == "fp8":
        return "fp8_block" if weights == "fp8_block" else "fp8"
    if hardware.int8_tflops and compute == "int8":
        return "int8"
    return "weight_only"


def rate(hardware: HardwareConfig, kind: Arithmetic) -> float:
    """Peak operations a second; 32-bit ones are counted against the 16-bit peak."""
    tflops: dict[str, float | None] = {
        "fp8": hardware.fp8_tflops,
        "fp8_block": hardware.fp8_tflops,
        "int8": hardware.int8_tflops,
        "fp4": hardware.fp4_tflops,
    }
    return (tflops.get(kind) or hardware.bf16_tflops) * 1e12
