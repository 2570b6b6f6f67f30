"""Guessing tokens ahead costs reading, and brings what holds."""

import pytest

from servekit.spec.latency import roofline, step_model
from tests.spec.served import DRAFT, MTP, NGRAM, served


@pytest.mark.parametrize(
    ("acceptance", "guesses", "tokens"), [(0.6, 3, 2.18), (0.7, 7, 3.14), (0.8, 5, 3.69), (1, 4, 5)]
)
def test_guesses_that_hold_are_tokens_of_the_step(
    acceptance: float, guesses: int, tokens: float
) -> None:
    speculative = {**NGRAM, "acceptance": acceptance, "tokens": guesses}
    step = step_model(served("llama3_8b", "h100", speculative=speculative))
    assert step.tokens_per_step == pytest.approx(tokens, abs=0.005)


def test_guessing_from_earlier_text_costs_only_the_check() -> None:
    step = step_model(served("llama3_8b", "h100", speculative=NGRAM))
    assert step.parts(1, 500)["draft"] == 0
    assert step.seconds(1, 500) < 1.1 * step_model(served("llama3_8b", "h100")).seconds(1, 500)


def test_checking_guesses_costs_as_much_as_so_many_tokens_when_arithmetic_rules() -> None:
    plain = roofline(served("llama3_8b", "h100"))
    guessed = roofline(served("llama3_8b", "h100", speculative=NGRAM))
    assert guessed.seconds(1000, 1) == pytest.approx(4 * plain.seconds(1000, 1), rel=0.01)


def test_a_small_model_is_read_once_for_each_guess() -> None:
    bound = roofline(served("llama3_8b", "h100", speculative=DRAFT))
    assert bound.parts(1, 500)["draft"] == pytest.approx(3 * (2e9 + 500 * 32768) / 3350e9)


def test_extra_layers_of_the_model_guess_with_its_head() -> None:
    hardware = {"memory_gib": 2000.0}
    config = served("deepseek_v3", "h200", 8, speculative=MTP, hardware=hardware)
    draft = roofline(config).parts(1, 500)["draft"]
    head = 129280 / 8 * 7168 * 2 / 4800e9
    assert head < draft < 0.1 * roofline(config).seconds(1, 500)


def test_a_small_model_is_shared_out_with_its_keys_and_values() -> None:
    alone = roofline(served("llama3_8b", "h100", speculative=DRAFT))
    shared = roofline(served("llama3_8b", "h100", 2, speculative=DRAFT))
    assert shared.parts(64, 500)["draft"] == pytest.approx(alone.parts(64, 500)["draft"] / 2)
