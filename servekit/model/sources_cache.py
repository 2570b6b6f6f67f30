"""Fetched files on disk: one folder a source, put in place whole or not at all.

    <cache>/pypi/<source>.<digest>/           manifest.json and the file
    <cache>/pypi/<source>.<digest>.lock       held by the process that fetches
    <cache>/pypi/<source>.<digest>.staging-*  a fetch under way, or one that was killed
    <cache>/checked/<digest>.json             a checksum of a file that lies elsewhere

A file whose size and time of change are those of its manifest is not read again.
"""

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from servekit.errors import SourceError

Progress = Callable[[str, int, int], None]
"""`(phase, bytes done, bytes in all or 0)`; what it raises cancels the fetch and cleans up."""

WAITING = "waiting for another process"
POLL_S = 0.2
CHUNK = 4 << 20
_MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class Record:
    """What a file was when its checksum was taken."""

    source: str
    file: str
    sha256: str
    size: int
    mtime_ns: int


def cache_root() -> Path:
    """$SERVEKIT_CACHE, or `servekit` under $XDG_CACHE_HOME, or under ~/.cache."""
    if own := os.environ.get("SERVEKIT_CACHE"):
        return Path(own).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser().absolute() / "servekit"


def cached(
    source: str, sha256: str | None, progress: Progress, produce: Callable[[Path], Path]
) -> Path:
    """The cached file of `source`, made by `produce(empty folder) -> file in it` if need be.

    `produce` runs in one process at a time; its file is moved into the cache after its checksum
    proved right. Raises SourceError if it is not, or the cache cannot be written.
    """
    entry = cache_root() / "pypi" / _folder_name(source)
    if (file := _valid(entry, source, sha256, progress)) is not None:
        return file
    with readable_errors(entry.parent):
        entry.parent.mkdir(parents=True, exist_ok=True)
        with _locked(entry.with_name(entry.name + ".lock"), progress):
            if (file := _valid(entry, source, sha256, progress)) is not None:
                return file
            _remove_leftovers(entry)
            staging = Path(tempfile.mkdtemp(prefix=entry.name + ".staging-", dir=entry.parent))
            try:
                return _fill(entry, staging, source, sha256, progress, produce)
            finally:
                shutil.rmtree(staging, ignore_errors=True)


def finished(source: str) -> Path | None:
    """The file of `source` if it was fetched, by its manifest alone; nothing is read or checked."""
    entry = cache_root() / "pypi" / _folder_name(source)
    record = _read_record(entry / _MANIFEST)
    file = entry / record.file if record is not None and record.source == source else None
    return file if file is not None and file.is_file() else None


def verify(path: Path, source: str, sha256: str, progress: Progress) -> None:
    """Check a file that is not ours, remembering the outcome. Raises SourceError."""
    digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()
    remembered = cache_root() / "checked" / f"{digest}.json"
    record = _read_record(remembered)
    if record is None or not _unchanged(path, record):
        record = _record(path, source, _hash_file(path, progress))
        with suppress(OSError):  # a cache that cannot be written costs time, not truth
            remembered.parent.mkdir(parents=True, exist_ok=True)
            _write_record(remembered, record)
    if record.sha256 != sha256:
        raise mismatch(source, sha256, record.sha256)


def mismatch(source: str, asked: str, found: str) -> SourceError:
    return SourceError(
        f"{source} has sha256 {found}, where model.sha256 asks for {asked}; it is not the file "
        "that was meant, or the checksum is mistyped"
    )


@contextmanager
def readable_errors(folder: Path) -> Iterator[None]:
    """Say of a full or read-only disk what it is and what to do."""
    try:
        yield
    except OSError as error:
        trouble = disk_trouble(error) or str(error)
        raise SourceError(
            f"the cache {folder}: {trouble}, or set SERVEKIT_CACHE to a folder elsewhere"
        ) from error


def disk_trouble(error: OSError) -> str | None:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full; free some space"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
        return f"it cannot be written ({error.strerror}); make it writable"
    return None


def folder_size(folder: Path) -> int:
    """Bytes of all files below, while others write there."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):  # moved away just now
            total += path.stat().st_size if path.is_file() and not path.is_symlink() else 0
    return total


def _folder_name(source: str) -> str:
    """Readable and safe in a path; the digest tells apart what the rest does not."""
    readable = re.sub(r"[^A-Za-z0-9._=-]+", "_", source.partition(":")[2])[:80]
    return f"{readable}.{hashlib.sha256(source.encode()).hexdigest()[:12]}"


def _fill(
    entry: Path,
    staging: Path,
    source: str,
    sha256: str | None,
    progress: Progress,
    produce: Callable[[Path], Path],
) -> Path:
    made = produce(staging)
    found = _hash_file(made, progress)
    if sha256 is not None and found != sha256:
        raise mismatch(source, sha256, found)
    finished = staging / "finished"
    finished.mkdir()
    file = finished / made.name
    made.rename(file)
    _sync(file)
    _write_record(finished / _MANIFEST, _record(file, source, found))
    if entry.exists():  # of another checksum, or damaged; gone only now that there is better
        entry.rename(staging / "replaced")
    finished.rename(entry)
    return entry / file.name


def _valid(entry: Path, source: str, sha256: str | None, progress: Progress) -> Path | None:
    """The file of a finished entry, if it is what was fetched and what is asked for."""
    record = _read_record(entry / _MANIFEST)
    if record is None or record.source != source:
        return None
    file = entry / record.file
    if not file.is_file() or (sha256 is not None and sha256 != record.sha256):
        return None
    if not _unchanged(file, record):
        if _hash_file(file, progress) != record.sha256:
            return None
        with suppress(OSError):  # of a read-only cache: it is read again at the next start
            _write_record(entry / _MANIFEST, _record(file, source, record.sha256))
    return file


def _unchanged(file: Path, record: Record) -> bool:
    status = file.stat()
    return (status.st_size, status.st_mtime_ns) == (record.size, record.mtime_ns)


def _record(file: Path, source: str, sha256: str) -> Record:
    status = file.stat()
    return Record(source, file.name, sha256, status.st_size, status.st_mtime_ns)


def _read_record(path: Path) -> Record | None:
    """None where there is none, or one that was cut short."""
    try:
        return Record(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def _write_record(path: Path, record: Record) -> None:
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.write_text(json.dumps(asdict(record), indent=1) + "\n", encoding="utf-8")
    partial.replace(path)


def _sync(file: Path) -> None:
    """A name that points at data the disk never got would be believed after a power cut."""
    with file.open("rb") as handle:
        os.fsync(handle.fileno())


def _hash_file(path: Path, progress: Progress) -> str:
    total = path.stat().st_size
    digest, done = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            done += len(chunk)
            progress("verify", done, total)
    return digest.hexdigest()


@contextmanager
def _locked(path: Path, progress: Progress) -> Iterator[None]:
    """One process at a time; the lock goes with the process, however it ends."""
    with path.open("a") as handle:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                progress(WAITING, 0, 0)
                time.sleep(POLL_S)
        yield


def _remove_leftovers(entry: Path) -> None:
    """What killed fetches left; none is alive, for the lock is ours."""
    for leftover in entry.parent.glob(f"{entry.name}.staging-*"):
        shutil.rmtree(leftover, ignore_errors=True)
