"""Every kernel, compiled for every architecture: what it needs, and what it must not."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table

from benchmarks.kernels.cases import Case, all_cases
from benchmarks.kernels.compile_only import CHIPS, Chip, compiling
from benchmarks.kernels.machine_code import Needs, needs, programs_at_once
from servekit.kernels.tuned import tables


@dataclass(frozen=True, slots=True)
class Row:
    """`wrong` says what stands against a kernel, "" for nothing."""

    target: str
    case: str
    needs: Needs | None
    at_once: int
    wrong: str


def rows(targets: Sequence[str], op: str | None = None) -> Iterator[Row]:
    """Of the defaults, and of the parameters tuned for each GPU, for its architecture."""
    for target in targets:
        names = ["nobody's", *(gpu for gpu in tables() if TUNED_ON.get(gpu) == target)]
        for gpu in names:
            for case in all_cases():
                if op in (None, case.op):
                    yield from _compiled(target, gpu, case)


TUNED_ON = {"nvidia_h200": "sm_90", "nvidia_h100_80gb_hbm3": "sm_90", "nvidia_b200": "sm_100"}
"""The architecture of each GPU that there may be a table for."""


def _compiled(target: str, gpu: str, case: Case) -> Iterator[Row]:
    chip = CHIPS[target]
    label = f"{case.op}, {case.name}" + ("" if gpu == "nobody's" else f" ({gpu})")
    try:
        with compiling(target, gpu) as compiled:
            case.launch()
    except Exception as fault:  # whatever the compiler raises, the table goes on
        said = str(fault).strip().splitlines() or [type(fault).__name__]
        yield Row(target, label, None, 0, f"does not compile: {said[-1][:90]}")
        return
    for place, kernel in enumerate(compiled):
        one = needs(kernel)
        products = case.products.get(target, "") if place == 0 else ""
        wrong = "; ".join(_objections(one, chip, case.hot, products))
        yield Row(target, label, one, programs_at_once(one, chip), wrong)


def _objections(one: Needs, chip: Chip, hot: bool, products: str) -> Iterator[str]:
    if hot and one.spilled_bytes:
        yield f"{one.spilled_bytes} bytes spilled"
    if one.shared_bytes > chip.shared_kib << 10:
        yield f"{one.shared_bytes >> 10} KiB of shared memory, {chip.shared_kib} there are"
    if products and products not in one.products:
        yield f"no {products}, but {', '.join(one.products) or 'no product of matrices'}"


def main(targets: Sequence[str], op: str | None, as_json: bool) -> int:
    """Prints the table; 1 if anything is wrong in it."""
    found = list(rows(targets, op))
    if as_json:
        print(json.dumps([asdict(row) for row in found], indent=1))
    else:
        Console(width=150).print(_table(found))
    return int(any(row.wrong for row in found))


def _table(found: Sequence[Row]) -> Table:
    table = Table(title=f"{len(found)} kernels compiled, {sum(bool(r.wrong) for r in found)} wrong")
    for heading in ("target", "operation", "kernel", "warps"):
        table.add_column(heading)
    for heading in ("registers", "spilled", "shared KiB", "at once"):
        table.add_column(heading, justify="right")
    table.add_column("products")
    table.add_column("wrong", style="bold red")
    for row in found:
        one = row.needs
        if one is None:
            table.add_row(row.target, row.case, *["-"] * 7, row.wrong)
            continue
        products = ", ".join(f"{count} {name}" for name, count in one.products.items())
        table.add_row(
            row.target,
            row.case,
            one.kernel.strip("_").removesuffix("_kernel"),
            f"{one.warps}",
            f"{one.registers}",
            f"{one.spilled_bytes}",
            f"{one.shared_bytes / 1024:.1f}",
            f"{row.at_once}",
            products,
            row.wrong,
        )
    return table
