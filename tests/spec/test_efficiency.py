"""The tables are whole, physical, and make more work take longer."""

import math
from itertools import pairwise

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from servekit.errors import ConfigError
from servekit.spec.efficiency import (
    FOLDER,
    Curve,
    Efficiency,
    at,
    curve,
    experts_of,
    gemm_of,
    names,
    table,
)
from tests.spec.served import card, cards


def slopes(known: Curve) -> list[float]:
    """Of every piece, as both logarithms have it."""
    points = list(zip(known.log_x, known.log_y, strict=True))
    return [(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(points)]


def efficiencies(known: Efficiency) -> list[Curve]:
    gemms = [*known.gemm.values(), *known.experts.values()]
    products = [each for gemm in gemms for each in (gemm.memory, gemm.compute)]
    return [*products, known.decode, known.decode_narrow, known.prefill]


def test_a_curve_goes_through_its_points_and_is_level_outside() -> None:
    known = curve([[10, 1], [1000, 100]])
    assert [at(known, x) for x in (1, 10, 100, 1000, 5000)] == pytest.approx([1, 1, 10, 100, 100])


def test_a_curve_of_one_point_is_level() -> None:
    assert at(curve([[7, 0.5]]), 1e9) == pytest.approx(0.5)


@given(x=st.floats(0.01, 1e12))
def test_a_curve_stays_between_its_ends(x: float) -> None:
    assert 0.03 <= at(table("h100").prefill, x) * (1 + 1e-12) <= 0.62 * (1 + 1e-9)


def test_every_card_names_a_table_that_there_is() -> None:
    assert {card(name).efficiency for name in cards() if name != "cpu"} <= set(names())


def test_every_table_is_of_a_card_of_the_catalogue_and_named_by_it() -> None:
    for name in names():
        if name != "cpu":
            measured = [card(option) for option in cards() if option != "cpu"]
            own = [each for each in measured if each.name in table(name).cards]
            assert own
            assert {each.efficiency for each in own} == {name}


def test_a_table_that_there_is_not_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"hardware.efficiency=abacus .* a100, b200"):
        table("abacus")


@pytest.mark.parametrize("name", names())
def test_a_table_says_where_it_comes_from_and_how_sure_it_is(name: str) -> None:
    said = yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    assert len(said["source"]) > 40
    assert said["standing"] == ("guess" if name == "cpu" else "measured")
    assert table(name).band == (0.5 if name == "cpu" else 0.15)


@pytest.mark.parametrize("name", names())
def test_no_efficiency_is_above_one(name: str) -> None:
    for known in efficiencies(table(name)):
        assert max(known.log_y) <= 0
        assert min(known.log_y) >= math.log(0.005)


@pytest.mark.parametrize("name", names())
def test_more_work_never_takes_less_at_any_efficiency(name: str) -> None:
    known = table(name)
    for gemm in (*known.gemm.values(), *known.experts.values()):
        assert all(slope <= 0 for slope in slopes(gemm.memory))  # the same bytes for more tokens
        assert all(slope <= 1 for slope in slopes(gemm.compute))
    assert all(slope <= 1 for slope in slopes(known.decode) + slopes(known.decode_narrow))
    assert all(slope <= 2 for slope in slopes(known.prefill))  # work is the square of the length
    assert all(slope >= 0 for each in known.all_reduce.values() for slope in slopes(each))


@pytest.mark.parametrize("name", names())
def test_narrow_keys_are_not_read_more_efficiently(name: str) -> None:
    known = table(name)
    for size in (1e6, 1e7, 1e8, 1e9):
        assert at(known.decode_narrow, size) <= at(known.decode, size) * 1.001


def test_products_without_a_row_of_their_own_are_those_of_16_bits() -> None:
    known = table("a100")
    assert gemm_of(known, "fp8") is known.gemm["16bit"]
    assert experts_of(known, "int8") is known.gemm["int8"]
    assert at(gemm_of(None, "fp8").compute, 5) == 1


@pytest.mark.parametrize(
    ("name", "tokens", "published"),
    [
        ("a100", 8, (0.66, 0.69)),
        ("a100", 128, (0.56, 0.59)),
        ("a100", 4096, (0.83, 0.89)),
        ("h100", 8, (0.76, 0.81)),
        ("h100", 256, (0.66, 0.74)),
        ("h100", 4096, (0.77, 0.82)),
        ("h200", 8, (0.71, 0.74)),
        ("l40s", 64, (0.73, 0.73)),
        ("b200", 8, (0.67, 0.72)),
        ("b200", 256, (0.53, 0.61)),
        ("rtx_pro_6000", 4096, (0.74, 0.85)),
    ],
)
def test_products_in_16_bits_are_as_fast_as_the_published_medians(
    name: str, tokens: int, published: tuple[float, float]
) -> None:
    """Roofline over smooth maximum, a matrix of 100 million weights, within a tenth."""
    listed = card("a100_80g" if name == "a100" else name)
    read = 2e8 / (listed.bandwidth_gb_s * 1e9)
    compute = 2e8 * tokens / (listed.bf16_tflops * 1e12)
    gemm = gemm_of(table(name), "16bit")
    slow = (read / at(gemm.memory, tokens)) ** 3 + (compute / at(gemm.compute, tokens)) ** 3
    reached = max(read, compute) / slow ** (1 / 3)
    assert 0.9 * published[0] <= reached <= 1.1 * published[1]
