"""Every kernel compiles for every architecture, without a GPU, and needs no more than there is."""

import json
import os
import subprocess
import sys

import pytest

TARGETS = ["sm_80", "sm_89", "sm_90", "sm_100", "gfx942"]


@pytest.mark.parametrize("target", TARGETS)
def test_kernels_compile_without_spills_and_with_tensor_cores(target: str) -> None:
    # a process of its own: in this one Triton interprets
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "benchmarks.kernels", "--compile", target, "--json"]
    child = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert child.returncode in (0, 1), child.stderr
    rows = json.loads(child.stdout)
    assert [f"{row['case']}: {row['wrong']}" for row in rows if row["wrong"]] == []
    assert {row["case"].split(",")[0] for row in rows} >= {
        *("rms_norm", "add_rms_norm", "gated_activation"),
        *("rope_and_cache", "paged_decode", "paged_prefill"),
        *("matmul", "quantised_matmul", "moe_routing", "moe"),
    }
    products = {name for row in rows for name in row["needs"]["products"]}
    assert products & {"HMMA", "HGMMA", "UTCHMMA", "v_mfma"}


def test_a_kernel_that_spills_and_one_that_does_not_compile_are_told() -> None:
    code = (
        "from benchmarks.kernels import cases, compile_table\n"
        "import torch\n"
        "from servekit.kernels.paged_prefill import paged_prefill_triton as launch\n"
        "from servekit.kernels import paged_prefill\n"
        "from benchmarks.kernels.cases_attention import _prefill\n"
        "paged_prefill.default_launch = lambda *_: "
        "{'rows': 128, 'tile': 64, 'num_warps': 4, 'num_stages': 2}\n"
        "def bad():\n"
        "    yield _prefill('spills', torch.int8, 32, 8, 128)\n"
        "    yield cases.Case('x', 'no kernel', lambda: 1 / 0, {})\n"
        "compile_table.all_cases = bad\n"
        "raise SystemExit(compile_table.main(['sm_80'], None, True))\n"
    )
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    child = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert child.returncode == 1, child.stderr
    spilled, failed = json.loads(child.stdout)
    assert "bytes spilled" in spilled["wrong"]
    assert failed["wrong"].startswith("does not compile: division by zero")
