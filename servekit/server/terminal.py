"""Start-up as a person watches it: bars on a terminal, lines in a log. All of it on stderr."""

import json
import shlex
import sys
import time
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from servekit.server.lifecycle import UNITS, Phase

LINE_EVERY_S = 5.0
MB = 1_000_000


def amount(phase: Phase) -> str:
    """How far a phase is: `12 of 98 MB`, `3 of 7 steps`, or nothing if nothing is known."""
    if UNITS.get(phase.name) == "bytes":
        whole = f" of {phase.total / MB:,.0f}" if phase.total else ""
        return f"{phase.done / MB:,.0f}{whole} MB"
    return f"{phase.done} of {phase.total}" if phase.total > 1 else ""


class Terminal(Protocol):
    """What start-up needs to say; `say` is for whole sentences."""

    def show(self, phases: list[Phase]) -> None: ...
    def say(self, text: str, style: str = "") -> None: ...
    def close(self) -> None: ...


class Bars:
    """One bar a phase."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            SpinnerColumn(finished_text="[green]✓[/]"),
            TextColumn("{task.description:<10}"),
            BarColumn(bar_width=40),
            TextColumn("{task.fields[amount]:<18}"),
            TimeElapsedColumn(),
            console=console,
        )
        self._tasks: dict[str, TaskID] = {}
        self._progress.start()

    def show(self, phases: list[Phase]) -> None:
        for phase in phases:
            if phase.name not in self._tasks:
                self._tasks[phase.name] = self._progress.add_task(phase.name, amount="", total=None)
            total = float(phase.total) if phase.total else None
            completed = float(phase.done)
            if phase.ended is not None:
                total = completed = total or 1.0
            self._progress.update(
                self._tasks[phase.name], total=total, completed=completed, amount=amount(phase)
            )

    def say(self, text: str, style: str = "") -> None:
        self._progress.console.print(
            text, style=style, highlight=False, markup=False, soft_wrap=True
        )

    def close(self) -> None:
        self._progress.stop()


class Lines:
    """A line where a phase begins and ends, and every few seconds between."""

    def __init__(self) -> None:
        self._said: dict[str, str] = {}
        self._last = 0.0

    def show(self, phases: list[Phase]) -> None:
        now = time.monotonic()
        for phase in phases:
            state = "done" if phase.ended is not None else "running"
            due = state == "running" and now - self._last > LINE_EVERY_S
            if self._said.get(phase.name) == state and not due:
                continue
            self._said[phase.name], self._last = state, now
            took = f" in {phase.seconds(now):.1f} s" if state == "done" else ""
            self.say(" ".join(f"{phase.name} {state}{took} {amount(phase)}".split()))

    def say(self, text: str, style: str = "") -> None:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()

    def close(self) -> None:
        """There is nothing to put back."""


def terminal() -> Terminal:
    console = Console(stderr=True)
    return Bars(console) if console.is_terminal else Lines()


def reachable(url: str) -> str:
    """The same for a client on this machine, where the server listens on every address."""
    return url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")


def curl_line(url: str, model: str, *, chat: bool, keyed: bool, unnamed: bool = False) -> str:
    """To paste: a first streamed answer; a model without a chat template completes text.

    With `keyed` the shell puts $KEY into it. `unnamed`: a certificate that may not be of this
    machine's address, or of an authority that it does not know, is taken.
    """
    body: dict[str, object] = {"model": model, "stream": True, "temperature": 0}
    if chat:
        route = "chat/completions"
        body["messages"] = [{"role": "user", "content": "What is the capital of France?"}]
    else:
        route = "completions"
        body["prompt"] = "The capital of France is"
    insecure = "-k " if unnamed else ""
    key = '-H "authorization: Bearer $KEY" ' if keyed else ""
    return (
        f"curl -N {insecure}{url}/v1/{route} {key}-H 'content-type: application/json' "
        f"-d {shlex.quote(json.dumps(body))}"
    )
