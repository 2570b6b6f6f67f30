"""Whether the engine still turns: how long ago it was heard, and what it was at then.

Load is no fault: a step may take long, and then the loop says so once a second. What counts is a
loop that says nothing, or one step that goes on beyond any that was seen.
"""

import time
from dataclasses import dataclass, field

BEAT_S = 1.0
"""How often an engine that has nothing else to say says that its loop turns."""
FRESH_S = 5.0
"""An engine not heard for so long gets no new traffic."""
STEPS = 10.0
"""A step may take so many times as long as the slowest of the warm-up."""
LOADS = 10.0
"""Importing, reading and compiling hold the interpreter now and then."""


@dataclass(slots=True)
class Heartbeat:
    """Seconds are of the server's monotonic clock; `hang_s` is the configuration's."""

    hang_s: float
    slowest_step_s: float = 0.0
    loading: bool = True
    step_s: float = 0.0
    """How long the step had been running when the engine was last heard."""
    heard_at: float = field(default_factory=time.monotonic)

    def hear(self, step_s: float = 0.0) -> None:
        self.heard_at, self.step_s = time.monotonic(), step_s

    @property
    def age_s(self) -> float:
        return time.monotonic() - self.heard_at

    @property
    def limit_s(self) -> float:
        if self.loading:
            return self.hang_s * LOADS
        return max(self.hang_s, self.slowest_step_s * STEPS)

    @property
    def late(self) -> str | None:
        """Why it should get no new requests, if so."""
        if self.loading or self.age_s < FRESH_S:
            return None
        return f"the engine was last heard {self.age_s:.0f} s ago"

    @property
    def stopped(self) -> str | None:
        """Why it is taken for dead, if so."""
        age, limit = self.age_s, self.limit_s
        if age > limit:
            return f"the engine has not been heard for {age:.0f} s, the limit is {limit:.0f} s"
        if self.step_s + age > limit and not self.loading:
            return (
                f"a step of the engine goes on since {self.step_s + age:.0f} s, the limit is "
                f"{limit:.0f} s"
            )
        return None
