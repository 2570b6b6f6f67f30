"""Narrow weights: their layouts against dequantisation written anew, and products by Triton."""

import pytest
import torch

from servekit.errors import NotBuilt, WeightsError
from servekit.kernels import quantised_matmul
from servekit.kernels.packing import from_awq, from_gptq, pack_int4, unpack_int4
from servekit.kernels.quantised_matmul import (
    QuantisedWeight,
    dequantise,
    quantised_matmul_reference,
    quantised_matmul_triton,
)
from servekit.kernels.target import Target
from tests.kernels.devices import DEVICE, generator
from tests.kernels.interpreter import races

TOLERANCE = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
"""Relative to the largest result: sums in float32 in another order, then one rounding."""
FORMATS = ["int4", "int4 zeros", "int8", "fp8", "fp8 blocks"]


def random(*size: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*size, generator=generator(seed), device=DEVICE).to(dtype)


def integers(high: int, *size: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, high, size, generator=generator(seed), device=DEVICE)


def weight_of(format: str, n: int, k: int, group: int = 32) -> tuple[QuantisedWeight, torch.Tensor]:
    """A weight and, written by loops of its own, what it stands for in float64."""
    if format.startswith("int4"):
        values, scales = integers(16, n, k), random(k // group, n, seed=1)
        zeros = integers(17, k // group, n, seed=2).to(torch.uint8) if "zeros" in format else None
        weight = QuantisedWeight("int4", pack_int4(values, group), scales, zeros)
        wide = torch.empty((n, k), dtype=torch.float64, device=DEVICE)
        for g in range(k // group):
            zero = 8 if zeros is None else zeros[g].double()[:, None]
            part = slice(g * group, (g + 1) * group)
            wide[:, part] = (values[:, part].double() - zero) * scales[g].double()[:, None]
        return weight, wide
    if format == "fp8 blocks":
        data = random(n, k).to(torch.float8_e4m3fn)
        scales = random(-(-n // 128), -(-k // 128), seed=1)
        wide = data.double()
        for i in range(scales.shape[0]):
            for j in range(scales.shape[1]):
                wide[128 * i : 128 * i + 128, 128 * j : 128 * j + 128] *= scales[i, j].double()
        return QuantisedWeight("fp8", data, scales), wide
    scales = random(n, seed=1)
    if format == "fp8":
        data = (100 * random(n, k)).to(torch.float8_e4m3fn)
        return QuantisedWeight("fp8", data, scales), data.double() * scales.double()[:, None]
    data = (integers(256, n, k) - 128).to(torch.int8)
    return QuantisedWeight("int8", data, scales), data.double() * scales.double()[:, None]


@pytest.fixture
def nan_in_fresh_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "empty", lambda size, **kw: torch.full(size, torch.nan, **kw))


def near(got: torch.Tensor, expected: torch.Tensor) -> None:
    """`expected` is float64."""
    tolerance = TOLERANCE[got.dtype]
    scale = expected.abs().max().item()
    torch.testing.assert_close(got.double(), expected, rtol=tolerance, atol=tolerance * scale)


@pytest.mark.parametrize("group", [2, 32, 64, 128])
def test_four_bits_come_back(group: int) -> None:
    values = integers(16, 5, 2 * group)
    assert torch.equal(unpack_int4(pack_int4(values, group), group), values.to(torch.uint8))


def test_a_group_that_does_not_divide_is_refused() -> None:
    with pytest.raises(WeightsError, match="groups of 32 do not divide 40"):
        pack_int4(integers(16, 2, 40), 32)


def int32(word: int) -> int:
    return word - (1 << 32) if word >= 1 << 31 else word


def awq_words(values: torch.Tensor) -> torch.Tensor:
    """As AutoAWQ packs: nibble i of a word is column (0, 2, 4, 6, 1, 3, 5, 7)[i] of its eight."""
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    rows = [
        [int32(sum(row[c + order[i]] << 4 * i for i in range(8))) for c in range(0, len(row), 8)]
        for row in values.tolist()
    ]
    return torch.tensor(rows, dtype=torch.int32, device=DEVICE)


def gptq_words(values: torch.Tensor) -> torch.Tensor:
    """Eight rows a word, the first in the lowest nibble."""
    columns = [
        [int32(sum(column[r + i] << 4 * i for i in range(8))) for r in range(0, len(column), 8)]
        for column in values.T.tolist()
    ]
    return torch.tensor(columns, dtype=torch.int32, device=DEVICE).T.contiguous()


@pytest.mark.parametrize("group", [32, 128])
def test_an_awq_checkpoint(group: int) -> None:
    values, zeros, scales = integers(16, 256, 24), integers(16, 256 // group, 24), random(1)
    scales = random(256 // group, 24)
    packed = from_awq(awq_words(values), awq_words(zeros), scales)
    each = (values - zeros.repeat_interleave(group, 0)) * scales.repeat_interleave(group, 0)
    assert torch.equal(dequantise(QuantisedWeight("int4", *packed)), each.T)


@pytest.mark.parametrize("group", [32, 128])
def test_a_gptq_checkpoint(group: int) -> None:
    values, stored = integers(16, 256, 24), integers(16, 256 // group, 24)
    scales = random(256 // group, 24)
    trivial = torch.arange(256, dtype=torch.int32, device=DEVICE) // group
    qzeros = gptq_words(stored.T.contiguous()).T.contiguous()
    packed = from_gptq(gptq_words(values), qzeros, scales, trivial)
    each = (values - (stored + 1).repeat_interleave(group, 0)) * scales.repeat_interleave(group, 0)
    assert torch.equal(dequantise(QuantisedWeight("int4", *packed)), each.T)


def test_symmetric_zero_points_are_not_kept() -> None:
    qweight, sevens = gptq_words(integers(16, 64, 8)), torch.full((2, 1), 0x77777777)
    assert from_gptq(qweight, sevens.to(DEVICE, torch.int32), random(2, 8)).zeros is None


def test_act_order_is_refused() -> None:
    qweight, qzeros = gptq_words(integers(16, 64, 8)), torch.zeros(2, 1, dtype=torch.int32)
    with pytest.raises(NotBuilt, match="act-order"):
        from_gptq(qweight, qzeros.to(DEVICE), random(2, 8), integers(2, 64))


def test_tensors_that_do_not_fit_are_refused() -> None:
    with pytest.raises(WeightsError, match="AWQ tensors do not fit"):
        from_awq(awq_words(integers(16, 64, 16)), awq_words(integers(16, 2, 8)), random(2, 16))


@pytest.mark.parametrize("format", FORMATS)
def test_what_a_weight_stands_for(format: str) -> None:
    weight, wide = weight_of(format, 130, 160)
    x, bias = random(3, 160), random(130, seed=4)
    torch.testing.assert_close(dequantise(weight).double(), wide)
    near(quantised_matmul_reference(x, weight, bias), x.double() @ wide.T + bias.double())


@pytest.mark.usefixtures("nan_in_fresh_memory")
@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("m", [1, 3, 17, 65])
def test_a_product(format: str, dtype: torch.dtype, m: int) -> None:
    weight, wide = weight_of(format, 70, 160)
    x, bias = random(m, 160, dtype=dtype), random(70, dtype=dtype, seed=3)
    expected = x.double() @ wide.T
    near(quantised_matmul_triton(x, weight), expected)
    near(quantised_matmul_triton(x, weight, bias), expected + bias.double())


@pytest.mark.usefixtures("nan_in_fresh_memory")
@pytest.mark.parametrize("format", FORMATS)
def test_k_split_between_programs(format: str) -> None:
    weight, wide = weight_of(format, 70, 1312)
    x, bias = random(5, 1312, dtype=torch.bfloat16), random(70, dtype=torch.bfloat16, seed=3)
    with races():
        got = quantised_matmul_triton(x, weight, bias)
    near(got, x.double() @ wide.T + bias.double())
    assert torch.equal(got, quantised_matmul_triton(x, weight, bias))


@pytest.mark.parametrize("group", [64, 128])
@pytest.mark.parametrize("format", ["int4", "int4 zeros"])
def test_other_groups(format: str, group: int) -> None:
    weight, wide = weight_of(format, 33, 512, group)
    x = random(2, 512, dtype=torch.bfloat16)
    near(quantised_matmul_triton(x, weight), x.double() @ wide.T)


def test_groups_without_a_kernel_are_refused() -> None:
    weight, _ = weight_of("int4", 8, 96, 48)
    with pytest.raises(NotBuilt, match="groups of 48"):
        quantised_matmul_triton(random(1, 96), weight)


@pytest.mark.parametrize("format", ["fp8", "fp8 blocks"])
def test_fp8_by_its_bits(format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    older = Target("sm_80", "", 4, 1 << 30)
    weight, wide = weight_of(format, 70, 160)
    x = random(3, 160, dtype=torch.bfloat16)
    monkeypatch.setattr(quantised_matmul, "target", lambda: older)
    near(quantised_matmul_triton(x, weight), x.double() @ wide.T)


def test_more_dimensions_and_no_rows() -> None:
    weight, wide = weight_of("int8", 7, 50)
    x = random(2, 3, 50)
    near(quantised_matmul_triton(x, weight), x.double() @ wide.T)
    assert quantised_matmul_triton(x[:0], weight).shape == (0, 3, 7)
