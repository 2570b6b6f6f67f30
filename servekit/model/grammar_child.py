"""A process that tries grammars which come from outside.

Some take for ever to compile and some all memory, and the library cannot be told to stop; the
process can. It reads frames from standard input, the vocabulary first and then grammars, and writes
what stands against each; a frame is a length in 4 bytes, little-endian, and so many bytes.
"""

import ctypes
import math
import os
import resource
import signal
import struct
import sys
import time
from typing import IO

import msgspec

from servekit.model.grammar import Compiler
from servekit.model.vocabulary import Vocabulary

COMPILE_CPU_S = 3
"""Of processor time, so that a busy machine refuses nothing; schemas in use take milliseconds."""
MEMORY_BYTES = 2 << 30
LENGTH = struct.Struct("<I")
PR_SET_PDEATHSIG = 1


def read_frame(stream: IO[bytes]) -> bytes | None:
    """None at the end of the stream."""
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(head)
    body = stream.read(length)
    return body if len(body) == length else None


def write_frame(stream: IO[bytes], body: bytes) -> None:
    stream.write(LENGTH.pack(len(body)) + body)
    stream.flush()


def main() -> None:
    """Ends with standard input, or with the thread that spawned it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(5)
    source, answers = sys.stdin.buffer, sys.stdout.buffer
    vocabulary = read_frame(source)
    if vocabulary is None:
        return
    compiler = Compiler(msgspec.msgpack.decode(vocabulary, type=Vocabulary))
    write_frame(answers, b"")
    while (grammar := read_frame(source)) is not None:
        _allow_seconds(COMPILE_CPU_S)
        write_frame(answers, compiler.objection(grammar.decode()).encode())


def _allow_seconds(seconds: int) -> None:
    """Of processor time from now on; then the kernel ends this process."""
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    soft = math.ceil(time.process_time()) + seconds
    resource.setrlimit(resource.RLIMIT_CPU, (soft, most))


if __name__ == "__main__":
    main()
