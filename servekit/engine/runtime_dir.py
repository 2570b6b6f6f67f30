"""The folder of the two sockets between server and engine, which outlives neither for long.

A server that is killed cannot remove its folder, so the next one that starts does. Whose owner
still lives is told by a lock, which the kernel lets go with the process that holds it.
"""

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

PREFIX = "servekit-"
LOCK = "lock"


class RuntimeDir:
    """Readable by this user alone; `path` is short, because a socket's address is."""

    def __init__(self) -> None:
        """Makes it, and removes those of this user whose owners are gone."""
        # under a name that no sweep looks at, until it is locked
        unlocked = Path(tempfile.mkdtemp(prefix="." + PREFIX))
        self._lock = os.open(unlocked / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.path = unlocked.with_name(unlocked.name.removeprefix("."))
        unlocked.rename(self.path)
        sweep(self.path.parent)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def sweep(folder: Path) -> None:
    """Removes what servers of this user left in `folder` when they were killed."""
    for left in folder.glob(PREFIX + "*"):
        try:
            if left.stat().st_uid != os.getuid():
                continue
            lock = os.open(left / LOCK, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue  # not one of ours, or gone meanwhile
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left, ignore_errors=True)
        except BlockingIOError:
            pass
        finally:
            os.close(lock)
