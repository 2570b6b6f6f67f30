"""From the first byte fetched to the last stream drained: where a server is, and what that means.

fetch ▶ start ▶ load ▶ kernels ▶ trial ▶ capture ▶ warmup ▶ ready ▶ leaving ▶ draining

The three from `kernels` on are a GPU's. It may come to be failed at any point.

Who leaves still serves, and says that it should not be asked any more; who drains refuses.
"""

import math
import time
from dataclasses import dataclass, field
from typing import Any, Literal

from servekit.errors import NotReady, ServekitError

State = Literal["loading", "ready", "leaving", "draining", "failed"]

MAX_RETRY_AFTER_S = 30
UNITS = dict.fromkeys(("fetch", "unpack", "verify", "load"), "bytes")
"""Of phases whose progress is counted in something but steps."""


@dataclass(slots=True)
class Phase:
    """A part of start-up; `total` 0 means unknown."""

    name: str
    started: float
    ended: float | None = None
    done: int = 0
    total: int = 0

    @property
    def fraction(self) -> float | None:
        return min(1.0, self.done / self.total) if self.total else None

    def seconds(self, now: float) -> float:
        return (now if self.ended is None else self.ended) - self.started

    def left_s(self, now: float) -> float | None:
        """As long again, in proportion, as it has taken so far; None before there is a rate."""
        fraction = self.fraction
        if not fraction:
            return None
        return self.seconds(now) * (1 - fraction) / fraction


@dataclass(slots=True)
class Lifecycle:
    """Only `serve` writes it; routes read it."""

    state: State = "loading"
    phases: list[Phase] = field(default_factory=list)
    error: ServekitError | None = None
    began: float = field(default_factory=time.monotonic)

    @property
    def phase(self) -> Phase | None:
        return self.phases[-1] if self.phases else None

    def progress(self, name: str, done: int = 0, total: int = 0) -> None:
        """Phases come in order; a new name ends the one before."""
        now = time.monotonic()
        if self.phase is None or self.phase.name != name:
            self._end_phase(now)
            self.phases.append(Phase(name, started=now))
        phase = self.phases[-1]
        phase.done, phase.total = done, total

    def become_ready(self) -> None:
        self._end_phase(time.monotonic())
        if self.phase is not None:
            self.phase.done = self.phase.total
        self.state = "ready"

    def leave(self) -> None:
        self.state = "leaving"

    def drain(self) -> None:
        self.state = "draining"

    @property
    def going_down(self) -> bool:
        return self.state in ("leaving", "draining")

    def fail(self, error: ServekitError) -> None:
        self._end_phase(time.monotonic())
        self.state, self.error = "failed", error

    def _end_phase(self, now: float) -> None:
        if self.phase is not None and self.phase.ended is None:
            self.phase.ended = now

    def ensure_ready(self) -> None:
        """Raises what a request gets that cannot be served now."""
        if self.state in ("ready", "leaving"):
            return
        if self.state == "failed":
            assert self.error is not None
            raise NotReady(f"this server could not start: {self.error.message}")
        if self.state == "draining":
            raise NotReady(
                "this server is shutting down; another replica, or a retry, will serve you",
                retry_after_s=1.0,
            )
        report = self.report()
        left = report.get("eta_s")
        known = {key: report.get(key) for key in ("phase", "fraction", "elapsed_s", "eta_s")}
        raise NotReady(
            f"the model is loading: {self.sentence()}",
            details={key: value for key, value in known.items() if value is not None},
            retry_after_s=min(MAX_RETRY_AFTER_S, math.ceil(left)) if left else 2.0,
        )

    def sentence(self) -> str:
        phase = self.phase
        if phase is None:
            return "not begun"
        if phase.fraction is None:
            return phase.name
        return f"{phase.name}, {phase.fraction:.0%}"

    def report(self) -> dict[str, Any]:
        """The body of /startupz; seconds are wall time."""
        now = time.monotonic()
        phase = self.phase
        report: dict[str, Any] = {
            "state": self.state,
            "elapsed_s": round(now - self.began, 3),
            "phases": [
                {
                    "name": one.name,
                    "seconds": round(one.seconds(now), 3),
                    "done": one.done,
                    "total": one.total,
                    "unit": UNITS.get(one.name, "steps"),
                }
                for one in self.phases
            ],
        }
        if phase is not None and self.state == "loading":
            left = phase.left_s(now)
            report |= {
                "phase": phase.name,
                "fraction": phase.fraction,
                "eta_s": None if left is None else round(left, 1),
            }
        if self.error is not None:
            report["error"] = self.error.message
        return report
