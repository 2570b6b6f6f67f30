"""A word more means here what it means on the command line."""

import pytest

from servekit.config.compose import load
from servekit.planner.advice.change import Change, starting_point
from tests.conftest import tiny_config

WORDS = (
    "model=llama3_8b hardware=l4",
    "+recipe=chat_llama8b",
    "+recipe=chat_llama8b hardware.memory_gib=60 scheduler.max_num_seqs=128",
    "+recipe=batch_llama8b kv.dtype=fp8 kv.memory_gib=10",
    "model=gemma3_27b hardware=h100 parallelism=tp2 slo=chat",
    "model=deepseek_v3 hardware=h200 parallelism=tp8 kv.hybrid=false",
)
CHANGES = (
    Change("hardware", "b200"),
    Change("hardware", "l40s"),
    Change("speculative", "ngram"),
    Change("model.dtype", "float16"),
    Change("scheduler.max_num_batched_tokens", 512),
    Change("scheduler.max_num_seqs", 64),
    Change("parallelism.pipeline", 2),
    Change("quantization.weights", "fp8"),
    Change("kv.dtype", "int8"),
)


@pytest.mark.parametrize("words", WORDS)
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.word)
def test_a_change_is_what_composing_makes_of_the_word(words: str, change: Change) -> None:
    composed = load(words.split())
    there = starting_point(composed.config, composed.origins).then(change)
    wanted = load([*words.split(), change.word]).config
    assert (composed.config if there is None else there.config) == wanted


def test_two_changes_are_what_composing_makes_of_both_words() -> None:
    words = ["model=llama3_8b", "hardware=l4"]
    composed = load(words)
    first = starting_point(composed.config, composed.origins).then(Change("hardware", "h200"))
    assert first is not None
    second = first.then(Change("model.dtype", "float16"))
    assert second is not None
    assert second.config == load([*words, "hardware=h200", "model.dtype=float16"]).config
    assert second.config.kv.dtype == "float16"


def test_what_is_no_valid_configuration_is_nowhere() -> None:
    point = starting_point(tiny_config())
    assert point.then(Change("parallelism.tensor", 16)) is None
    assert point.then(Change("model.max_model_len", 100_000)) is None


def test_a_key_is_changed_once_and_to_something_else() -> None:
    point = starting_point(tiny_config())
    assert point.then(Change("scheduler.max_num_seqs", 8)) is None
    there = point.then(Change("scheduler.max_num_seqs", 4))
    assert there is not None
    assert there.then(Change("scheduler.max_num_seqs", 2)) is None


def test_without_origins_every_value_counts_as_given() -> None:
    composed = load(["model=llama3_8b", "hardware=l4"])
    there = starting_point(composed.config).then(Change("model.dtype", "float16"))
    assert there is not None
    assert there.config.kv.dtype == "bfloat16"
