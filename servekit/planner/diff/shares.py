"""What each cause did, where times are simulated.

Mixtures of causes are planned in closed forms, as they are many. What a simulation of both ends
found beyond that is nobody's alone, unless there is one cause only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from servekit.planner.diff.attribution import Attribution

SIMULATED = "beyond closed forms"
"""The rest of a change of a simulated time, which closed forms give to no cause."""

READ_BY_A_RUN = {"scheduler", "kv", "workload", "slo"}
"""Groups of which a simulation reads what closed forms do not, such as the order of requests."""


@dataclass(frozen=True, slots=True)
class Told:
    """`by` is of the simulated metrics alone. `idle` and `because` as in Attribution."""

    by: Mapping[str, Mapping[str, Fraction]] = field(default_factory=dict)
    idle: tuple[str, ...] = ()
    because: tuple[str, ...] = ()


def told(
    shared: Attribution | None,
    verdicts: tuple[str | None, str | None],
    deltas: Mapping[str, float | None],
) -> Told:
    """`shared` in closed forms, corrected by what simulations said: the two verdicts, and the
    changes of simulated metrics by name.

    Where these moved, a cause that moves no closed form may have moved them, and is not idle. The
    verdict of simulated times may differ from that of closed forms, which then say nothing of its
    cause.
    """
    if shared is None:
        return Told()
    moved = any(deltas.values())
    idle = tuple(name for name in shared.idle if not moved or _group(name) not in READ_BY_A_RUN)
    causes = [cause.name for cause in shared.causes if cause.name not in idle]
    because = shared.because or (tuple(causes) if len(causes) == 1 else ())
    return Told(
        by={name: shares(delta, shared.by[name], causes) for name, delta in deltas.items()},
        idle=idle,
        because=because if verdicts[0] != verdicts[1] else (),
    )


def shares(
    delta: float | None, closed: Mapping[str, Fraction], causes: Sequence[str]
) -> Mapping[str, Fraction]:
    """Of the change of a simulated time; they sum to it."""
    if not delta:
        return {}
    if len(causes) == 1:
        return {causes[0]: Fraction(delta)}
    rest = Fraction(delta) - sum(closed.values())
    return {**closed, SIMULATED: rest} if rest else closed


def _group(cause: str) -> str:
    return cause.partition(".")[0]
