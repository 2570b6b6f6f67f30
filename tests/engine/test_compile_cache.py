"""What is compiled once is brought back, and what comes too late is counted and said."""

import json
import logging
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from servekit.engine import compile_cache
from servekit.engine.compile_cache import MANIFEST, CompileCache, fingerprint
from servekit.kernels.language import HAS_TRITON
from tests.engine.tiny import greedy, tiny_engine

needs_triton = pytest.mark.skipif(not HAS_TRITON, reason="triton is not installed here")


def compiles(
    cache: CompileCache, name: str, words: str, module: str = "servekit.kernels.a"
) -> None:
    """As Triton calls its hook."""
    cache.compiled(
        key="k",
        repr=name,
        fn=SimpleNamespace(module=module, name=name, jit_function=None),
        compile={"specialization_data": words, "device": 0},
        is_manual_warmup=False,
        already_compiled=False,
    )


@needs_triton
@pytest.mark.parametrize("fact", ["gpu", "triton", "servekit"])
def test_another_version_or_gpu_has_another_folder(
    fact: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, gpu = fingerprint("nvidia_h200"), "nvidia_h200"
    assert before == fingerprint("nvidia_h200")
    if fact == "gpu":
        gpu = "nvidia_l4"
    elif fact == "triton":
        other = {"triton": "9.9", "torch": compile_cache.version("torch")}
        monkeypatch.setattr(compile_cache, "version", other.__getitem__)
    else:
        monkeypatch.setattr("servekit.__version__", "9.9")
    assert fingerprint(gpu) != before


def test_what_was_compiled_is_noted_once(tmp_path: Path) -> None:
    cache = CompileCache(tmp_path / "new")
    for words in ("one", "two", "one"):
        compiles(cache, "kernel", words)
    compiles(cache, "kernel", "of somebody else", module="elsewhere")
    again = CompileCache(tmp_path / "new")
    assert [entry.specialization for entry in again.entries()] == ["one", "two"]


def test_a_manifest_that_is_damaged_gives_what_can_be_read(tmp_path: Path) -> None:
    cache = CompileCache(tmp_path)
    compiles(cache, "kernel", "one")
    with (tmp_path / MANIFEST).open("a") as file:
        file.write('{"a": 1}\n["os", "system", "x"]\n[1, 2, 3]\n["servekit.kernels.a", "ker')
    again = CompileCache(tmp_path)
    assert [entry.specialization for entry in again.entries()] == ["one"]
    assert again.preload(lambda done, total: None) == 0, "there is no such kernel"


def test_no_folder_is_no_fault(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cache = CompileCache(tmp_path / "file" / "under")
    compiles(cache, "kernel", "one")
    assert cache.entries() == []


def test_only_what_is_compiled_after_ready_is_counted_and_each_kernel_is_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = CompileCache(tmp_path)
    with caplog.at_level(logging.WARNING):
        compiles(cache, "early", "one")
        cache.ready()
        for name, words in (("late", "one"), ("late", "two"), ("other", "one")):
            compiles(cache, name, words)
    assert cache.late == 3
    assert [record.args for record in caplog.records] == [("late",), ("other",)]


def test_the_server_is_told_how_many() -> None:
    engine = tiny_engine()
    engine.core.kernel_compiles = lambda: 7
    engine.generate([[1]], [greedy(1)])
    assert engine.stats is not None
    assert engine.stats.kernel_compiles_total == 7


@needs_triton
def test_without_a_gpu_nothing_is_kept() -> None:
    assert compile_cache.compile_cache(on_gpu=False) is None
    assert compile_cache.compile_cache(on_gpu=True) is None, "the interpreter compiles nothing"


@needs_triton
def test_a_second_start_compiles_nothing_and_is_ready_before_the_first_launch(
    tmp_path: Path,
) -> None:
    first, second = (start(tmp_path / "cache") for _ in range(2))
    assert first == {"preloaded": 0, "before": [], "after": [False, False], "late": 2}
    assert second == {"preloaded": 2, "before": [True, True], "after": [], "late": 0}


def start(folder: Path) -> Any:
    hidden = ("TRITON_INTERPRET", "TRITON_CACHE_DIR")
    child = subprocess.run(
        [sys.executable, "-m", "tests.engine.compiling", str(folder)],
        env={key: value for key, value in os.environ.items() if key not in hidden},
        cwd=Path(import_module("servekit").__file__ or "").parents[1],
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(child.stdout)
