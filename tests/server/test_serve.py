"""The gate of `servekit serve`: what it refuses, it refuses at once."""

import subprocess
import sys
import time

from tests.server.test_launch import ROOT

CODE = """
import sys
from types import SimpleNamespace
from servekit.errors import ServekitError
from servekit.server.serve import main
from tests.conftest import tiny_config
changes = {changes}
try:
    code = main(SimpleNamespace(config=tiny_config(**changes), origins={{}}), as_json={as_json})
except ServekitError as error:
    sys.stderr.write(error.message)
    code = error.exit_code
heavy = {{"torch", "litestar", "zmq", "uvicorn"}} & set(sys.modules)
sys.stderr.write(f"heavy: {{sorted(heavy)}}\\n")
sys.exit(code)
"""

TOO_SMALL = {"hardware": {"memory_gib": 0.001}}


def refused(changes: object, as_json: bool = False) -> subprocess.CompletedProcess[str]:
    code = CODE.format(changes=changes, as_json=as_json)
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=30
    )


def test_a_plan_that_does_not_fit_is_shown_and_refused_before_anything_heavy() -> None:
    started = time.monotonic()
    done = refused(TOO_SMALL)
    assert done.returncode == 2
    assert time.monotonic() - started < 5
    assert "DOES NOT FIT" in done.stdout
    assert "tiny does not fit" in done.stderr
    assert "heavy: []" in done.stderr


def test_a_machine_without_the_hardware_is_refused_in_one_sentence() -> None:
    gpu = {
        "hardware": {
            "kind": "cuda",
            "name": "X9",
            "device_names": ("X9",),
            "memory_gib": 80.0,
            "threads": None,
        }
    }
    done = refused(gpu)
    assert done.returncode == 2
    assert "this deployment wants 1 x X9" in done.stderr


def test_the_plan_can_be_json() -> None:
    assert '"verdict": "does_not_fit"' in refused(TOO_SMALL, as_json=True).stdout
