"""Each row of a step is sampled by its own request's words, as if it were alone."""

import math
import sys
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from servekit.engine.draw import Uniforms
from servekit.engine.messages import Sampling
from servekit.engine.sampler import NOT_FINITE, NOTHING_LEFT, sample
from servekit.engine.sampling_state import SamplingState
from servekit.errors import RequestError
from servekit.kernels.sample import sample_triton

VOCAB = 12


@pytest.fixture(autouse=True, params=["torch", "triton"])
def by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """All of this file holds of torch, one operation after another, and of the kernel."""
    if request.param == "triton":
        in_one = partial(sample, kernel=sample_triton)
        monkeypatch.setattr(sys.modules[__name__], "sample", in_one)
    return request.param


def state(
    *, prompt: tuple[int, ...] = (1,), output: tuple[int, ...] = (), **words: Any
) -> SamplingState:
    made = SamplingState(list(prompt), Sampling(**{"max_tokens": 9, "seed": 7} | words), VOCAB)
    for token in output:
        made.append(token)
    return made


def random_logits(rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 2


def reference_probs(logits: torch.Tensor, of: SamplingState) -> np.ndarray:
    """The distribution of one row, word by word, in float64 and plain Python."""
    words = of.sampling
    values = logits.double().numpy().copy()
    for token, bias in words.logit_bias.items():
        values[token] += bias
    if len(of.output) < words.min_tokens:
        values[words.stop_token_ids] = -np.inf
    for token in {*of.prompt, *of.output}:
        penalty = words.repetition_penalty
        values[token] = values[token] / penalty if values[token] > 0 else values[token] * penalty
    for token in set(of.output):
        values[token] -= words.frequency_penalty * of.output.count(token) + words.presence_penalty
    if words.temperature == 0:
        return np.eye(VOCAB)[values.argmax()]
    probs = np.exp((values - values.max()) / words.temperature)
    order = np.argsort(-probs)
    if words.top_k:
        probs[order[words.top_k :]] = 0
    probs /= probs.sum()
    before = np.cumsum(probs[order]) - probs[order]
    probs[order[before >= words.top_p]] = 0
    probs[probs < words.min_p * probs.max()] = 0
    return probs / probs.sum()


WORDS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.0, "logit_bias": {3: 50.0}},
    {"temperature": 0.0, "repetition_penalty": 1.7, "prompt": (1, 2, 3), "output": (4, 4, 5)},
    {"temperature": 1.0},
    {"temperature": 0.3, "top_k": 4},
    {"temperature": 1.5, "top_p": 0.6},
    {"temperature": 2.0, "min_p": 0.3},
    {"temperature": 1.3, "top_k": 7, "top_p": 0.8, "min_p": 0.1},
    {"presence_penalty": 1.5, "frequency_penalty": 0.7, "output": (4, 4, 5)},
    {"repetition_penalty": 2.5, "prompt": (1, 2, 3, 2), "output": (4, 4, 11)},
    {"min_tokens": 3, "stop_token_ids": [0, 2, 5], "output": (4, 4), "logit_bias": {2: 99.0}},
    {"logit_bias": {0: -100.0, 1: 2.5}, "top_p": 0.9},
]


def test_a_row_is_drawn_from_the_distribution_that_its_words_describe(by: str) -> None:
    """The draw is inverse CDF in token order, so the reference foretells each token."""
    logits = random_logits(len(WORDS))
    for seed in range(40 if by == "torch" else 8):
        states = [state(seed=seed, **words) for words in WORDS]
        drawn = sample(logits, states)
        for row, made in enumerate(states):
            running = reference_probs(logits[row], made).cumsum()
            expected = int(np.searchsorted(running, made.uniform * running[-1], side="right"))
            assert drawn.tokens[row] == expected, (WORDS[row], seed)
        assert not drawn.failed


@pytest.mark.parametrize("temperature", [1e-46, 5e-324, 1e-30])
def test_a_temperature_near_zero_takes_the_best_token(temperature: float):
    logits = random_logits(3)
    drawn = sample(logits, [state(temperature=temperature) for _ in range(3)])
    assert drawn.tokens == logits.argmax(-1).tolist()


@pytest.mark.parametrize("by", ["torch"], indirect=True)  # its kernel has tests of its own
def test_seeds_draw_tokens_as_often_as_they_are_probable():
    logits = random_logits(1)
    draws = 4000
    states = [state(seed=seed, temperature=1.2, top_p=0.95) for seed in range(draws)]
    counts = np.bincount(sample(logits.expand(draws, VOCAB), states).tokens, minlength=VOCAB)
    expected = reference_probs(logits[0], states[0]) * draws
    possible = expected > 0
    assert not counts[~possible].any()
    chi_square = ((counts - expected)[possible] ** 2 / expected[possible]).sum()
    assert chi_square < 30, "p is below 0.002 for 11 degrees of freedom or fewer"


