"""What is ready for the day that a GPU is there runs today, on the interpreter."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import benchmarks.gpu.correctness as checks
from benchmarks.gpu.__main__ import run, sections
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.lines import Line, markdown

ROOT = Path(__file__).resolve().parents[2]
DRY = Bench(dry=True, deadline=float("inf"))

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="a dry run is for the interpreter"
)


@pytest.mark.timeout(300)
def test_the_script_goes_all_the_way_without_a_gpu(tmp_path: Path) -> None:
    ended = subprocess.run(
        [ROOT / "benchmarks/gpu/run.sh", "--dry-run", "--out", tmp_path],
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads((tmp_path / "gpu_dry_run.json").read_text())
    lines = found["lines"]
    assert {line["section"] for line in lines} == set(sections("h200"))
    assert not [line for line in lines if line["what"].startswith(("left out", "failed"))]
    timed = [line for line in lines if line["section"] != "correctness"]
    assert all(value is None for line in timed for value in line["values"].values())
    assert "0 wrong" in ended.stdout
    assert "## decode step" in (tmp_path / "gpu_dry_run.md").read_text()


def test_a_kernel_that_is_wrong_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    right = checks.quantised_matmul_triton
    monkeypatch.setattr(checks, "quantised_matmul_triton", lambda x, w: right(x, w) * 1.02)
    assert wrong_in(checks._products(DRY)) == {
        f"quantised_matmul, {kind}" for kind in ("int4", "int8", "fp8", "fp8 blocks")
    }


def test_a_kernel_that_gives_no_number_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "rms_norm_triton", lambda x, *_: x * torch.nan)
    assert wrong_in(checks._elementwise(DRY)) == {"rms_norm"}


def wrong_in(lines: Iterator[Line]) -> set[str]:
    return {line.what for line in lines if line.wrong}


def test_a_section_that_fails_is_a_line_and_wrong() -> None:
    def failing(bench: Bench) -> Iterator[Line]:
        raise RuntimeError("out of memory")
        yield

    (line,) = run("copy", failing, DRY)
    assert line.said == "WRONG: RuntimeError: out of memory"


def test_what_there_is_no_time_for_is_said() -> None:
    late = Bench(dry=True, deadline=time.monotonic() - 1)
    (line,) = run("copy", sections("h200")["copy"], late)
    assert line.what == "left out: no time"


def test_targets_are_told_met_or_missed() -> None:
    lines = [
        Line("a", "x", "1", {"us": 2.0}, reached=0.9, target=0.85),
        Line("a", "y", "1", {"us": 2.0}, reached=0.5, target=0.85),
    ]
    assert [line.said for line in lines] == ["0.90 of 0.85: met", "0.50 of 0.85: MISSED"]
    assert "| y | 1 | 2 | 0.50 of 0.85: MISSED |" in markdown(lines, {"device": "none"}, "run.sh")
