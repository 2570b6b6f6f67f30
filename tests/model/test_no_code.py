"""Weights are numbers: nothing that lies beside them, or in them, is run."""

import ast
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import servekit
from servekit.errors import WeightsError
from servekit.model.safetensors_folder import read_folder
from servekit.model.sources import fetch
from servekit.model.tokenizer import load_tokenizer
from tests.model.tiny_tokenizers import byte_level, save_folder


def test_code_that_lies_beside_weights_is_not_run(tmp_path: Path):
    ran = tmp_path / "ran"
    folder = save_folder(
        tmp_path / "hf",
        byte_level(),
        **{
            "config": {
                "auto_map": {
                    "AutoConfig": "evil.Config",
                    "AutoModelForCausalLM": "evil.Model",
                    "AutoTokenizer": ["evil.Tokenizer", None],
                }
            },
            "tokenizer_config": {"auto_map": {"AutoTokenizer": ["evil.Tokenizer", None]}},
        },
    )
    for name in ("evil.py", "__init__.py", "conftest.py", "custom_generate/generate.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(f"open({str(ran)!r}, 'w')")
    (folder / "pytorch_model.bin").write_bytes(Evil(str(ran)).pickled())
    save_file({"x": torch.zeros(2)}, folder / "model.safetensors")
    assert fetch(f"file:{folder}", None, lambda *progress: None) == folder
    assert load_tokenizer(folder, None).encode("hi")
    with pytest.raises(WeightsError):
        read_folder(folder)
    assert not ran.exists()


class Evil:
    """Writes a file once it is unpickled."""

    def __init__(self, ran: str) -> None:
        self.ran = ran

    def __reduce__(self) -> tuple[object, ...]:
        return (open, (self.ran, "w"))

    def pickled(self) -> bytes:
        return pickle.dumps(self)


FORBIDDEN = {"eval", "exec", "torch.load", "pickle.load", "pickle.loads", "load_module"}


def test_nothing_of_ours_unpickles_or_runs_what_it_was_given():
    """But the engine's process, which its parent tells what to do through a pipe."""
    root = Path(servekit.__file__).parent
    found = set()
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.keyword) and node.arg == "trust_remote_code":
                found.add((path.name, node.arg))
            if isinstance(node, ast.Call) and ast.unparse(node.func) in FORBIDDEN:
                found.add((path.name, ast.unparse(node.func)))
    assert found == {("worker.py", "pickle.load")}
