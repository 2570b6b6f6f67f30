"""Launch parameters as data: found, written, read back, and refused where a kernel is not right."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from benchmarks.kernels.tune import Tunable, tune, tuned_rows, write
from servekit.errors import ConfigError
from servekit.kernels import tuned
from servekit.kernels.matmul import matmul_triton
from servekit.kernels.target import Target
from servekit.kernels.tuned import Parameters, launch_parameters, table, watching
from tests.kernels.devices import DEVICE

GPU = "nvidia_test"
DEFAULT = {"tile": 64, "num_warps": 4, "num_stages": 3}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A GPU of that name, whose file is there."""
    monkeypatch.setattr(tuned, "FOLDER", tmp_path)
    monkeypatch.setattr(tuned, "target", lambda: Target("sm_90", GPU, 132, 1 << 20))
    table.cache_clear()
    yield tmp_path
    table.cache_clear()


def launched(key: str = "2 bytes, 128 wide") -> Parameters:
    return launch_parameters("paged_decode", key, DEFAULT)


def test_the_fastest_of_what_is_tried_is_written_and_launched(folder: Path) -> None:
    """A device on which wide tiles and few warps are fast."""

    def times(call: object) -> float:
        own = launched()
        return 1.0 + 30 / own["tile"] + 0.1 * own["num_warps"] + 0.01 * abs(own["num_stages"] - 2)

    some = [Tunable("paged_decode", launched)]
    (choice,) = tuned_rows(some, times)
    assert choice.parameters == {"tile": 128, "num_warps": 2, "num_stages": 3}
    assert choice.default_seconds > choice.seconds
    write(folder / f"{GPU}.yaml", choice, "as a test has it")
    assert launched() == choice.parameters
    assert launched("1 bytes, 128 wide") == DEFAULT


def test_what_was_tuned_before_stays(folder: Path) -> None:
    path = folder / f"{GPU}.yaml"
    path.write_text("paged_decode: {'1 bytes, 64 wide': {tile: 32}}\nmoe: {k: {BM: 64}}\n")
    (choice,) = tuned_rows([Tunable("paged_decode", launched)], lambda call: 1 / launched()["tile"])
    write(path, choice, "as a test has it")
    assert set(table(GPU)["paged_decode"]) == {"1 bytes, 64 wide", "2 bytes, 128 wide"}
    assert table(GPU)["moe"] == {"k": {"BM": 64}}


def test_noise_and_what_cannot_run_leave_the_default(folder: Path) -> None:
    def noisy(call: object) -> float | None:
        own = launched()
        return 0.98 if own["tile"] == 32 else None if own["tile"] == 128 else 1.0

    assert tune(Tunable("paged_decode", launched), noisy) is None
    assert tune(Tunable("paged_decode", launched), lambda call: None) is None


def test_a_launcher_asks_by_the_key_that_is_tuned() -> None:
    x, weight = torch.ones(3, 64, device=DEVICE), torch.ones(16, 64, device=DEVICE)
    with watching() as asked:
        matmul_triton(x, weight)
    ((op, key, default),) = asked
    assert (op, key) == ("matmul", "4 bytes, 4x16x64")
    assert set(default) == set(tuned.MAY_BE["matmul"])


WRONG = {
    "[": "is not YAML",
    "- 1": "not a table",
    "norm: {}": "there is no such operation",
    "matmul: 3": "not a table: key",
    "matmul: {k: 3}": "not a table: parameter",
    "matmul: {k: {BM: 32}}": r"BM is 32, and may be \[64, 128\]",
    "matmul: {k: {BX: 64}}": "there is no BX",
    "quantised_matmul: {k: {splits: 3}}": "splits is 3",
    "matmul: {'2 bytes, 1x8x8': {BK: 64}, '2 bytes, 16x8x8': {BK: 32}}": "must be one",
    "matmul: {'2 bytes, 1x8x8': {BM: 64}, '2 bytes, 16x8x8': {BK: 32}}": "must be one",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_file_that_no_kernel_is_right_with_is_refused(folder: Path, text: str) -> None:
    (folder / f"{GPU}.yaml").write_text(text)
    with pytest.raises(ConfigError, match=WRONG[text]) as refused:
        launched()
    assert f"{GPU}.yaml" in refused.value.message


def test_other_sizes_may_sum_in_another_order(folder: Path) -> None:
    text = "matmul: {'2 bytes, 1x8x8': {BK: 64}, '2 bytes, 16x8x16': {BK: 32}}"
    (folder / f"{GPU}.yaml").write_text(text)
    assert launched() == DEFAULT
