"""A folder of weights is read by its headers alone."""

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from servekit.errors import WeightsError
from servekit.planner.catalogue.checkpoint import checkpoint_page, read_safetensors

HEADER: dict[str, Any] = {
    "__metadata__": {"format": "pt"},
    "model.layers.0.mlp.up.weight": {"dtype": "BF16", "shape": [4, 3], "data_offsets": [0, 24]},
    "model.layers.1.mlp.up.weight": {"dtype": "BF16", "shape": [4, 3], "data_offsets": [24, 48]},
    "model.norm.weight": {"dtype": "F32", "shape": [3], "data_offsets": [48, 60]},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text('{"num_hidden_layers": 2, "architectures": ["X"]}')
    text = json.dumps(HEADER).encode()
    file = tmp_path / "model.safetensors"
    file.write_bytes(len(text).to_bytes(8, "little") + text + bytes(60))
    return tmp_path


def test_tensors_parameters_and_bytes_are_counted(folder: Path) -> None:
    found = read_safetensors(folder)
    assert (len(found.tensors), found.parameters, found.bytes) == (3, 27, 60)
    assert found.numbers == {"num_hidden_layers": 2}
    assert json.loads(json.dumps(found.to_json()))["tensors"][2]["shape"] == [3]


def test_layers_that_are_alike_share_a_line(folder: Path) -> None:
    console = Console(width=100, record=True, quiet=False, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(checkpoint_page(read_safetensors(folder)))
    lines = [line for line in console.export_text().splitlines() if "mlp.up" in line]
    (line,) = lines
    assert line.split() == ["model.layers.*.mlp.up.weight", "2", "BF16", "4", "x", "3", "0.0"]


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"neither a \.gguf file nor a folder with config\.json"):
        read_safetensors(tmp_path)


def test_a_file_cut_short_is_refused_by_name(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\xff" * 20)
    with pytest.raises(WeightsError, match=r"model\.safetensors is not a whole safetensors file"):
        read_safetensors(folder)


def test_a_text_model_inside_a_larger_one_gives_its_numbers(folder: Path) -> None:
    (folder / "config.json").write_text('{"text_config": {"hidden_size": 640}}')
    assert read_safetensors(folder).numbers == {"hidden_size": 640}
