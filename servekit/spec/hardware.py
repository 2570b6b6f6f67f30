"""Which accelerators this machine has, asked of the drivers' own tools; no torch."""

import json
import os
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from servekit.config.schema import HardwareConfig

Run = Callable[[Sequence[str]], str | None]
"""A command's output, or None where there is no such command or it failed."""

NVIDIA = ("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits")
AMD = ("rocm-smi", "--showproductname", "--showmeminfo", "vram", "--json")

TIMEOUT_S = 20.0
"""Waking the drivers of eight idle GPUs takes seconds; a machine without them answers at once."""

MEMORY_TOLERANCE = 0.97
"""Boards and drivers of one product differ by a few tenths of a GiB."""


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator; `memory_gib` is None where the driver does not say."""

    kind: Literal["cuda", "rocm"]
    name: str
    memory_gib: float | None

    def __str__(self) -> str:
        memory = "" if self.memory_gib is None else f" ({self.memory_gib:.1f} GiB)"
        return f"{self.name}{memory}"


def run_command(command: Sequence[str]) -> str | None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def devices(run: Run = run_command, environ: Mapping[str, str] | None = None) -> list[Device]:
    """The accelerators that a process started here would see."""
    environment = os.environ if environ is None else environ
    nvidia = visible(nvidia_devices(run(NVIDIA)), environment.get("CUDA_VISIBLE_DEVICES"))
    amd = visible(amd_devices(run(AMD)), environment.get("HIP_VISIBLE_DEVICES"))
    return nvidia + amd


def nvidia_devices(text: str | None) -> list[Device]:
    """Reads lines such as `NVIDIA L4, 23034`, the memory in MiB."""
    found = []
    for line in (text or "").splitlines():
        name, comma, memory = line.rpartition(",")
        if comma:
            mib = memory.strip()
            gib = float(mib) / 1024 if mib.isdigit() else None
            found.append(Device(kind="cuda", name=name.strip(), memory_gib=gib))
    return found


def amd_devices(text: str | None) -> list[Device]:
    """Reads the JSON of rocm-smi: by card, its series and its memory in bytes."""
    try:
        cards: dict[str, Any] = json.loads(text or "{}")
    except ValueError:
        return []
    found = []
    for card, values in sorted(cards.items()):
        if card.startswith("card") and isinstance(values, dict):
            facts = {str(key).lower(): str(value) for key, value in values.items()}
            memory = facts.get("vram total memory (b)", "")
            gib = int(memory) / 1024**3 if memory.isdigit() else None
            name = facts.get("card series") or facts.get("card model") or "AMD GPU"
            found.append(Device(kind="rocm", name=name, memory_gib=gib))
    return found


def visible(found: list[Device], choice: str | None) -> list[Device]:
    """What the runtime's environment variable leaves: a list of indices, ended by an invalid one.

    Identifiers (`GPU-...`) cannot be looked up in names and sizes; each lets one device through.
    """
    if choice is None:
        return found
    chosen: list[Device] = []
    for word in (part.strip() for part in choice.split(",")):
        if word.startswith(("GPU-", "MIG-")):
            chosen += found[len(chosen) : len(chosen) + 1]
        elif word.isdigit() and int(word) < len(found):
            chosen.append(found[int(word)])
        else:
            break
    return chosen


def matches(wanted: HardwareConfig, found: Sequence[Device]) -> list[Device]:
    """The devices that are what the configuration planned for: kind, name and enough memory.

    Empty for `kind: cpu`, which every machine has.
    """
    return [device for device in found if is_a(device, wanted)]


def is_a(device: Device, wanted: HardwareConfig) -> bool:
    names = "|".join(re.escape(name) for name in wanted.device_names)
    # whole words: an L40S is not an L4
    named = re.search(rf"(?<![A-Za-z0-9])({names})(?![A-Za-z0-9])", device.name, re.IGNORECASE)
    enough = device.memory_gib is None or device.memory_gib >= wanted.memory_gib * MEMORY_TOLERANCE
    return device.kind == wanted.kind and (named is not None or not names) and enough
