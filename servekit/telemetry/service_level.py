"""How answers of late compare with what was promised, and with what was planned."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from servekit.config.targets import SloConfig

LATEST = 512
FEWEST = 16
"""Prompts without which long and short ones are not compared."""


@dataclass(frozen=True, slots=True)
class Targets:
    """Seconds, at `percentile` of answers; None: nothing is promised, or planned."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    percentile: float = 95.0

    @classmethod
    def of_ms(cls, ttft_ms: float | None, tpot_ms: float | None, percentile: float) -> "Targets":
        ttft_s, tpot_s = (None if ms is None else ms / 1000 for ms in (ttft_ms, tpot_ms))
        return cls(ttft_s, tpot_s, percentile)


def promised(slo: SloConfig) -> Targets:
    return Targets.of_ms(slo.ttft_ms, slo.tpot_ms, slo.percentile)


def at(values: Sequence[float], percentile: float) -> float | None:
    """The value that so many of them do not exceed; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(percentile / 100 * len(ordered)))]


@dataclass(slots=True)
class ServiceLevel:
    """The latest answers, and all that met or missed `promised`."""

    promised: Targets
    planned: Targets = field(default_factory=Targets)
    ttft_s: deque[float] = field(default_factory=lambda: deque(maxlen=LATEST))
    tpot_s: deque[float] = field(default_factory=lambda: deque(maxlen=LATEST))
    prompts: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=LATEST))
    """Tokens, and the time to first token over the time that computing them took."""
    met: int = 0
    missed: int = 0

    def answered(self, ttft_s: float, tpot_s: float | None) -> None:
        """An answer of one token has no time per token, and cannot miss a target for it."""
        self.ttft_s.append(ttft_s)
        if tpot_s is not None:
            self.tpot_s.append(tpot_s)
        late = self.promised.ttft_s is not None and ttft_s > self.promised.ttft_s
        slow = self.promised.tpot_s is not None and (tpot_s or 0.0) > self.promised.tpot_s
        if late or slow:
            self.missed += 1
        else:
            self.met += 1

    def outcomes(self) -> dict[str, float]:
        """Nothing where nothing is promised."""
        if self.promised.ttft_s is None and self.promised.tpot_s is None:
            return {}
        return {"met": self.met, "missed": self.missed}

    def ttft(self) -> dict[str, float]:
        return self._beside(self.planned.ttft_s, self.ttft_s)

    def tpot(self) -> dict[str, float]:
        return self._beside(self.planned.tpot_s, self.tpot_s)

    def headroom(self) -> dict[str, float]:
        """Of each target that is set and that something is known of."""
        pairs = {
            "ttft": (self.promised.ttft_s, self.ttft().get("measured")),
            "tpot": (self.promised.tpot_s, self.tpot().get("measured")),
        }
        return {
            name: 1.0 - seen / target
            for name, (target, seen) in pairs.items()
            if target is not None and seen is not None
        }

    def long_to_short(self) -> float | None:
        """1: long prompts wait in proportion; above: they wait for short ones; None: unknown."""
        if len(self.prompts) < FEWEST:
            return None
        ordered = sorted(self.prompts)
        half = len(ordered) // 2
        if ordered[0][0] == ordered[-1][0]:
            return None
        short = sum(slowdown for _, slowdown in ordered[:half]) / half
        long = sum(slowdown for _, slowdown in ordered[half:]) / (len(ordered) - half)
        return long / short

    def _beside(self, planned: float | None, seen: Sequence[float]) -> dict[str, float]:
        measured = at(seen, self.promised.percentile)
        both = {"planned": planned, "measured": measured}
        return {source: value for source, value in both.items() if value is not None}
