"""Greedy tokens are those of transformers on the same weights, whatever else the engine does."""

from pathlib import Path
from typing import Any

import pytest

from servekit.config.compose import load
from servekit.engine.local import Generated, LocalEngine
from servekit.engine.messages import Sampling
from servekit.model.tokenizer import load_tokenizer
from tests.conftest import fetched
from tests.truth.prompts import all_prompts
from tests.truth.reference import TIE, Reference

OUTPUT_TOKENS = 64
GREEDY = Sampling(max_tokens=OUTPUT_TOKENS, seed=0, temperature=0.0)

pytestmark = [pytest.mark.weights, pytest.mark.timeout(900)]


class Subject:
    """A model, its reference, its prompts, and what the reference has said so far."""

    def __init__(self, recipe: str) -> None:
        self.recipe = recipe
        self.path: Path = fetched(recipe)
        config = load([f"+recipe={recipe}"]).config
        tokenizer = load_tokenizer(self.path, config.model.chat_template)
        self.prompts = all_prompts(tokenizer)
        self.reference = Reference(self.path)
        self.judged: set[tuple[int, tuple[int, ...]]] = set()
        self.ties = 0

    def generate(self, *words: str, rounds: int = 1) -> list[Generated]:
        """All prompts through an engine in float32; the outputs of the last round."""
        engine = self.engine(*words)
        for _ in range(rounds):
            outputs = engine.generate(self.prompts, [GREEDY] * len(self.prompts))
        return outputs

    def engine(self, *words: str) -> LocalEngine:
        float32 = [f"+recipe={self.recipe}", "model.dtype=float32", "model.max_model_len=2048"]
        return LocalEngine.load(load([*float32, *words]).config, self.path)

    def judge(self, outputs: list[Generated]) -> None:
        """Every token is the reference's best, or within a near tie of it; ties are printed."""
        for number, output in enumerate(outputs):
            assert output.error is None
            assert len(output.tokens) == OUTPUT_TOKENS
            key = (number, tuple(output.tokens))
            if key in self.judged:
                continue
            self.judged.add(key)
            for difference in self.reference.differences(self.prompts[number], output.tokens):
                print(f"{self.recipe} prompt {number}: {difference}")
                self.ties += 1
                assert difference.gap < TIE
        print(f"{self.recipe}: {self.ties} near ties in {len(self.judged)} distinct outputs")


@pytest.fixture(scope="module", params=["chat_smollm2", "chat_gemma3_270m"])
def subject(request: Any) -> Subject:
    return Subject(request.param)


def test_one_at_a_time(subject: Subject) -> None:
    outputs = subject.generate("scheduler.max_num_seqs=1", "kv.prefix_caching=false")
    subject.judge(outputs)


def test_sixteen_at_once(subject: Subject) -> None:
    outputs = subject.generate("scheduler.max_num_seqs=16")
    subject.judge(outputs)


def test_prompts_computed_in_chunks_of_thirty_two(subject: Subject) -> None:
    outputs = subject.generate("scheduler.max_num_seqs=16", "scheduler.max_num_batched_tokens=32")
    subject.judge(outputs)


def test_prompts_found_in_the_prefix_cache(subject: Subject) -> None:
    outputs = subject.generate("scheduler.max_num_seqs=16", rounds=2)
    long = [out for out, prompt in zip(outputs, subject.prompts, strict=True) if len(prompt) > 33]
    assert all(output.cached_tokens > 0 for output in long)
    subject.judge(outputs)


def test_requests_preempted_and_computed_again(subject: Subject) -> None:
    outputs = subject.generate(
        "scheduler.max_num_seqs=16", "kv.capacity_tokens=2048", "kv.prefix_caching=false"
    )
    assert sum(output.preemptions for output in outputs) >= 3
    subject.judge(outputs)


def test_generate_itself_says_the_same(subject: Subject) -> None:
    """A handful through `generate`, to judge the judging by single forward passes."""
    few = subject.prompts[:4]
    outputs = subject.engine().generate(few, [GREEDY] * len(few))
    for prompt, output in zip(few, outputs, strict=True):
        expected = subject.reference.generate(prompt, OUTPUT_TOKENS)
        same = next(
            (at for at, (a, b) in enumerate(zip(output.tokens, expected, strict=True)) if a != b),
            OUTPUT_TOKENS,
        )
        if same < OUTPUT_TOKENS:
            gap = subject.reference.differences(prompt, output.tokens[: same + 1])[-1].gap
            print(f"{subject.recipe}: generate parts at token {same}, gap {gap}")
            assert gap < TIE
