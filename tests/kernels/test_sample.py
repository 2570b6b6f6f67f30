"""One token a row: what is drawn is what the filters leave, in the proportions that they leave."""

import math
from collections.abc import Sequence

import pytest
import torch

from servekit.kernels.adjust import (
    Adjustments,
    Grammar,
    Penalties,
    SparseRows,
    adjust_reference,
    adjust_triton,
)
from servekit.kernels.draw import DrawTensors
from servekit.kernels.sample import (
    FINE,
    NOT_FINITE,
    NOTHING_LEFT,
    sample_reference,
    sample_triton,
)
from tests.kernels.devices import DEVICE, generator
from tests.kernels.interpreter import races

SMALL = {"block": 64, "warps": 1, "draw_block": 32, "room": 64}
"""A launch that reads even a small vocabulary in many blocks, and has not always room."""
NEAR = 2e-6
"""Of the whole: a draw so near to where two tokens meet may be either, by the rounding of sums."""


def params(
    rows: int,
    *,
    temperature: float | Sequence[float] = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    uniform: Sequence[float] | None = None,
    seed: int = 0,
) -> DrawTensors:
    def each(value: float | Sequence[float], dtype: torch.dtype) -> torch.Tensor:
        values = [value] * rows if isinstance(value, (int, float)) else list(value)
        return torch.tensor(values, dtype=dtype, device=DEVICE)

    drawn = torch.rand(rows, dtype=torch.float64, generator=generator(seed), device=DEVICE)
    return DrawTensors(
        temperature=each(temperature, torch.float32),
        top_k=each(top_k, torch.int32),
        top_p=each(top_p, torch.float32),
        min_p=each(min_p, torch.float32),
        uniform=drawn if uniform is None else each(uniform, torch.float64),
    )


def logits_of(rows: int, vocab: int, seed: int = 0, spread: float = 3.0) -> torch.Tensor:
    return spread * torch.randn(rows, vocab, generator=generator(seed), device=DEVICE)


def weights_of(row: torch.Tensor, some: DrawTensors, place: int, slack: float) -> torch.Tensor:
    """What may be drawn, float64; `slack` widens the filters."""
    distance = (row.max() - row).double() / float(some.temperature[place])
    weight = (-distance).exp()
    top_k, top_p = int(some.top_k[place]), float(some.top_p[place])
    ordered = distance.sort().values
    if 0 < top_k < len(row):
        weight[distance > ordered[top_k - 1] * (1 + slack)] = 0
    if top_p < 1:
        best = weight.sort(descending=True).values
        before = best.cumsum(0) - best
        inside = max(1, int((before < (top_p + slack) * best.sum()).sum()))
        weight[weight < best[inside - 1] * (1 - slack)] = 0
    weight[weight < float(some.min_p[place]) * (1 - slack)] = 0
    return weight


def check(logits: torch.Tensor, some: DrawTensors, **launch: int) -> None:
    """The kernel's tokens are the reference's, but where a draw is at the very edge of two."""
    with races():
        got = sample_triton(logits, some, **launch)
    wanted = sample_reference(logits, some)
    assert torch.equal(got.status, wanted.status)
    for place in (got.tokens != wanted.tokens).nonzero()[:, 0].tolist():
        token = int(got.tokens[place])
        spans = []
        for slack in (0.0, 1e-5):
            weight = weights_of(logits[place], some, place, slack)
            running = weight.cumsum(0) / weight.sum()
            spans.append(
                (float(running[token] - weight[token] / weight.sum()), float(running[token]))
            )
        low, high = min(span[0] for span in spans), max(span[1] for span in spans)
        assert low - NEAR <= float(some.uniform[place]) <= high + NEAR, (place, token)


