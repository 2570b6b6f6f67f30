"""The ledger: a file that a line is appended to for every request, before its client hears the end.

A line that was written survives the death of the process. It is on the disk, and so survives that
of the machine, a second later at most. A last line that is torn, by a death in the middle of a
write, is cut off before the next one is written: nobody was told of it. Several servers may write
to one file, and it may be renamed under them: the next line begins a new one.
"""

import fcntl
import logging
import os
import stat
import threading
import time
from concurrent.futures import Future
from queue import Empty, SimpleQueue

from servekit.errors import ConfigError, LedgerUnwritable

log = logging.getLogger(__name__)

SYNC_EVERY_S = 1.0
CHUNK = 1 << 16
LOCK_S = 2.0
"""How long another process may keep the file to itself: answers wait for their lines."""
LAST_LINES_S = 5.0
"""How long the end of a server may wait for its last lines."""

Line = tuple[bytes, "Future[None]"]


class Ledger:
    """Written by a thread of its own, which takes all lines that wait in one write.

    `write` may be called from any thread; what it returns is done once the line is in the file.
    """

    def __init__(self, path: str) -> None:
        """Raises ConfigError for a file that cannot be written."""
        self.path = path
        self._lines: SimpleQueue[Line | None] = SimpleQueue()
        self._unsynced_since: float | None = None
        try:
            self._file = open_ledger(path)
            with Locked(self._file):
                mend(self._file)
        except OSError as error:
            raise ConfigError(
                f"telemetry.ledger: {path} cannot be written ({error.strerror}); give a file in a "
                "folder that is there, or null"
            ) from None
        self._thread = threading.Thread(target=self._live, name="ledger", daemon=True)
        self._thread.start()

    def write(self, line: bytes) -> "Future[None]":
        """`line` is whole, with its newline. The future raises LedgerUnwritable."""
        written: Future[None] = Future()
        # who waits for it may be cancelled, the line cannot
        written.set_running_or_notify_cancel()
        self._lines.put((line, written))
        return written

    def close(self) -> None:
        """Returns once all lines are on the disk, or after LAST_LINES_S."""
        self._lines.put(None)
        self._thread.join(LAST_LINES_S)

    def _live(self) -> None:
        open_ = True
        while open_:
            batch, open_ = self._next()
            if batch:
                self._settle(batch)
            if self._sync_due() or not open_:
                self._sync()
        os.close(self._file)

    def _next(self) -> tuple[list[Line], bool]:
        """All lines that wait; none once it is time to sync. False: there will be no more."""
        since = self._unsynced_since
        left = None if since is None else max(0.0, since + SYNC_EVERY_S - time.monotonic())
        batch: list[Line] = []
        try:
            line = self._lines.get(timeout=left)
            while line is not None:
                batch.append(line)
                line = self._lines.get_nowait()
        except Empty:
            return batch, True
        return batch, False

    def _settle(self, batch: list[Line]) -> None:
        try:
            self._append(b"".join(line for line, _ in batch))
        except Exception as error:  # whatever it is, those who wait must hear of it
            why = getattr(error, "strerror", None) or type(error).__name__
            log.error("telemetry.ledger: %s cannot be written: %s", self.path, why)
            for _, written in batch:
                written.set_exception(
                    LedgerUnwritable(
                        "what this request used could not be written down, so it is not served; "
                        "try again",
                        retry_after_s=1.0,
                    )
                )
            return
        if self._unsynced_since is None:
            self._unsynced_since = time.monotonic()
        for _, written in batch:
            written.set_result(None)

    def _append(self, data: bytes) -> None:
        """All of it in one write, or nothing. Raises OSError."""
        self._follow()
        with Locked(self._file):
            size = mend(self._file)
            try:
                written = os.write(self._file, data)
            except OSError:
                os.ftruncate(self._file, size)
                raise
            if written < len(data):
                os.ftruncate(self._file, size)
                raise OSError(0, f"{written} of {len(data)} bytes could be written")

    def _follow(self) -> None:
        """Opens the path anew where it is no longer this file."""
        mine = os.fstat(self._file)
        try:
            there = os.stat(self.path)
            if (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino):
                return
        except FileNotFoundError:
            pass
        new = open_ledger(self.path)
        self._sync()
        os.close(self._file)
        self._file = new

    def _sync_due(self) -> bool:
        since = self._unsynced_since
        return since is not None and time.monotonic() - since >= SYNC_EVERY_S

    def _sync(self) -> None:
        if self._unsynced_since is None:
            return
        self._unsynced_since = None
        try:
            os.fsync(self._file)
        except OSError as error:
            log.error("telemetry.ledger: %s is not on the disk: %s", self.path, error.strerror)


class Locked:
    """No other server writes to the file meanwhile; the lock ends with its holder's process.

    Raises OSError where somebody else keeps it for LOCK_S.
    """

    def __init__(self, file: int) -> None:
        self.file = file

    def __enter__(self) -> None:
        deadline = time.monotonic() + LOCK_S
        while True:
            try:
                fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise OSError(0, "another process keeps it locked") from None
                time.sleep(0.002)

    def __exit__(self, *raised: object) -> None:
        fcntl.flock(self.file, fcntl.LOCK_UN)


def open_ledger(path: str) -> int:
    """A descriptor. Raises OSError, also for what is no file of bytes."""
    file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(0, "it is not a regular file")
    return file


def mend(file: int) -> int:
    """Cuts off a last line without its end; bytes that are left. The file must be locked."""
    size = os.fstat(file).st_size
    if size == 0 or os.pread(file, 1, size - 1) == b"\n":
        return size
    end = size
    while end > 0:
        start = max(0, end - CHUNK)
        newline = os.pread(file, end - start, start).rfind(b"\n")
        if newline >= 0:
            end = start + newline + 1
            break
        end = start
    if end == 0 and os.pread(file, 1, 0) not in (b"{", b"\0"):
        raise OSError(0, "it has no line of a ledger in it; name another file, or empty it")
    log.warning("telemetry.ledger: a torn last line of %d bytes is cut off", size - end)
    os.ftruncate(file, end)
    return end
