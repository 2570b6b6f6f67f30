"""The few keys that may say "auto", and what it means there."""

import json
from pathlib import Path

import pytest

from servekit.config import machine
from servekit.config.compose import Composed, load
from servekit.config.derive import RULES
from servekit.config.describe import field_at
from servekit.config.problems import InvalidConfig

CONFIG = {
    "model_type": "llama",
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "torch_dtype": "float16",
}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


def from_config(path: Path, *words: str) -> Composed:
    return load(["model=from_config", f"model.config={path}", *words])


def test_a_rule_is_for_a_key_of_the_schema() -> None:
    assert all(field_at(key, {}) is not None for key in RULES)
    assert all(field_at(rule.reads, {}) is not None for rule in RULES.values() if rule.reads)


def test_the_kv_cache_is_stored_in_the_dtype_of_the_model() -> None:
    composed = load(["model.dtype=float32"])
    assert composed.config.kv.dtype == "float32"
    assert composed.origins["kv.dtype"].where == "the same as model.dtype=float32"


def test_a_kv_dtype_that_is_given_stays() -> None:
    assert load(["kv.dtype=float32"]).config.kv.dtype == "float32"
    assert load(["kv.dtype=float32"]).config.model.dtype == "bfloat16"


def test_the_longest_request_is_what_the_model_was_made_for() -> None:
    assert load(["model=qwen3_8b", "hardware=h100"]).config.model.max_model_len == 40960


def test_memory_and_threads_of_a_cpu_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "memory_bytes", lambda: 3 * 1024**3 + 1)
    monkeypatch.setattr(machine, "usable_cores", lambda *_: 5)
    hardware = load([]).config.hardware
    assert (hardware.memory_gib, hardware.threads) == (3.0, 5)


def test_memory_of_a_gpu_cannot_be_measured_here() -> None:
    with pytest.raises(InvalidConfig, match=r"for hardware\.kind=cpu only"):
        load(["hardware=h100", "hardware.memory_gib=auto"])


def test_a_checkpoint_folder_says_everything(checkpoint: Path) -> None:
    model = from_config(checkpoint).config.model
    assert model.name == "my-model"
    assert model.source == f"file:{checkpoint}"
    assert model.dtype == "float16"
    assert model.max_model_len == 512
    assert model.shape.layers == 4


def test_the_config_file_itself_may_be_named(checkpoint: Path) -> None:
    model = from_config(checkpoint / "config.json").config.model
    assert (model.name, model.source) == ("my-model", f"file:{checkpoint}")


def test_what_a_checkpoint_says_may_be_overridden(checkpoint: Path) -> None:
    words = ["model.name=mine", "model.source=hf:a/b", "model.max_model_len=100"]
    model = from_config(checkpoint, *words, "model.dtype=float32").config.model
    assert (model.name, model.source, model.max_model_len) == ("mine", "hf:a/b", 100)
    assert model.dtype == "float32"


def test_a_derived_shape_says_which_file_it_was_read_from(checkpoint: Path) -> None:
    origin = from_config(checkpoint).origins["model.shape.layers"]
    assert origin.where == f"read from {checkpoint}"


def test_a_key_of_the_shape_given_by_hand_stays_and_the_rest_is_read(checkpoint: Path) -> None:
    read = from_config(checkpoint).config.model.shape
    tied = not read.tie_word_embeddings
    given = from_config(checkpoint, f"model.shape.tie_word_embeddings={str(tied).lower()}")
    changed = read.model_copy(update={"tie_word_embeddings": tied})
    assert given.config.model.shape == changed
    assert given.origins["model.shape.tie_word_embeddings"].kind == "word"


def test_from_config_without_a_config_asks_for_it_once() -> None:
    with pytest.raises(InvalidConfig, match=r"model.config: must be given") as caught:
        load(["model=from_config"])
    assert len(caught.value.problems) == 1


def test_a_checkpoint_that_is_not_supported_is_one_problem(checkpoint: Path) -> None:
    (checkpoint / "config.json").write_text(json.dumps({**CONFIG, "model_type": "zamba2"}))
    with pytest.raises(InvalidConfig, match="'zamba2'") as caught:
        from_config(checkpoint)
    assert len(caught.value.problems) == 1


def test_a_checkpoint_that_is_not_there_is_one_problem(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="No such file") as caught:
        from_config(tmp_path / "none")
    assert [problem.path for problem in caught.value.problems] == ["model.config"]


def test_auto_without_a_file_to_read_says_what_is_needed() -> None:
    with pytest.raises(InvalidConfig, match=r"reads it from model\.config"):
        load(["model.source=auto"])