FILTERS = {
    "none": {},
    "cold": {"temperature": 0.2},
    "hot": {"temperature": 2.5},
    "top 1": {"top_k": 1},
    "top 5": {"top_k": 5},
    "top 200": {"top_k": 200},
    "top all": {"top_k": 301},
    "nucleus": {"top_p": 0.9},
    "small nucleus": {"top_p": 1e-6},
    "large nucleus": {"top_p": 0.9999},
    "min": {"min_p": 0.05},
    "only the best": {"min_p": 1.0},
    "all": {"temperature": 0.7, "top_k": 40, "top_p": 0.95, "min_p": 0.01},
}


@pytest.mark.parametrize("launch", [{}, SMALL], ids=["one block", "many blocks"])
@pytest.mark.parametrize("name", FILTERS)
def test_what_filters_leave_is_drawn(name: str, launch: dict[str, int]) -> None:
    check(logits_of(8, 300), params(8, **FILTERS[name]), **launch)


@pytest.mark.parametrize("vocab", [1, 2, 31, 257, 5000])
def test_vocabularies_of_any_size(vocab: int) -> None:
    check(logits_of(6, vocab), params(6, top_k=3, top_p=0.9))
    check(logits_of(6, vocab), params(6), **SMALL)


def test_rows_of_all_kinds_in_one_batch() -> None:
    logits = logits_of(4, 300)
    some = params(4, temperature=[0.0, 1.0, 1e-30, 0.5], uniform=[0.3, 0.0, 0.999, 1 - 2**-50])
    check(logits, some)
    tokens = sample_triton(logits, some).tokens
    assert tokens[0] == logits[0].argmax()
    assert tokens[2] == logits[2].argmax()


def test_the_first_of_equal_ones_is_the_best() -> None:
    logits = torch.zeros(2, 100, device=DEVICE)
    logits[0, [70, 30, 99]] = 4.0
    assert sample_triton(logits, params(2, temperature=0.0), **SMALL).tokens.tolist() == [30, 0]


@pytest.mark.parametrize("filters", [{"top_k": 2}, {"top_p": 0.3}, {"min_p": 1.0}])
def test_tokens_equal_to_the_last_that_is_kept_are_kept(filters: dict[str, float]) -> None:
    logits = torch.zeros(30, 8, device=DEVICE)
    logits[:, [1, 4, 6]] = 5.0
    some = params(30, **filters, uniform=[place / 30 for place in range(30)])
    tokens = sample_triton(logits, some).tokens
    assert set(tokens.tolist()) == {1, 4, 6}
    assert torch.equal(tokens, sample_reference(logits, some).tokens)


def test_rows_that_are_no_numbers_fail_alone() -> None:
    logits = logits_of(6, 300)
    logits[1, 7] = math.nan
    logits[2, :] = -math.inf
    logits[3, 250] = math.inf
    logits[4, :299] = -math.inf
    for launch in ({}, SMALL):
        got = sample_triton(logits, params(6), **launch)
        assert got.status.tolist() == [FINE, NOT_FINITE, NOT_FINITE, NOT_FINITE, FINE, FINE]
        assert got.tokens[4] == 299
        assert torch.equal(got.status, sample_reference(logits, params(6)).status)
    check(logits[[0, 4, 5]], params(3))


def test_a_token_does_not_depend_on_who_else_is_there() -> None:
    logits, some = logits_of(9, 700), params(9, temperature=1.3, top_p=0.97, top_k=50)
    together = sample_triton(logits, some).tokens
    for row in range(9):
        one = slice(row, row + 1)
        own = DrawTensors(*(getattr(some, name)[one] for name in DrawTensors.__slots__))
        assert sample_triton(logits[one], own).tokens == together[one]


def test_rows_may_lie_apart() -> None:
    wide = logits_of(5, 400)
    assert torch.equal(
        sample_triton(wide[:, :300], params(5)).tokens,
        sample_triton(wide[:, :300].contiguous(), params(5)).tokens,
    )


def test_no_rows_are_no_tokens() -> None:
    got = sample_triton(logits_of(0, 300), params(0))
    assert len(got.tokens) == len(got.status) == 0


