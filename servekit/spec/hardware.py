"""Which accelerators this machine has, asked of the drivers' own tools; no torch."""

import json
import os
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from servekit.config.schema import HardwareConfig
from servekit.spec.model import GIB

Run = Callable[[Sequence[str]], str | None]
"""A command's output, or None where there is no such command or it failed."""

NVIDIA = ("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits")
NVIDIA_CAPABILITIES = ("nvidia-smi", "--query-gpu=name,compute_cap", "--format=csv,noheader")
"""Asked apart: drivers that do not know `compute_cap` refuse the whole question."""
NVIDIA_LINKS = ("nvidia-smi", "topo", "-m")
AMD = ("rocm-smi", "--showproductname", "--showmeminfo", "vram", "--json")

TIMEOUT_S = 20.0
"""Waking the drivers of eight idle GPUs takes seconds; a machine without them answers at once."""

OTHER_PRODUCTS = ("NVL", "PCIe", "Laptop", "Max-Q", "SUPER", "Ti", "D", "MIG")
"""Words that make another product of the name before them."""

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
    found = []
    for facts in _amd_cards(text):
        memory = facts.get("vram total memory (b)", "")
        gib = int(memory) / GIB if memory.isdigit() else None
        found.append(Device(kind="rocm", name=_amd_name(facts), memory_gib=gib))
    return found


def _amd_cards(text: str | None) -> list[dict[str, str]]:
    """What rocm-smi says of each card, keys in lower case."""
    try:
        cards: dict[str, Any] = json.loads(text or "{}")
    except ValueError:
        return []
    return [
        {str(key).lower(): str(value) for key, value in values.items()}
        for card, values in sorted(cards.items())
        if card.startswith("card") and isinstance(values, dict)
    ]


def _amd_name(facts: Mapping[str, str]) -> str:
    return facts.get("card series") or facts.get("card model") or "AMD GPU"


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
    enough = device.memory_gib is None or device.memory_gib >= wanted.memory_gib * MEMORY_TOLERANCE
    return device.kind == wanted.kind and enough and is_named(device.name, wanted.device_names)


def is_named(name: str, parts: Sequence[str]) -> bool:
    """Whether it has one of these in it as whole words, and no other product's name goes on there.

    An L40S is not an L4, and an H200 NVL is not an H200.
    """
    words = "|".join(re.escape(part) for part in parts)
    others = "|".join(OTHER_PRODUCTS)
    pattern = rf"(?<![A-Za-z0-9])({words})(?![A-Za-z0-9])(?!\s+({others})\b)"
    return not parts or re.search(pattern, name, re.IGNORECASE) is not None


def nvidia_capabilities(text: str | None) -> dict[str, str]:
    """Compute capabilities by name, from lines such as `NVIDIA L4, 8.9`."""
    found = {}
    for line in (text or "").splitlines():
        name, _, number = line.rpartition(",")
        if re.fullmatch(r"\d+\.\d+", number.strip()):
            found[name.strip()] = number.strip()
    return found


def amd_capabilities(text: str | None) -> dict[str, str]:
    """Architectures by name, `gfx942` and the like, of drivers that say."""
    found = {}
    for facts in _amd_cards(text):
        if (version := facts.get("gfx version", "")).startswith("gfx"):
            found[_amd_name(facts)] = version
    return found


def supports_fp8(capability: str | None) -> bool:
    """Whether matrix units multiply 8-bit floats: from 8.9, and gfx942."""
    if (capability or "").startswith("gfx"):
        return capability in ("gfx942", "gfx950")
    return _number(capability) >= (8, 9)


def supports_fp4(capability: str | None) -> bool:
    """Whether matrix units multiply 4-bit floats: from 10.0, and gfx950."""
    if (capability or "").startswith("gfx"):
        return capability == "gfx950"
    return _number(capability) >= (10, 0)


def _number(capability: str | None) -> tuple[int, ...]:
    parts = (capability or "").split(".")
    return tuple(int(part) for part in parts if part.isdigit())


@dataclass(frozen=True, slots=True)
class Link:
    """What joins the first device to the others; `lanes` of NVLink between two of them."""

    kind: Literal["nvlink", "pcie"]
    lanes: int
    devices: int


def nvidia_link(text: str | None) -> Link | None:
    """Reads the matrix of `nvidia-smi topo -m`; None for one device, or if there is no matrix.

    `NV18` is eighteen lanes of NVLink; anything else, from PIX to SYS, goes over PCI Express. The
    slowest pair counts.
    """
    for line in (text or "").splitlines():
        words = re.sub(r"\x1b\[[0-9;]*m", "", line).split()
        if words[:2] == ["GPU0", "X"]:
            others = [
                word for word in words[2:] if re.fullmatch(r"NV\d+|PIX|PXB|PHB|NODE|SYS", word)
            ]
            count = len(re.findall(r"^GPU\d+\s", text or "", re.MULTILINE))
            pairs = others[: count - 1] if count > 1 else []
            if not pairs:
                return None
            lanes = min(int(word[2:]) if word.startswith("NV") else 0 for word in pairs)
            return Link("nvlink" if lanes else "pcie", lanes, len(pairs) + 1)
    return None


def nvlink_gb_s(lanes: int, capability: str | None) -> float:
    """Both directions together: 50 GB/s a lane, 100 from the fifth generation on."""
    return lanes * (100.0 if _number(capability) >= (10, 0) else 50.0)
