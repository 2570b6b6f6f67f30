"""What this machine is, as an option of the group `hardware`.

A card of the catalogue keeps the catalogue's rates; one that is not in it gets those of the nearest
card, which are a guess. A machine without cards is measured.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from servekit.config import machine
from servekit.config.folders import builtin_folder
from servekit.config.origins import LOADER
from servekit.config.schema import HardwareConfig
from servekit.planner.machine import probe
from servekit.spec import hardware
from servekit.spec.hardware import Device, Link, Run, run_command
from servekit.spec.model import GIB

VISIBLE = 0.985
"""What a process sees of a card, over the memory that its driver reports: 0.979 to 0.996."""

OVER_FLOAT32 = {"amx_bf16": 8.0, "avx512_bf16": 2.0, "bf16": 2.0}
"""16-bit products over 32-bit ones on one core, by its instructions; a guess."""


@dataclass(frozen=True, slots=True)
class Machine:
    devices: tuple[Device, ...]
    capabilities: Mapping[str, str]
    """compute capability or architecture, by the name of a device"""
    link: Link | None
    cpu: str
    instructions: str | None
    cores: int
    memory_gib: float
    bandwidth_gb_s: float
    float32_tflops: float

    @property
    def capability(self) -> str | None:
        """Of the first device."""
        return self.capabilities.get(self.devices[0].name) if self.devices else None


@dataclass(frozen=True, slots=True)
class Found:
    """An option for this machine. `base` is the option of the catalogue that its rates are of, and
    `exact` whether this machine is that; None on a CPU.
    """

    tree: dict[str, Any]
    base: str | None
    exact: bool


def look(
    run: Run = run_command,
    *,
    environ: Mapping[str, str] | None = None,
    bandwidth: Callable[[int], float] = probe.bandwidth_gb_s,
    products: Callable[[], float] = probe.float32_tflops,
) -> Machine:
    """Asks drivers and the kernel, and times memory and products for a second."""
    cores = machine.usable_cores()
    return Machine(
        devices=tuple(hardware.devices(run, environ)),
        capabilities={
            **hardware.nvidia_capabilities(run(hardware.NVIDIA_CAPABILITIES)),
            **hardware.amd_capabilities(run(hardware.AMD)),
        },
        link=hardware.nvidia_link(run(hardware.NVIDIA_LINKS)),
        cpu=machine.cpu_name(),
        instructions=machine.best_instructions(),
        cores=cores,
        memory_gib=machine.memory_bytes() * 100 // GIB / 100,
        bandwidth_gb_s=bandwidth(cores),
        float32_tflops=products(),
    )


def catalogue() -> dict[str, HardwareConfig]:
    """The cards that this release knows, by option."""
    found = {}
    for file in sorted((builtin_folder() / "hardware").glob("*.yaml")):
        tree = yaml.load(file.read_text(encoding="utf-8"), Loader=LOADER)
        if tree["kind"] != "cpu":
            found[file.stem] = HardwareConfig.model_validate(tree)
    return found


def option(seen: Machine) -> Found:
    """Of the first device and those like it; of the CPU where there is none."""
    if not seen.devices:
        return Found(of_cpu(seen), base=None, exact=True)
    first, cards = seen.devices[0], catalogue()
    alike = sum(device == first for device in seen.devices)
    known = [name for name, card in cards.items() if hardware.is_a(first, card)]
    base = known[0] if known else nearest(first, seen.capability, cards)
    tree = {**cards[base].model_dump(), "devices_per_node": alike, **linked(seen)}
    if not known:
        tree |= {"name": first.name, "device_names": [first.name], "usd_per_hour": None}
        tree |= unknown_card(first, seen.capability)
    tree["device_names"] = list(tree["device_names"])
    return Found(tree, base, exact=bool(known))


def nearest(device: Device, capability: str | None, cards: Mapping[str, HardwareConfig]) -> str:
    """The option of its make that is most like it: the same capability, then the same memory."""

    def distance(name: str) -> tuple[bool, bool, float]:
        card = cards[name]
        apart = abs((device.memory_gib or card.memory_gib) - card.memory_gib)
        return card.kind != device.kind, card.compute_capability != capability, apart

    return min(cards, key=distance)


def unknown_card(device: Device, capability: str | None) -> dict[str, Any]:
    """Memory from its driver; only rates that its capability has."""
    found: dict[str, Any] = {}
    if device.memory_gib is not None:
        found["memory_gib"] = round(device.memory_gib * VISIBLE, 2)
    if capability is not None:
        found["compute_capability"] = capability
        if not hardware.supports_fp8(capability):
            found["fp8_tflops"] = None
        if not hardware.supports_fp4(capability):
            found["fp4_tflops"] = None
    return found


def linked(seen: Machine) -> dict[str, Any]:
    """What the driver says of the links; nothing where it does not."""
    if seen.link is None:
        return {}
    if seen.link.kind == "nvlink":
        speed = hardware.nvlink_gb_s(seen.link.lanes, seen.capability)
        return {"link": "nvlink", "link_gb_s": speed, "p2p": True}
    # both directions of sixteen lanes: the fourth generation up to 8.9, then the fifth
    older = (seen.capability or "8").startswith(("7", "8"))
    return {"link": "pcie", "link_gb_s": 64.0 if older else 128.0}


def of_cpu(seen: Machine) -> dict[str, Any]:
    return {
        "kind": "cpu",
        "name": f"{seen.cpu}, {seen.cores} {'core' if seen.cores == 1 else 'cores'}",
        "device_names": [],
        "memory_gib": seen.memory_gib,
        "threads": seen.cores,
        "bandwidth_gb_s": round(seen.bandwidth_gb_s, 1),
        "bf16_tflops": bf16_tflops(seen),
        "fp8_tflops": None,
        "int8_tflops": None,
        "fp4_tflops": None,
        "bf16": True,
        "compute_capability": None,
        "link": "none",
        "link_gb_s": None,
        "p2p": False,
        "devices_per_node": 1,
        "usd_per_hour": None,
        "efficiency": "cpu",
    }


def bf16_tflops(seen: Machine) -> float:
    """From the measured 32-bit rate and what the CPU's instructions make of 16 bits; a guess."""
    return max(
        0.001, round(seen.float32_tflops * OVER_FLOAT32.get(seen.instructions or "", 1.0), 3)
    )


def to_yaml(found: Found, comment: Sequence[str]) -> str:
    """A file of the group `hardware`."""
    lines = "".join(f"# {line}\n" for line in comment)
    text: str = yaml.safe_dump(found.tree, sort_keys=False, default_flow_style=None, width=100)
    return lines + text
