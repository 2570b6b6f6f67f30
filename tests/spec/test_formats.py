"""Bits of a weight in every format, as published."""

import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from servekit.config.schema import WeightFormat
from servekit.spec.formats import FORMATS, bits_per_weight


@pytest.mark.parametrize(
    ("name", "inputs", "bits"),
    [
        ("fp8", 4096, 8 + 32 / 4096),
        ("int8", 768, 8 + 32 / 768),
        ("fp8_block", 7168, 8.00195),
        ("int4_g128", 8192, 4.156),
        ("int4_g32", 8192, 4.625),
        ("gptq_g128", 8192, 4.125),
        ("mxfp4", 2880, 4.25),
        ("nvfp4", 4096, 4.5),
    ],
)
def test_scales_and_zeros_are_counted(name: WeightFormat, inputs: int, bits: float) -> None:
    assert FORMATS[name].bits(inputs) == pytest.approx(bits, abs=5e-4)


@pytest.mark.parametrize("name", ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k"])
def test_the_blocks_of_gguf_have_their_size(name: WeightFormat) -> None:
    weights, size = GGML_QUANT_SIZES[GGMLQuantizationType[name.upper()]]
    assert FORMATS[name].bits(weights) == 8 * size / weights


def test_no_format_is_that_of_the_model() -> None:
    assert bits_per_weight("none", "float32", 64) == 32
    assert bits_per_weight("none", "bfloat16", 64) == FORMATS["none"].bits(64) == 16


def test_only_formats_with_multipliers_of_their_own_compute_in_them() -> None:
    own = {name: form.compute for name, form in FORMATS.items() if form.compute != "16bit"}
    assert own == {"fp8": "fp8", "fp8_block": "fp8", "int8": "int8", "nvfp4": "fp4"}
