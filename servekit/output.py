"""What is said at the end: JSON, errors in one sentence; also to what nobody reads or holds."""

import errno
import json
import os
import sys
from typing import Any

from servekit.errors import ServekitError

UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


def opened() -> None:
    """Where a shell closed a stream, what is said goes nowhere."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115


def flushed(code: int) -> int:
    """Now, where what cannot be written is still told, and not when Python exits."""
    sys.stdout.flush()
    return code


def write_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def refused(error: ServekitError, as_json: bool) -> int:
    """Says an error of ours; its exit code."""
    if as_json:
        body = {"message": error.message, "type": error.kind, "code": error.code}
        print(json.dumps({"error": body}, indent=2))
    print(f"servekit: {error.message}", file=sys.stderr)
    return error.exit_code


def failed(error: OSError) -> int:
    """The exit code after output that could not be written; raises `error` if it is another."""
    if not isinstance(error, BrokenPipeError) and error.errno not in UNWRITABLE:
        raise error
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        return 141
    print(f"servekit: the output cannot be written: {error.strerror}", file=sys.stderr)
    return 1
