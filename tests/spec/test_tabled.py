"""What is looked up is what the model says, within a thousandth."""

import math
import random

import pytest

from servekit.config.compose import load
from servekit.spec.latency import StepModel, step_model
from servekit.spec.tabled import Tabled

SERVED = {
    "dense": ("+recipe=chat_llama8b",),
    "windows": ("+recipe=chat_llama8b", "model=gemma3_27b"),
    "experts, four ranks": ("+recipe=chat_llama8b", "model=mixtral_8x7b", "parallelism=tp4"),
    "drafts": ("+recipe=chat_llama8b", "speculative=ngram"),
    "processor": ("+recipe=chat_smollm2",),
}


@pytest.fixture(params=SERVED.values(), ids=SERVED.keys())
def model(request: pytest.FixtureRequest) -> StepModel:
    return step_model(load(list(request.param)).config)


def test_steps_of_decodes(model: StepModel) -> None:
    tabled, chance = Tabled(model), random.Random(9)
    for _ in range(200):
        rows, context = chance.randint(1, 600), math.exp(chance.uniform(0, 9.7))
        expected = model.seconds(rows, context)
        assert tabled.seconds(rows, context) == pytest.approx(expected, rel=1e-3)


def test_steps_with_prompts(model: StepModel) -> None:
    tabled, chance = Tabled(model), random.Random(10)
    for _ in range(200):
        rows, context = chance.randint(0, 300), math.exp(chance.uniform(0, 9.7))
        chunks = [
            (chance.randint(1, 4000), chance.choice([0, chance.randint(0, 30_000)]))
            for _ in range(chance.randint(1, 4))
        ]
        expected = model.seconds(rows, context if rows else 0.0, chunks)
        found = tabled.seconds(rows, context if rows else 0.0, chunks)
        assert found == pytest.approx(expected, rel=1e-3)


def test_an_empty_step_takes_no_time(model: StepModel) -> None:
    tabled = Tabled(model)
    assert tabled.seconds(0, 0) == 0.0
    assert tabled.seconds(0, 0, [(0, 5)]) == 0.0


def test_a_chunk_of_no_tokens_is_a_row_at_most(model: StepModel) -> None:
    tabled = Tabled(model)
    expected = model.seconds(3, 100, [(0, 50)])
    assert tabled.seconds(3, 100, [(0, 50)]) == pytest.approx(expected, rel=1e-3)
