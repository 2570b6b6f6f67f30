"""Grammars that clients send, tried in a process of their own before the engine hears of them."""

import asyncio
import hashlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue

import msgspec

import servekit
from servekit.errors import NotReady, Overloaded, RequestError
from servekit.model.grammar_child import COMPILE_CPU_S, LENGTH, write_frame
from servekit.model.vocabulary import Vocabulary

TRIAL_S = 30.0
"""By the clock, where a machine is so busy that the processor time never comes."""
MAX_WAITING = 64
"""Trials that wait for the one process, each of COMPILE_CPU_S at most."""
MAX_KNOWN = 1024
"""Verdicts that are remembered, by digest."""

CHILD = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from servekit.model.grammar_child import main; main()"
)
TOO_MUCH = f"compiling it takes more than {COMPILE_CPU_S} s or too much memory; make it simpler"


@dataclass(frozen=True, slots=True)
class Trial:
    grammar: str
    vocabulary: Vocabulary
    loop: asyncio.AbstractEventLoop
    verdict: asyncio.Future[tuple[str, float]]


class Grammars:
    """Tries each grammar once, one after another, in a child that is started when first needed.

    `observe` is told the seconds of every trial.
    """

    def __init__(self, observe: Callable[[float], None] = lambda seconds: None) -> None:
        self._observe = observe
        self._known: OrderedDict[bytes, asyncio.Task[str]] = OrderedDict()
        self._queue: SimpleQueue[Trial] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._child = Child()

    async def check(self, grammar: str, vocabulary: Vocabulary, param: str) -> None:
        """Raises RequestError for what cannot be had, Overloaded if too many wait."""
        key = hashlib.sha256(grammar.encode()).digest()
        task = self._known.get(key)
        if task is None:
            if sum(not one.done() for one in self._known.values()) >= MAX_WAITING:
                raise Overloaded(
                    f"{MAX_WAITING} grammars wait to be compiled; try again later",
                    param=param,
                    retry_after_s=1.0,
                )
            task = asyncio.create_task(self._try(grammar, vocabulary))
            self._known[key] = task
            self._forget_the_oldest()
        self._known.move_to_end(key)
        try:
            # many may wait for the one task, and one of them may leave
            objection = await asyncio.shield(task)
        except NotReady:
            self._known.pop(key, None)
            raise
        if objection:
            raise RequestError(f"{param} cannot be used: {objection}", param=param)

    def _forget_the_oldest(self) -> None:
        for key in [key for key, task in self._known.items() if task.done()]:
            if len(self._known) <= MAX_KNOWN:
                break
            del self._known[key]

    async def _try(self, grammar: str, vocabulary: Vocabulary) -> str:
        loop = asyncio.get_running_loop()
        if self._thread is None:
            self._thread = threading.Thread(target=self._live, name="grammars", daemon=True)
            self._thread.start()
        trial = Trial(grammar, vocabulary, loop, loop.create_future())
        self._queue.put(trial)
        objection, seconds = await trial.verdict
        self._observe(seconds)
        return objection

    def _live(self) -> None:
        while True:
            trial = self._queue.get()
            began = time.monotonic()
            settle: Callable[[], None]
            try:
                objection = self._child.objection(trial.grammar, trial.vocabulary)
            except OSError as fault:
                error = NotReady(f"grammars cannot be compiled now: {fault}", retry_after_s=5.0)
                settle = partial(trial.verdict.set_exception, error)
            else:
                verdict = objection, time.monotonic() - began
                settle = partial(trial.verdict.set_result, verdict)
            with suppress(RuntimeError):  # the loop is closed: nobody waits
                trial.loop.call_soon_threadsafe(settle)


class Child:
    """The process, from one grammar that was too much for it to the next. Of one thread only.

    It ends with the thread that uses it, and so with this process, however that ends.
    """

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self._taught: Vocabulary | None = None

    def objection(self, grammar: str, vocabulary: Vocabulary) -> str:
        ended = self.process is None or self.process.poll() is not None
        if ended or self._taught is not vocabulary:
            self._end()
            self.process = self._spawn()
            self._taught = vocabulary
            if self._ask(msgspec.msgpack.encode(vocabulary)) is None:
                self._end()
                raise OSError("the process that compiles grammars does not start")
        answer = self._ask(grammar.encode())
        if answer is None:
            killed = self._killed()
            self._end()
            if killed:
                raise OSError("the process that compiles grammars was killed")
            return TOO_MUCH
        return answer.decode()

    def _spawn(self) -> subprocess.Popen[bytes]:
        root = str(Path(servekit.__file__).parents[1])
        return subprocess.Popen(
            [sys.executable, "-P", "-c", CHILD, root],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def _ask(self, body: bytes) -> bytes | None:
        """None if it ended. Raises OSError if the clock ran out, which says nothing of the grammar:
        its processor time is bounded by itself."""
        assert self.process is not None, "it was spawned"
        assert self.process.stdin is not None, "it was asked for"
        try:
            write_frame(self.process.stdin, body)
            deadline = time.monotonic() + TRIAL_S
            (length,) = LENGTH.unpack(self._read(LENGTH.size, deadline))
            return self._read(length, deadline)
        except TimeoutError:
            self._end()
            raise OSError(f"the machine is too busy: no verdict within {TRIAL_S:g} s") from None
        except (BrokenPipeError, EOFError):
            return None

    def _read(self, length: int, deadline: float) -> bytes:
        assert self.process is not None, "it was spawned"
        assert self.process.stdout is not None, "it was asked for"
        source, body = self.process.stdout.fileno(), b""
        poll = select.poll()
        poll.register(source, select.POLLIN)
        while len(body) < length:
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise TimeoutError
            part = os.read(source, length - len(body))
            if not part:
                raise EOFError
            body += part
        return body

    def _killed(self) -> bool:
        """By somebody else, which says nothing of the grammar: its own limits end it otherwise."""
        assert self.process is not None, "it was asked"
        with suppress(subprocess.TimeoutExpired):
            return self.process.wait(timeout=0.1) == -signal.SIGKILL
        return False

    def _end(self) -> None:
        if self.process is not None:
            self.process.kill()
            with suppress(BrokenPipeError):
                self.process.communicate()
        self.process = None
