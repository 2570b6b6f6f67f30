"""The last word before anything is loaded: may this plan be launched on this machine?"""

from collections.abc import Sequence

from servekit.config.schema import Config
from servekit.errors import DoesNotFit, HardwareMissing, Impossible, MissesSlo, NotBuilt
from servekit.planner.capability import cannot_run
from servekit.planner.plan import Plan
from servekit.spec.hardware import Device, matches
from servekit.spec.model import GIB


def check(plan: Plan, devices: Sequence[Device]) -> None:
    """Raise DoesNotFit, Impossible, MissesSlo, NotBuilt or HardwareMissing, in that order.

    Returns if it may start, which an unsure plan may: an estimate refuses nothing by itself.
    `devices` are the accelerators of this machine; the order puts first what no machine changes.
    """
    config = plan.config
    if plan.verdict == "does_not_fit":
        raise DoesNotFit(f"{does_not_fit(plan)}; {first_advice(plan)}")
    if plan.refusals:
        raise Impossible(f"{config.name} cannot run on {config.hardware.name}: {plan.refusals[0]}")
    if plan.exit_code:
        raise MissesSlo(f"{misses(plan)}; {first_advice(plan)}, or slo.enforce=warn to serve it")
    if reasons := cannot_run(config):
        raise NotBuilt(
            f"{config.name} is planned but not run by this release: " + "; ".join(reasons)
        )
    if config.hardware.kind != "cpu" and not matches(config.hardware, devices):
        raise HardwareMissing(missing(config, devices))


def does_not_fit(plan: Plan) -> str:
    """The problem and the ledger, in one line."""
    book = plan.ledger
    parts = " + ".join(
        f"{name} {component.bytes / GIB:.2f}" for name, component in book.components.items()
    )
    return (
        f"{plan.config.name} does not fit {plan.config.hardware.name}: {book.problem} "
        f"({parts} = {book.used_bytes / GIB:.2f} of {book.total_bytes / GIB:.2f} GiB)"
    )


def misses(plan: Plan) -> str:
    """Every target that is not met, with why."""
    lines = "; ".join(f"slo.{line.name}={line.target:g}: {line.why}" for line in plan.broken)
    return f"{plan.config.name} misses what it promises on {plan.config.hardware.name}: {lines}"


def first_advice(plan: Plan) -> str:
    """What to do, one that this release runs if there is any."""
    if not plan.advice:
        return "nothing that was tried mends it: take larger hardware or a smaller model"
    best = plan.advice[0]
    words = " ".join(best.overrides)
    if best.planned_only:
        return (
            f"{words} would, but this release only plans that: take larger hardware or a smaller "
            "model"
        )
    return f"try {words}"


def missing(config: Config, devices: Sequence[Device]) -> str:
    """What was wanted, what there is, what to do."""
    wanted = config.hardware
    there = ", ".join(str(device) for device in devices) or "no GPU"
    return (
        f"this deployment wants {config.parallelism.devices} x {wanted.name} "
        f"({wanted.memory_gib:.1f} GiB); this machine has {there}. Run it there, or plan it here "
        "with: servekit plan ...; on this machine: hardware=cpu with a model that fits its memory"
    )
