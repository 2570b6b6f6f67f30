"""Sources: what they name, and what is said where they name nothing."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from servekit.errors import SourceError
from servekit.model.sources import fetch
from servekit.model.sources_cache import readable_errors

GGUF = b"GGUF" + bytes(100)


def ignore(phase: str, done: int, total: int) -> None:
    """A progress that nobody looks at."""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SERVEKIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(GGUF)
    return path


def test_a_file_source_is_the_path_it_names(model: Path):
    assert fetch(f"file:{model}", None, ignore) == model


def test_a_relative_file_source_is_relative_to_where_one_is(
    model: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(model.parent)
    assert fetch("file:model.gguf", None, ignore) == model


def test_a_tilde_in_a_file_source_is_the_home_folder(model: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(model.parent))
    assert fetch("file:~/model.gguf", None, ignore) == model


def test_a_missing_file_is_named_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SourceError, match=f"there is no {tmp_path}/gone.gguf"):
        fetch("file:gone.gguf", None, ignore)


def test_a_file_that_is_not_gguf_is_refused(tmp_path: Path):
    (tmp_path / "model.bin").write_bytes(b"\x80\x02pickle")
    with pytest.raises(SourceError, match="is not a GGUF file, nor a Hugging Face folder"):
        fetch(f"file:{tmp_path}/model.bin", None, ignore)


def test_a_folder_needs_safetensors_and_the_error_lists_what_there_is(tmp_path: Path):
    folder = tmp_path / "hf"
    folder.mkdir()
    (folder / "pytorch_model.bin").touch()
    with pytest.raises(SourceError, match=r"no \.safetensors file \(there is pytorch_model\.bin\)"):
        fetch(f"file:{folder}", None, ignore)


def test_a_folder_with_safetensors_is_taken(tmp_path: Path):
    (tmp_path / "model.safetensors").touch()
    assert fetch(f"file:{tmp_path}", None, ignore) == tmp_path


def test_a_checksum_cannot_be_that_of_a_folder(tmp_path: Path):
    with pytest.raises(SourceError, match=r"checksum of one file, but .* is a folder"):
        fetch(f"file:{tmp_path}", "0" * 64, ignore)


def test_a_wrong_checksum_of_a_file_says_both(model: Path):
    found = hashlib.sha256(GGUF).hexdigest()
    with pytest.raises(SourceError, match=rf"has sha256 {found}, where .* asks for {'0' * 64}"):
        fetch(f"file:{model}", "0" * 64, ignore)


def test_an_unchanged_file_is_hashed_once(model: Path):
    phases: list[str] = []
    for _ in range(2):
        fetch(
            f"file:{model}",
            hashlib.sha256(GGUF).hexdigest(),
            lambda phase, done, total: phases.append(phase),
        )
    assert phases == ["verify"]


def test_a_changed_file_is_hashed_again(model: Path):
    sha256 = hashlib.sha256(GGUF).hexdigest()
    fetch(f"file:{model}", sha256, ignore)
    model.write_bytes(GGUF[:-1] + b"x")
    with pytest.raises(SourceError, match="has sha256"):
        fetch(f"file:{model}", sha256, ignore)


@pytest.mark.parametrize("source", ["", "model.gguf", "s3:bucket/key", "https://host/file"])
def test_an_unknown_kind_of_source_lists_those_known(source: str):
    with pytest.raises(SourceError, match=r"write hf:org/name@revision, file:/path, or pypi:"):
        fetch(source, None, ignore)


def test_a_full_disk_is_called_full():
    with (
        pytest.raises(SourceError, match=r"/cache: the disk is full; free some space, or set SERV"),
        readable_errors(Path("/cache")),
    ):
        raise OSError(28, "No space left on device")


def test_neither_sources_nor_tokenizer_load_torch_transformers_or_the_hub():
    words = (
        "import sys, servekit.model.sources, servekit.model.tokenizer;"
        "print(sorted({'torch', 'transformers', 'huggingface_hub'} & sys.modules.keys()))"
    )
    run = subprocess.run(
        [sys.executable, "-c", words], capture_output=True, text=True, check=True, env=os.environ
    )
    assert run.stdout.strip() == "[]"