def test_a_seeded_draw_does_not_depend_on_the_batch():
    logits = random_logits(len(WORDS), seed=3)
    states = [state(seed=5, **words) for words in WORDS]
    together = sample(logits, states).tokens
    alone = [sample(logits[i : i + 1], [made]).tokens[0] for i, made in enumerate(states)]
    backwards = sample(logits.flip(0), states[::-1]).tokens[::-1]
    assert together == alone == backwards


def test_a_step_run_again_draws_the_same_token():
    logits = random_logits(1)
    made = state(temperature=1.5, frequency_penalty=1.0, output=(3, 3, 8))
    first = sample(logits, [made]).tokens
    made.append(first[0])
    made.append(2)
    made.rewind(3)
    assert made.output == [3, 3, 8]
    assert sample(logits, [made]).tokens == first


def test_uniform_numbers_are_a_function_of_seed_and_index():
    forwards, backwards = Uniforms(11), Uniforms(11)
    there = [forwards[index] for index in range(200)]
    back = [backwards[index] for index in reversed(range(200))]
    assert there == back[::-1]
    assert len(set(there)) == 200
    assert all(0 <= number < 1 for number in there)
    assert Uniforms(12)[0] != there[0]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_with_a_bad_logit_fails_alone(bad: float, temperature: float):
    logits = random_logits(3)
    states = [state(temperature=temperature, seed=seed) for seed in range(3)]
    clean = sample(logits, states)
    logits[1, 4] = bad
    drawn = sample(logits, states)
    assert drawn.failed == {1: NOT_FINITE}
    assert (drawn.tokens[0], drawn.tokens[2]) == (clean.tokens[0], clean.tokens[2])


def test_a_row_whose_logits_are_all_minus_infinity_fails_alone():
    logits = random_logits(2)
    logits[0] = -math.inf
    assert sample(logits, [state(), state()]).failed == {0: NOT_FINITE}


def test_a_row_that_may_choose_nothing_fails_alone():
    nothing = state(min_tokens=1, stop_token_ids=list(range(VOCAB)))
    assert sample(random_logits(2), [nothing, state()]).failed == {0: NOTHING_LEFT}


def test_an_exception_for_one_row_fails_that_row_alone():
    logits = random_logits(3)
    states = [state(seed=seed) for seed in range(3)]
    clean = sample(logits, states)
    states[1].sampling = Sampling(max_tokens=1, seed=1, top_k="five")  # type: ignore[arg-type]
    drawn = sample(logits, states)
    assert list(drawn.failed) == [1]
    assert "sampling failed" in drawn.failed[1]
    assert (drawn.tokens[0], drawn.tokens[2]) == (clean.tokens[0], clean.tokens[2])


@pytest.mark.parametrize(
    ("prompt", "bias", "message"),
    [
        ((1, 12), {}, "prompt has token id 12, but the model's ids are 0 to 11"),
        ((-1,), {}, "prompt has token id -1"),
        ((1,), {40: 1.0}, "logit_bias has token id 40"),
    ],
)
def test_a_token_id_outside_the_vocabulary_is_refused(
    prompt: tuple[int, ...], bias: dict[int, float], message: str
):
    with pytest.raises(RequestError, match=message):
        state(prompt=prompt, logit_bias=bias)


def test_logprobs_are_of_the_raw_distribution_best_first():
    logits = random_logits(2)
    words = {"logprobs": 3, "logit_bias": {6: 100.0}, "temperature": 0.0}
    drawn = sample(logits, [state(**words), state()])
    raw = logits.log_softmax(-1)
    assert drawn.tokens[0] == 6
    assert list(drawn.logprobs) == [0]
    assert drawn.logprobs[0].logprob == pytest.approx(raw[0, 6].item())
    best = raw[0].topk(3)
    assert [token for token, _ in drawn.logprobs[0].top] == best.indices.tolist()
    assert [value for _, value in drawn.logprobs[0].top] == pytest.approx(best.values.tolist())


def test_logprobs_zero_reports_the_chosen_token_only():
    drawn = sample(random_logits(1), [state(logprobs=0)])
    assert drawn.logprobs[0].top == []


@pytest.mark.parametrize("by", ["torch"], indirect=True)  # its kernel has tests of its own
def test_a_nucleus_wider_than_the_first_look_is_found_by_the_second():
    """A flat distribution over many tokens: top_p 0.5 keeps half of them, all alike in rank."""
    vocab = 1000
    logits = torch.linspace(0, 0.001, vocab)[None]
    states = [
        SamplingState([1], Sampling(max_tokens=1, seed=seed, top_p=0.5), vocab)
        for seed in range(300)
    ]
    tokens = sample(logits.expand(300, vocab), states).tokens
    assert min(tokens) >= 499
    assert max(tokens) > 900
    assert min(tokens) < 560


def test_the_logits_are_left_as_they_were():
    logits = random_logits(len(WORDS))
    before = logits.clone()
    sample(logits, [state(**words) for words in WORDS])
    assert torch.equal(logits, before)
