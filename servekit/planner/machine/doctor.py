"""`servekit doctor`: what this machine is, what of ours it can run, and an option that says so."""

import sys
from collections import Counter
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import yaml
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from servekit.config.base import DTYPE_BYTES
from servekit.config.engine import KERNEL_OPS
from servekit.config.folders import search_folders
from servekit.config.origins import LOADER
from servekit.config.schema import HardwareConfig
from servekit.config.shape import Shape
from servekit.output import write_json
from servekit.planner.catalogue.models import entries
from servekit.planner.machine.this_machine import Found, Machine, bf16_tflops, look, option, to_yaml
from servekit.spec.decodable import beyond_the_decoder
from servekit.spec.hardware import supports_fp4, supports_fp8
from servekit.spec.model import GIB

FILE = "mine/hardware/this_machine.yaml"
SAVE = f"servekit doctor > {FILE}"
USE = "servekit plan --config-dir mine hardware=this_machine"
ROOM_GIB = 1.0
"""Left beside the weights for a cache worth the name."""


def main(as_json: bool) -> int:
    """The page goes to stderr and the option to stdout, which can be saved as it is."""
    seen = look()
    found = option(seen)
    if as_json:
        write_json(to_json(seen, found))
        return 0
    Console(stderr=True, highlight=False).print(page(seen, found))
    sys.stdout.write(to_yaml(found, comment(seen, found)))
    return 0


def to_json(seen: Machine, found: Found) -> dict[str, Any]:
    models = fitting(found)
    return {
        "option": found.tree,
        "catalogue": found.base if found.exact else None,
        "nearest": None if found.exact else found.base,
        "devices": [
            {
                "kind": device.kind,
                "name": device.name,
                "memory_gib": device.memory_gib,
                "compute_capability": seen.capabilities.get(device.name),
            }
            for device in seen.devices
        ],
        "cpu": {
            "name": seen.cpu,
            "cores": seen.cores,
            "instructions": seen.instructions,
            "memory_gib": seen.memory_gib,
            "bandwidth_gb_s": seen.bandwidth_gb_s,
            "float32_tflops": seen.float32_tflops,
            "bf16_tflops": bf16_tflops(seen),
        },
        "kernels": dict.fromkeys(KERNEL_OPS, kernels(seen)[0]),
        "standing": standing(seen, found),
        "models": {"run": models.run, "planned_only": models.planned},
    }


def standing(seen: Machine, found: Found) -> dict[str, str]:
    """Of the option's numbers."""
    if not seen.devices:
        return {"memory_gib": "exact", "bandwidth_gb_s": "measured", "bf16_tflops": "guess"}
    rates = "published" if found.exact else "guess"
    return {"memory_gib": "published" if found.exact else "modelled", "rates": rates}


def comment(seen: Machine, found: Found) -> list[str]:
    """What heads the option."""
    if not seen.devices:
        return [
            "This machine, by servekit doctor. bandwidth_gb_s: measured, copying with every core;",
            f"bf16_tflops: a guess from {seen.float32_tflops:.3f} measured with 32 bits and the "
            "CPU's instructions.",
        ]
    if found.exact:
        return [f"This machine, by servekit doctor: hardware={found.base} as it is joined here."]
    return [
        f"This machine, by servekit doctor. It is not in the catalogue: rates are those of "
        f"{found.base},",
        "a guess; put in what its maker says.",
    ]


@dataclass(frozen=True, slots=True)
class Fitting:
    """Models of the catalogue whose weights leave room on one device, by what becomes of them."""

    run: list[str]
    planned: list[str]
    """what they compute is not in the decoder of this release"""


def fitting(found: Found) -> Fitting:
    memory = HardwareConfig.model_validate(found.tree).memory_gib
    fit = [
        entry.option
        for entry in entries(search_folders(None))
        if entry.parameters * DTYPE_BYTES[entry.dtype] / GIB + ROOM_GIB <= 0.9 * memory
    ]
    planned = [option for option in fit if beyond_the_decoder(shape_of(option))]
    return Fitting(run=[option for option in fit if option not in planned], planned=planned)


