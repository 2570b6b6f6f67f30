"""The folder of the sockets: private, and gone after its owner, however that one ended."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from servekit.engine.runtime_dir import RuntimeDir


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def abandoned(folder: Path) -> Path:
    """What a killed server leaves."""
    code = "import os; from servekit.engine.runtime_dir import RuntimeDir; d = RuntimeDir(); "
    code += "print(d.path, flush=True); os.kill(os.getpid(), 9)"
    killed = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "TMPDIR": str(folder)},
    )
    left = Path(killed.stdout.strip())
    assert left.is_dir()
    return left


def test_it_is_for_this_user_alone_and_gone_once_removed(folder: Path) -> None:
    one = RuntimeDir()
    assert one.path.stat().st_mode & 0o777 == 0o700
    one.remove()
    one.remove()
    assert list(folder.iterdir()) == []


def test_what_a_killed_server_left_is_removed_at_the_next_start(folder: Path) -> None:
    left = abandoned(folder)
    one = RuntimeDir()
    assert not left.exists()
    assert list(folder.iterdir()) == [one.path]
    one.remove()


def test_that_of_a_server_that_lives_stays(folder: Path) -> None:
    one, other = RuntimeDir(), RuntimeDir()
    assert one.path.is_dir()
    one.remove()
    other.remove()


def test_what_is_not_ours_stays(folder: Path) -> None:
    strange = folder / "servekit-notes"
    strange.mkdir()
    (folder / "servekit-file").write_text("")
    RuntimeDir().remove()
    assert strange.is_dir()
