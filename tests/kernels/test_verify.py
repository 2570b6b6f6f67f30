"""Guesses that stand, and the token after them: as if each token had been drawn alone."""

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch

from servekit.kernels.draw import DrawTensors
from servekit.kernels.sample import FINE, NOT_FINITE
from servekit.kernels.verify import Drafts, Verified, verify_reference, verify_triton
from tests.kernels.devices import DEVICE, generator
from tests.kernels.interpreter import races
from tests.kernels.test_sample import SMALL, logits_of, params

Verify = Callable[..., Verified]
BOTH = pytest.mark.parametrize("verify", [verify_reference, verify_triton])


def drafts_of(
    guesses: list[list[int]], probs: torch.Tensor | None = None, *, seed: int = 1, room: int = 0
) -> Drafts:
    """Each request's guesses, and a row after them."""
    sizes = [len(own) + 1 for own in guesses]
    flat = [token for own in guesses for token in [*own, -1]]
    accept = torch.rand(len(flat), dtype=torch.float64, generator=generator(seed), device=DEVICE)
    return Drafts(
        starts=torch.tensor([0, *sizes], device=DEVICE).cumsum(0).int(),
        most=max(sizes) + room,
        tokens=torch.tensor(flat, dtype=torch.int32, device=DEVICE),
        accept=accept,
        probs=probs,
    )


def draft_probs(drafts: Drafts, vocab: int, seed: int = 2) -> torch.Tensor:
    """Where there is no guess they are NaN, which nobody may read."""
    rows = len(drafts.tokens)
    probs = logits_of(rows, vocab, seed, spread=1.5).softmax(-1)
    probs[drafts.tokens < 0] = torch.nan
    return probs


GUESSES = [[3, 7, 9], [], [250], [1, 1, 1, 1, 1, 2], [5, 6]]


@pytest.mark.parametrize("launch", [{}, SMALL], ids=["one block", "many blocks"])
@pytest.mark.parametrize("with_probs", [False, True], ids=["sure", "with probabilities"])
def test_the_kernel_says_what_the_reference_says(with_probs: bool, launch: dict[str, int]) -> None:
    for seed, filters in enumerate([{}, {"top_k": 30}, {"top_p": 0.8, "min_p": 0.01}]):
        drafts = drafts_of(GUESSES, seed=seed, room=seed)
        rows = len(drafts.tokens)
        if with_probs:
            probs = draft_probs(drafts, 300)
            drafts = Drafts(drafts.starts, drafts.most, drafts.tokens, drafts.accept, probs)
        logits = logits_of(rows, 300, seed)
        # what is guessed is likely, so that some guesses stand
        has = drafts.tokens >= 0
        logits[has.nonzero()[:, 0], drafts.tokens[has].long()] += 8.0
        some = params(
            rows, temperature=[0.0 if row % 5 == 4 else 0.9 for row in range(rows)], **filters
        )
        with races():
            got = verify_triton(logits, some, drafts, **launch)
        wanted = verify_reference(logits, some, drafts)
        for mine, theirs in zip(got, wanted, strict=True):
            assert torch.equal(mine, theirs)
        assert 0 < int(got.accepted.sum()) < int(has.sum())


@BOTH
def test_greedy_guesses_stand_while_they_are_the_best(verify: Verify) -> None:
    logits = torch.zeros(8, 50, device=DEVICE)
    for row, best in enumerate([10, 11, 12, 13, 20, 21, 22, 30]):
        logits[row, best] = 1.0
    drafts = drafts_of([[10, 11, 5], [20, 21], []])
    got = verify(logits, params(8, temperature=0.0), drafts)
    assert got.accepted.tolist() == [2, 2, 0]
    assert got.tokens.tolist() == [[10, 11, 12, -1], [20, 21, 22, -1], [30, -1, -1, -1]]


@BOTH
def test_a_row_that_is_no_number_ends_its_request_alone(verify: Verify) -> None:
    logits = torch.zeros(6, 40, device=DEVICE)
    logits[:, 4] = 30.0
    logits[1, 0] = torch.nan
    got = verify(logits, params(6), drafts_of([[4, 4], [4, 4]]))
    assert got.status.tolist() == [NOT_FINITE, FINE]
    assert got.accepted.tolist() == [1, 2]
    assert got.tokens[1].tolist() == [4, 4, 4]


@BOTH
@pytest.mark.parametrize("with_probs", [False, True], ids=["sure", "with probabilities"])
def test_what_comes_first_has_the_distribution_of_the_model(
    verify: Verify, with_probs: bool
) -> None:
    """The guess where it stands, else what is drawn: chi-square of six probabilities, 20.5 is
    exceeded once in a thousand."""
    count, vocab = (4000 if verify is verify_reference else 300), 6
    row = logits_of(1, vocab, 7, spread=1.0)
    draft = logits_of(1, vocab, 8, spread=1.0)[0].softmax(-1)
    guesses = torch.multinomial(draft, count, replacement=True, generator=generator(4))
    if not with_probs:
        guesses = guesses * 0 + 2
    drafts = drafts_of([[int(token)] for token in guesses])
    if with_probs:
        own = draft.expand(2 * count, -1).contiguous()
        drafts = Drafts(drafts.starts, drafts.most, drafts.tokens, drafts.accept, own)
    logits = row.expand(2 * count, -1).contiguous()
    got = verify(logits, params(2 * count, temperature=0.9, seed=9), drafts)
    seen = got.tokens[:, 0].bincount(minlength=vocab)
    expected = count * (row[0].double() / 0.9).softmax(0)
    assert float(((seen - expected) ** 2 / expected).sum()) < 20.5
    assert 0 < int(got.accepted.sum()) < count


def test_what_filters_forbid_does_not_stand() -> None:
    logits = torch.zeros(40, 20, device=DEVICE)
    logits[:, 3] = 2.0
    some = params(40, top_k=1)
    got = verify_triton(logits, some, drafts_of([[5]] * 20))
    assert got.tokens[:, 0].tolist() == [3] * 20
    assert got.accepted.tolist() == [0] * 20


def test_a_result_does_not_depend_on_who_else_is_there() -> None:
    drafts = drafts_of(GUESSES)
    rows = len(drafts.tokens)
    logits, some = logits_of(rows, 300), params(rows, temperature=1.4)
    together = verify_triton(logits, some, drafts)
    starts = drafts.starts.tolist()
    for place, (first, end) in enumerate(pairwise(starts)):
        own = slice(first, end)
        alone = verify_triton(
            logits[own],
            DrawTensors(*(getattr(some, name)[own] for name in DrawTensors.__slots__)),
            Drafts(
                torch.tensor([0, end - first], dtype=torch.int32, device=DEVICE),
                drafts.most, drafts.tokens[own], drafts.accept[own],
            ),
        )  # fmt: skip
        assert torch.equal(alone.tokens[0], together.tokens[place])


def test_no_requests_are_no_results() -> None:
    none = Drafts(
        torch.zeros(1, dtype=torch.int32, device=DEVICE), 3, params(0).top_k, params(0).uniform
    )
    assert verify_triton(logits_of(0, 30), params(0), none).tokens.shape == (0, 3)
