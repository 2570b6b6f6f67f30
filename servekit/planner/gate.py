"""The last word before anything is loaded: may this plan be launched on this machine?"""

from collections.abc import Sequence

from servekit.config.schema import Config
from servekit.errors import DoesNotFit, HardwareMissing, NotBuilt
from servekit.planner.plan import Plan
from servekit.spec.hardware import Device, matches
from servekit.spec.model import GIB


def check(plan: Plan, config: Config, devices: Sequence[Device]) -> None:
    """Raise DoesNotFit, NotBuilt or HardwareMissing, in that order; return if it may start.

    `devices` are the accelerators of this machine; the order puts first what no machine changes.
    """
    if plan.verdict != "ok":
        raise DoesNotFit(refusal(plan))
    if config.parallelism.tensor > 1:
        raise NotBuilt(
            f"parallelism.tensor={config.parallelism.tensor}: this release plans several devices "
            "but runs on one; use parallelism.tensor=1"
        )
    if config.hardware.kind != "cpu" and not matches(config.hardware, devices):
        raise HardwareMissing(missing(config, devices))


def refusal(plan: Plan) -> str:
    """The problem, the ledger and the first advice, in one line."""
    book = plan.ledger
    parts = " + ".join(
        f"{name} {component.bytes / GIB:.2f}" for name, component in book.components.items()
    )
    runs = [item for item in plan.advice if not item.planned_only]
    if runs:
        advice = f"try {' '.join(runs[0].overrides)}"
    elif plan.advice:
        advice = (
            f"{' '.join(plan.advice[0].overrides)} would, but this release only plans that: "
            "take larger hardware or a smaller model"
        )
    else:
        advice = "no single change makes it fit: take larger hardware or a smaller model"
    return (
        f"{plan.config.name} does not fit {plan.config.hardware.name}: {book.problem} "
        f"({parts} = {book.used_bytes / GIB:.2f} of {book.total_bytes / GIB:.2f} GiB); {advice}"
    )


def missing(config: Config, devices: Sequence[Device]) -> str:
    """What was wanted, what there is, what to do."""
    wanted = config.hardware
    there = ", ".join(str(device) for device in devices) or "no GPU"
    return (
        f"this deployment wants {config.parallelism.tensor} x {wanted.name} "
        f"({wanted.memory_gib:.1f} GiB); this machine has {there}. Run it there, or plan it here "
        "with: servekit plan ...; on this machine: hardware=cpu with a model that fits its memory"
    )
