"""What a policy may decide, as tables; `scheduler.policy` in the configuration picks a row."""

from collections.abc import Callable
from dataclasses import dataclass

from servekit.scheduler.request import Request

Key = tuple[float, ...]

ADMIT: dict[str, Callable[[int, int], bool]] = {
    "continuous": lambda running, budget: budget > 0,
    "static": lambda running, budget: running == 0,
}
"""May one more request be seated, when `running` did at the start of this step and `budget` tokens
of it are left? A static batch is seated at once, whatever its prompts take to compute."""

ORDERS: dict[str, Callable[[Request], Key]] = {
    "fcfs": lambda request: (request.arrived, request.id),
}
"""The smallest is seated, and takes blocks, first."""

VICTIMS: dict[str, Callable[[Request], Key]] = {
    "last_arrived": lambda request: (request.arrived, request.id),
}
"""The largest is preempted first. The first in order never is."""


@dataclass(frozen=True, slots=True)
class Policy:
    admit: Callable[[int, int], bool]
    order: Callable[[Request], Key]
    victim: Callable[[Request], Key]


POLICIES: dict[str, Policy] = {
    "continuous": Policy(ADMIT["continuous"], ORDERS["fcfs"], VICTIMS["last_arrived"]),
    "static": Policy(ADMIT["static"], ORDERS["fcfs"], VICTIMS["last_arrived"]),
}