def shape_of(option: str) -> Shape:
    found = (folder / "model" / f"{option}.yaml" for folder in search_folders(None))
    file = next(file for file in found if file.is_file())
    tree = yaml.load(file.read_text(encoding="utf-8"), Loader=LOADER)
    return Shape.model_validate(tree["shape"])


def page(seen: Machine, found: Found) -> RenderableType:
    models = fitting(found)
    parts: list[RenderableType] = [headline(seen, found), Text(), facts(seen), Text()]
    parts += named(
        "Models whose weights fit one device and run; plan says for which context", models.run
    )
    if models.planned:
        parts += named("Models whose weights fit, and that this release only plans", models.planned)
    return Group(
        *parts,
        Text.assemble(("Save the option below ", "bold"), SAVE),
        Text.assemble(("Plan with it          ", "bold"), USE),
        Text(),
    )


def named(title: str, options: list[str]) -> list[RenderableType]:
    listed = Padding(Text(", ".join(options) or "none"), (0, 0, 0, 2))
    return [Text(title, style="bold"), listed, Text()]


def headline(seen: Machine, found: Found) -> Text:
    if not seen.devices:
        return Text.assemble(("A CPU ", "bold"), f"hardware=cpu; {seen.cpu}")
    count = f"{len(seen.devices)} x {seen.devices[0].name} "
    if found.exact:
        return Text.assemble((count, "bold green"), f"hardware={found.base}")
    return Text.assemble(
        (count, "bold yellow"), f"not in the catalogue; the nearest is hardware={found.base}"
    )


def facts(seen: Machine) -> Table:
    """A line for each thing that was found, with the standing of its number."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False, show_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_column(style="dim", no_wrap=True)
    by, why = kernels(seen)
    kinds = ("kernels", f"{by}: {', '.join(KERNEL_OPS)}", why)
    for name, value, how in [*accelerator_facts(seen), *cpu_facts(seen), kinds]:
        table.add_row(name, value, how)
    return table


def kernels(seen: Machine) -> tuple[str, str]:
    """What engine.kernels=auto comes to here, and why."""
    if not seen.devices:
        return "torch", "no GPU"
    if find_spec("triton") is None:
        return "torch", "pip install triton, or engine.kernels=torch"
    return "triton", "a GPU"


def accelerator_facts(seen: Machine) -> list[tuple[str, str, str]]:
    if not seen.devices:
        return [("accelerators", "none that nvidia-smi or rocm-smi sees", "")]
    alike = Counter(str(device) for device in seen.devices)
    rows = [("devices", f"{count} x {device}", "driver") for device, count in alike.items()]
    capability = seen.capability
    if capability is not None:
        computes = ["16-bit"]
        computes += ["fp8"] if supports_fp8(capability) else []
        computes += ["fp4"] if supports_fp4(capability) else []
        rows.append(("capability", f"{capability}: {', '.join(computes)}", "driver"))
    if seen.link is not None:
        lanes = f", {seen.link.lanes} lanes" if seen.link.lanes else ""
        rows.append(("link", f"{seen.link.kind}{lanes}, {seen.link.devices} devices", "driver"))
    return rows


def cpu_facts(seen: Machine) -> list[tuple[str, str, str]]:
    best = f", {seen.instructions}" if seen.instructions else ""
    return [
        ("CPU", f"{seen.cpu}, {seen.cores} usable cores{best}", "kernel"),
        ("memory", f"{seen.memory_gib:.2f} GiB", "kernel"),
        ("bandwidth", f"{seen.bandwidth_gb_s:.1f} GB/s, copying with every core", "measured"),
        ("32-bit products", f"{seen.float32_tflops:.3f} TFLOPS", "measured"),
        ("16-bit products", f"{bf16_tflops(seen):.3f} TFLOPS", "guess"),
    ]
