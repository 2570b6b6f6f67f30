"""Experts by Triton: routing, order, products and their sum."""

from collections.abc import Callable

import pytest
import torch

from servekit.kernels import moe
from servekit.kernels.moe import moe_reference, moe_triton
from servekit.kernels.moe_routing import (
    Alignment,
    Routes,
    Routing,
    align,
    route_reference,
    route_triton,
)
from tests.kernels.devices import DEVICE, generator
from tests.kernels.interpreter import races

TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""Relative to the largest result: three roundings of the dtype, sums in another order."""


def random(*size: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*size, generator=generator(seed), device=DEVICE).to(dtype)


@pytest.fixture
def nan_in_fresh_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def filled(size: tuple[int, ...], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        value = torch.nan if dtype.is_floating_point else 99
        return torch.full(size, value, dtype=dtype, device=device)

    monkeypatch.setattr(torch, "empty", filled)


def routes_to(experts: list[list[int]]) -> Routes:
    chosen = torch.tensor(experts, dtype=torch.int32, device=DEVICE)
    return Routes(random(*chosen.shape, seed=5).softmax(-1), chosen)


def one_by_one(
    x: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor, routes: Routes
) -> torch.Tensor:
    """In float64, a token and a choice at a time."""
    out = torch.zeros(x.shape, dtype=torch.float64, device=DEVICE)
    for t, chosen in enumerate(routes.experts.tolist()):
        for j, expert in enumerate(chosen):
            gate, up = (gate_up[expert].double() @ x[t].double()).chunk(2)
            inner = gate * torch.sigmoid(gate) * up
            out[t] += routes.weights[t, j].double() * (down[expert].double() @ inner)
    return out


@pytest.mark.usefixtures("nan_in_fresh_memory")
@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
@pytest.mark.parametrize("renormalise", [False, True])
@pytest.mark.parametrize(("tokens", "experts", "top_k"), [(5, 8, 2), (1, 60, 6), (3, 1, 1)])
def test_routing(score: str, renormalise: bool, tokens: int, experts: int, top_k: int) -> None:
    logits = random(tokens, experts, dtype=torch.bfloat16)
    routing = Routing(top_k, score, renormalise, scale=2.5)
    got, expected = route_triton(logits, routing), route_reference(logits, routing)
    torch.testing.assert_close(got.weights, expected.weights)
    assert torch.equal(got.experts, expected.experts)


@pytest.mark.usefixtures("nan_in_fresh_memory")
@pytest.mark.parametrize(("tokens", "experts", "top_k"), [(5, 8, 2), (3, 11, 3)])
def test_corrected_scores_choose(tokens: int, experts: int, top_k: int) -> None:
    logits, correction = random(tokens, experts), random(experts, seed=1)
    routing = Routing(top_k, "sigmoid", True)
    got = route_triton(logits, routing, correction)
    expected = route_reference(logits, routing, correction)
    torch.testing.assert_close(got.weights, expected.weights)
    assert torch.equal(got.experts, expected.experts)
    assert not torch.equal(got.experts, route_triton(logits, routing).experts)


@pytest.mark.parametrize("route", [route_reference, route_triton])
def test_a_correction_weighs_nothing(route: Callable[..., Routes]) -> None:
    logits = torch.tensor([[0.0, 2.0, 4.0]], device=DEVICE)
    correction = torch.tensor([1.0, 0.5, -1.0], device=DEVICE)
    routes = route(logits, Routing(2, "sigmoid", False, scale=2.0), correction)
    assert routes.experts.tolist() == [[0, 1]]
    expected = 2 * torch.tensor([[0.0, 2.0]], device=DEVICE).sigmoid()
    torch.testing.assert_close(routes.weights, expected)


@pytest.mark.parametrize("route", [route_reference, route_triton])
def test_scores_of_nothing_are_no_division_by_zero(route: Callable[..., Routes]) -> None:
    routes = route(torch.full((1, 3), -200.0, device=DEVICE), Routing(2, "sigmoid", True))
    assert routes.weights.tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("route", [route_reference, route_triton])
def test_the_first_of_equal_experts_goes_before(route: Callable[..., Routes]) -> None:
    logits = torch.tensor([[0.0, 1.0, 1.0, 1.0], [2.0, 2.0, 2.0, 2.0]], device=DEVICE)
    routes = route(logits, Routing(2, "softmax", True))
    assert routes.experts.tolist() == [[1, 2], [0, 1]]
    assert routes.weights.tolist() == [[0.5, 0.5], [0.5, 0.5]]


def test_experts_of_nan_stay_in_their_bounds_and_differ() -> None:
    logits = torch.full((1, 5), torch.nan, device=DEVICE)
    assert route_triton(logits, Routing(3, "softmax", True)).experts.tolist() == [[0, 1, 2]]


def test_slots_by_expert_in_whole_tiles() -> None:
    experts = torch.tensor([[2, 0], [2, 3], [2, 0]], device=DEVICE)
    order = align(experts, 4, 2)
    assert order.slots.tolist() == [1, 5, 0, 2, 4, 6, 3, 6, 6, 6]
    assert order.tile_experts.tolist() == [0, 2, 2, 3, 4]


def test_there_is_a_tile_for_each_slot_in_the_worst_routing() -> None:
    for experts in ([[0, 1], [2, 3]], [[0, 0], [0, 0]], [[3, 3], [3, 1]]):
        order = align(torch.tensor(experts, device=DEVICE), 4, 3)
        assert sorted(slot for slot in order.slots.tolist() if slot < 4) == [0, 1, 2, 3]


@pytest.mark.usefixtures("nan_in_fresh_memory")
@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize(
    "experts",
    [[[1, 4]], [[2, 0]] * 19, [[0, 1], [3, 4], [4, 0], [1, 3]]],
    ids=["one token", "two experts take all", "one without a token"],
)
def test_experts(dtype: torch.dtype, experts: list[list[int]]) -> None:
    routes = routes_to(experts)
    x, gate_up = random(len(experts), 40, dtype=dtype), random(5, 66, 40, dtype=dtype, seed=1)
    down = random(5, 40, 33, dtype=dtype, seed=2)
    expected = one_by_one(x, gate_up, down, routes)
    for got in (
        moe_triton(x, gate_up, down, routes, "silu"),
        moe_reference(x, gate_up, down, routes, "silu"),
    ):
        tolerance = TOLERANCE[dtype]
        atol = tolerance * expected.abs().max().item()
        torch.testing.assert_close(got.double(), expected, rtol=tolerance, atol=atol)


def test_many_tokens_an_expert_and_no_two_writes_of_one_place() -> None:
    dtype = torch.bfloat16
    routes = route_triton(random(70, 2), Routing(1, "sigmoid", False))
    x, gate_up = random(70, 24, dtype=dtype), random(2, 32, 24, dtype=dtype, seed=1)
    down = random(2, 24, 16, dtype=dtype, seed=2)
    with races():
        got = moe_triton(x, gate_up, down, routes, "silu")
    assert torch.equal(got, moe_triton(x, gate_up, down, routes, "silu"))
    expected = one_by_one(x, gate_up, down, routes)
    torch.testing.assert_close(got.double(), expected, rtol=3e-2, atol=3e-2 * expected.max().item())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_in_one_order_a_token_has_the_same_bits_alone_and_beside_others(dtype: torch.dtype) -> None:
    x, gate_up = random(40, 72, dtype=dtype), random(3, 66, 72, dtype=dtype, seed=1)
    down = random(3, 72, 33, dtype=dtype, seed=2)
    routes = route_triton(random(40, 3, seed=3), Routing(2, "softmax", True))
    together = moe_triton(x, gate_up, down, routes, "silu", one_order=True)
    for at in (slice(0, 1), slice(39, 40), slice(5, 22)):
        some = Routes(routes.weights[at].contiguous(), routes.experts[at].contiguous())
        alone = moe_triton(x[at], gate_up, down, some, "silu", one_order=True)
        assert torch.equal(alone, together[at])


def test_in_one_order_tiles_do_not_follow_the_number_of_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tensor cores sum in another order in smaller tiles, which the interpreter does not."""
    rows: list[int] = []

    def told(experts: torch.Tensor, num_experts: int, tile_rows: int) -> Alignment:
        rows.append(tile_rows)
        return align(experts, num_experts, tile_rows)

    monkeypatch.setattr(moe, "align", told)
    dtype = torch.bfloat16
    gate_up, down = random(2, 32, 24, dtype=dtype), random(2, 24, 16, dtype=dtype)
    for one_order in (True, False):
        for tokens in (1, 70):
            routes = route_triton(random(tokens, 2), Routing(1, "softmax", True))
            x = random(tokens, 24, dtype=dtype)
            moe_triton(x, gate_up, down, routes, "silu", one_order=one_order)
    assert rows == [64, 64, 16, 64]


def test_no_tokens() -> None:
    routes = route_triton(random(0, 4), Routing(2, "softmax", True))
    for mix in (moe_triton, moe_reference):
        got = mix(random(0, 8), random(4, 12, 8), random(4, 8, 6), routes, "silu")
        assert got.shape == (0, 8)
