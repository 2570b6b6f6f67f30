"""How many bits a weight takes in each format, and what its products are computed in."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from servekit.config.base import DTYPE_BYTES, Dtype
from servekit.config.schema import WeightFormat

Compute = Literal["16bit", "fp8", "int8", "fp4"]


@dataclass(frozen=True, slots=True)
class Format:
    """`weight_bits` has the scales that inputs share; `row_bits` is one more for each output.

    `compute` is what the products are taken in where the hardware can; 16bit: weights are expanded
    on their way to the multipliers, which saves memory and its bandwidth, not arithmetic.
    """

    weight_bits: float
    row_bits: int
    compute: Compute

    def bits(self, inputs: int) -> float:
        """Bits per weight of a matrix with that many inputs to each output."""
        return self.weight_bits + self.row_bits / inputs


FORMATS: Mapping[WeightFormat, Format] = {
    "none": Format(weight_bits=16, row_bits=0, compute="16bit"),
    "fp8": Format(weight_bits=8, row_bits=32, compute="fp8"),
    "fp8_block": Format(weight_bits=8 + 32 / 128**2, row_bits=0, compute="fp8"),
    "int8": Format(weight_bits=8, row_bits=32, compute="int8"),
    "int4_g128": Format(weight_bits=4 + (16 + 4) / 128, row_bits=0, compute="16bit"),
    "int4_g32": Format(weight_bits=4 + (16 + 4) / 32, row_bits=0, compute="16bit"),
    "gptq_g128": Format(weight_bits=4 + 16 / 128, row_bits=0, compute="16bit"),
    "mxfp4": Format(weight_bits=4 + 8 / 32, row_bits=0, compute="16bit"),
    "nvfp4": Format(weight_bits=4 + 8 / 16, row_bits=0, compute="fp4"),
    "q4_0": Format(weight_bits=4.5, row_bits=0, compute="16bit"),
    "q4_1": Format(weight_bits=5, row_bits=0, compute="16bit"),
    "q5_0": Format(weight_bits=5.5, row_bits=0, compute="16bit"),
    "q5_1": Format(weight_bits=6, row_bits=0, compute="16bit"),
    "q8_0": Format(weight_bits=8.5, row_bits=0, compute="16bit"),
    "q4_k": Format(weight_bits=4.5, row_bits=0, compute="16bit"),
    "q5_k": Format(weight_bits=5.5, row_bits=0, compute="16bit"),
    "q6_k": Format(weight_bits=6.5625, row_bits=0, compute="16bit"),
}
"""fp8 and int8: a float32 scale for each output; fp8_block: one for 128 x 128. int4 (AWQ): a 16-bit
scale and a 4-bit zero for each group; gptq: symmetric, no zero. mxfp4: an 8-bit exponent for 32
values; nvfp4: an fp8 scale for 16. The rest as the blocks of GGUF are laid out."""


def bits_per_weight(weights: WeightFormat, dtype: Dtype, inputs: int) -> float:
    """`none` means `dtype`, of 32 bits too."""
    return 8 * DTYPE_BYTES[dtype] if weights == "none" else FORMATS[weights].bits(inputs)
