"""Planned beside measured, so that every start-up checks the plan."""

from dataclasses import dataclass

from servekit.planner.plan import Plan
from servekit.spec.model import GIB


@dataclass(frozen=True, slots=True)
class Comparison:
    """One quantity; `unit` is `bytes`, `tokens` or `blocks`."""

    name: str
    unit: str
    planned: int
    measured: int

    @property
    def error_percent(self) -> float:
        """How far the plan was above what came, in percent of what came."""
        return 100 * (self.planned - self.measured) / max(1, self.measured)

    @property
    def line(self) -> str:
        return (
            f"{self.name}: planned {self.text(self.planned)}, measured "
            f"{self.text(self.measured)} ({self.error_percent:+.2f} %)"
        )

    def text(self, amount: int) -> str:
        return f"{amount / GIB:.3f} GiB" if self.unit == "bytes" else f"{amount:,} {self.unit}"

    def to_json(self) -> dict[str, str | int | float]:
        return {
            "unit": self.unit,
            "planned": self.planned,
            "measured": self.measured,
            "error_percent": round(self.error_percent, 3),
        }


def beside(
    plan: Plan, *, weights_bytes: int, num_blocks: int, capacity_tokens: int, kv_bytes: int
) -> list[Comparison]:
    """What the plan said beside what the engine has; all of one device."""
    kv = plan.kv
    return [
        Comparison("weights", "bytes", plan.ledger.weights.bytes, weights_bytes),
        Comparison("kv", "bytes", kv.bytes, kv_bytes),
        Comparison("kv_blocks", "blocks", kv.num_blocks, num_blocks),
        Comparison("kv_capacity", "tokens", kv.capacity_tokens, capacity_tokens),
    ]