def test_draws_have_the_distribution() -> None:
    """Chi-square of 500 draws against ten probabilities: 27.9 is exceeded once in a thousand."""
    count = 500
    row = logits_of(1, 10, spread=1.0)
    some = params(count, temperature=0.8, seed=5)
    seen = sample_triton(row.expand(count, -1).contiguous(), some).tokens.bincount(minlength=10)
    expected = count * (row[0].double() / 0.8).softmax(0)
    assert float(((seen - expected) ** 2 / expected).sum()) < 27.9


def sparse(rows: Sequence[dict[int, float]]) -> SparseRows:
    starts = torch.tensor([0, *map(len, rows)]).cumsum(0)
    ids = [token for row in rows for token in row]
    values = [value for row in rows for value in row.values()]
    room = [0] * 3  # means nothing
    return SparseRows(
        starts.int().to(DEVICE),
        torch.tensor([*ids, *room], dtype=torch.int32, device=DEVICE),
        torch.tensor([*values, *room], dtype=torch.float32, device=DEVICE),
    )


def adjustments(rows: int, vocab: int) -> Adjustments:
    """Row 0 has nothing; the others more and more."""
    chance = generator(3)
    bias = [{}, {5: -math.inf}, *({7 * row: 2.5, row: -math.inf} for row in range(2, rows))]
    seen = [
        {} if row == 0 else {token: float(token % 3) for token in range(0, vocab, 8 - min(row, 7))}
        for row in range(rows)
    ]

    def each(low: float, high: float) -> torch.Tensor:
        return low + (high - low) * torch.rand(rows, generator=chance, device=DEVICE)

    words = torch.randint(
        -(2**31), 2**31 - 1, (2, (vocab - 40) // 32), dtype=torch.int32, generator=chance,
        device=DEVICE,
    )  # fmt: skip
    mask = torch.tensor([-1, 0, 1, *[-1] * (rows - 3)], dtype=torch.int32, device=DEVICE)
    penalties = Penalties(sparse(seen), each(0.5, 2.0), each(-1.0, 1.0), each(-1.0, 1.0))
    return Adjustments(sparse(bias), penalties, Grammar(words, mask))


def test_adjusted_logits_are_those_of_the_reference() -> None:
    logits = logits_of(5, 1500)
    before = logits.clone()
    what = adjustments(5, 1500)
    with races():
        got = adjust_triton(logits, what)
    wanted = adjust_reference(logits, what)
    torch.testing.assert_close(got, wanted, rtol=1e-6, atol=1e-6)
    assert torch.equal(logits, before)
    assert got[1].isinf().sum() > 600  # the grammar's, and what is beyond its words
    assert torch.equal(got[0], logits[0])


@pytest.mark.parametrize("part", ["bias", "penalties", "grammar"])
def test_each_adjustment_alone(part: str) -> None:
    logits, every = logits_of(4, 400), adjustments(4, 400)
    what = Adjustments(**{part: getattr(every, part)})
    torch.testing.assert_close(
        adjust_triton(logits, what), adjust_reference(logits, what), rtol=1e-6, atol=1e-6
    )


def test_sampling_is_of_what_adjustments_leave() -> None:
    logits, what, some = logits_of(4, 400), adjustments(4, 400), params(4, temperature=0.9)
    got, wanted = (function(logits, some, what) for function in (sample_triton, sample_reference))
    assert torch.equal(got.tokens, wanted.tokens)
    assert torch.equal(got.status, wanted.status)


def test_whose_words_leave_nothing_is_told_apart_from_whose_model_gave_nothing() -> None:
    logits = logits_of(3, 64)
    logits[2, 3] = math.nan
    everything = dict.fromkeys(range(64), -math.inf)
    what = Adjustments(bias=sparse([{}, everything, everything]))
    for function in (sample_triton, sample_reference):
        assert function(logits, params(3), what).status.tolist() == [FINE, NOTHING_LEFT, NOT_FINITE]
