"""Greedy tokens are those of transformers on the same weights, whatever else the engine does."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from servekit.config.compose import load
from servekit.engine.inputs import build_inputs
from servekit.engine.local import Generated, LocalEngine
from servekit.engine.messages import Sampling
from servekit.model.tokenizer import load_tokenizer
from servekit.scheduler.batch import Batch, Row
from tests.conftest import fetched
from tests.truth.prompts import all_prompts
from tests.truth.reference import TIE, Reference

OUTPUT_TOKENS = 64
GREEDY = Sampling(max_tokens=OUTPUT_TOKENS, seed=0, temperature=0.0)
NO_REUSE = "kv.prefix_caching=false"

pytestmark = [pytest.mark.weights, pytest.mark.timeout(1200)]


class Subject:
    """A model, its reference, its prompts, and which outputs the reference has judged so far."""

    def __init__(self, recipe: str, *, whole: bool) -> None:
        self.recipe = recipe
        self.path: Path = fetched(recipe)
        config = load([f"+recipe={recipe}"]).config
        tokenizer = load_tokenizer(self.path, config.model.chat_template)
        self.prompts = all_prompts(tokenizer)
        self.whole = whole
        self.sample = self.prompts if whole else self.prompts[::3]
        self.reference = Reference(self.path)
        self.judged: set[tuple[int, ...]] = set()
        self.ties = 0

    def engine(self, *words: str) -> LocalEngine:
        ours = [f"+recipe={self.recipe}", "model.dtype=float32", "model.max_model_len=2048"]
        ours += ["scheduler.max_num_seqs=16"]
        return LocalEngine.load(load([*ours, *words]).config, self.path)

    def judge(self, prompts: list[list[int]], outputs: list[Generated]) -> None:
        """Every token is the reference's best, or within a near tie of it; ties are printed."""
        for prompt, output in zip(prompts, outputs, strict=True):
            assert output.error is None
            assert len(output.tokens) == OUTPUT_TOKENS
            whole = (*prompt, *output.tokens)
            if whole in self.judged:
                continue
            self.judged.add(whole)
            for difference in self.reference.differences(prompt, output.tokens):
                print(f"{self.recipe}, prompt of {len(prompt)} tokens: {difference}")
                self.ties += 1
                assert difference.gap < TIE
        print(f"{self.recipe}: {self.ties} near ties in {len(self.judged)} distinct outputs")


@pytest.fixture(scope="module", params=["chat_smollm2", "chat_gemma3_270m"])
def subject(request: Any) -> Subject:
    return Subject(request.param, whole=request.config.getoption("--whole-truth"))


def generate(engine: LocalEngine, prompts: list[list[int]]) -> list[Generated]:
    return engine.generate(prompts, [GREEDY] * len(prompts))


def test_one_at_a_time(subject: Subject) -> None:
    engine = subject.engine("scheduler.max_num_seqs=1", NO_REUSE)
    subject.judge(subject.sample, generate(engine, subject.sample))


def test_sixteen_at_once_and_again_from_the_prefix_cache(subject: Subject) -> None:
    engine = subject.engine()
    first = generate(engine, subject.prompts)
    assert not any(output.cached_tokens for output in first[:8])
    subject.judge(subject.prompts, first)
    again = generate(engine, subject.sample)
    longer_than_a_block = [
        output for output, prompt in zip(again, subject.sample, strict=True) if len(prompt) > 17
    ]
    assert all(output.cached_tokens > 0 for output in longer_than_a_block)
    subject.judge(subject.sample, again)


def test_prompts_computed_in_chunks_of_thirty_two(subject: Subject) -> None:
    engine = subject.engine("scheduler.max_num_batched_tokens=32", NO_REUSE)
    subject.judge(subject.sample, generate(engine, subject.sample))


def test_requests_preempted_and_computed_again(subject: Subject) -> None:
    short = [prompt for prompt in subject.sample if len(prompt) < 380]
    ways = [(832, short)]
    if subject.whole:
        ways.append((1600, [subject.prompts[number] for number in (20, 22, 21, 23)]))
    for capacity, prompts in ways:
        words = (f"kv.capacity_tokens={capacity}", "scheduler.reserve=greedy", NO_REUSE)
        engine = subject.engine(*words)
        outputs = generate(engine, prompts)
        assert sum(output.preemptions for output in outputs) >= 1
        subject.judge(prompts, outputs)
        assert engine.stats is not None
        assert engine.stats.blocks_free == engine.stats.blocks_total


def test_generate_itself_says_the_same(subject: Subject) -> None:
    """A handful through `generate`, to judge the judging by single forward passes."""
    few = subject.prompts if subject.whole else subject.prompts[4:7]
    for prompt, output in zip(few, generate(subject.engine(), few), strict=True):
        expected = subject.reference.generate(prompt, OUTPUT_TOKENS)
        if output.tokens != expected:
            pairs = enumerate(zip(output.tokens, expected, strict=True))
            parted = next(at for at, (ours, theirs) in pairs if ours != theirs)
            (difference,) = subject.reference.differences(prompt, output.tokens[: parted + 1])
            print(f"{subject.recipe}: generate parts from us at {difference}")
            assert difference.gap < TIE


def decoder_logits(engine: LocalEngine, ids: list[int]) -> torch.Tensor:
    """Float32 [len(ids), vocab]: our decoder's, after each of these tokens."""
    cache = engine.runner.cache
    count = 1 + len(ids) // cache.block_size
    tables = tuple([1 + count * g + n for n in range(count)] for g in range(cache.num_groups))
    batch = Batch.of(0, [Row(0, 0, ids, tables, samples=True)])
    inputs = build_inputs(batch, cache.block_size, "cpu", lambda *_: 0)
    return engine.runner.decoder(replace(inputs, sample_at=torch.arange(len(ids))), cache)


def test_bfloat16_strays_from_float32_no_further_than_the_reference_does(subject: Subject) -> None:
    """Root mean square over vocabulary and positions, at most 1.1 times that of transformers.

    Many positions, for at a single one either may be several times the other: a rounding at the
    first token, whose activations are huge, moves all that follows.
    """
    engine = subject.engine("model.dtype=bfloat16")
    theirs = Reference(subject.path, torch.bfloat16)
    ours_off = theirs_off = 0.0
    prompts = [prompt for prompt in subject.prompts[2:17] if len(prompt) < 220]
    for prompt in prompts:
        truth = subject.reference.logits_after_each(prompt)
        ours_off += float((decoder_logits(engine, prompt) - truth).pow(2).mean(-1).sum())
        theirs_off += float((theirs.logits_after_each(prompt) - truth).pow(2).mean(-1).sum())
    rms = (ours_off / sum(map(len, prompts))) ** 0.5
    ratio = (ours_off / theirs_off) ** 0.5
    print(f"{subject.recipe}: rms {rms:.3f} from float32, {ratio:.2f} of the reference's")
    assert ratio < 1.1
