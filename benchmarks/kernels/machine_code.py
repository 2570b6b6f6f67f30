"""What a compiled kernel needs of a chip, read from its machine code."""

import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triton import knobs
from triton.backends.nvidia.compiler import get_ptxas

from benchmarks.kernels.compile_only import Chip

PRODUCTS = r"HGMMA|QGMMA|IGMMA|HMMA|IMMA|QMMA|UTC[HQO]MMA|v_mfma|v_wmma"
"""Instructions that multiply matrices: of Hopper's warp groups, of a warp, of Blackwell, of AMD."""


@dataclass(frozen=True, slots=True)
class Needs:
    """Registers of a thread, bytes of it that are spilled to memory, shared memory of a program,
    and how often each instruction that multiplies matrices stands in the code."""

    kernel: str
    warps: int
    stages: int
    registers: int
    spilled_bytes: int
    shared_bytes: int
    products: dict[str, int]


def needs(kernel: Any) -> Needs:
    backend = kernel.metadata.target.backend
    registers, spilled, text = _nvidia(kernel) if backend == "cuda" else _amd(kernel)
    return Needs(
        kernel=kernel.metadata.name,
        warps=kernel.metadata.num_warps,
        stages=kernel.metadata.num_stages,
        registers=registers,
        spilled_bytes=spilled,
        shared_bytes=kernel.metadata.shared,
        products=dict(Counter(re.findall(rf"\b({PRODUCTS})", text))),
    )


def _nvidia(kernel: Any) -> tuple[int, int, str]:
    ptx = kernel.asm["ptx"]
    (arch,) = re.findall(r"\.target\s+(sm_\w+)", ptx)[:1]
    with tempfile.TemporaryDirectory() as folder:
        source, cubin = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(ptx)
        cubin.write_bytes(kernel.asm["cubin"])
        ptxas = get_ptxas(kernel.metadata.target.arch).path
        told = _run(ptxas, "-v", f"--gpu-name={arch}", str(source), "-o", f"{folder}/out").stderr
        text = _run(knobs.nvidia.nvdisasm.path, "-c", str(cubin)).stdout
    registers = int(re.findall(r"Used (\d+) registers", told)[0])
    spilled = int(re.findall(r"(\d+) bytes spill stores", told)[0])
    return registers, spilled, text


def _amd(kernel: Any) -> tuple[int, int, str]:
    text = kernel.asm["amdgcn"]

    def number(key: str) -> int:
        return int((re.findall(rf"\.{key}:\s*(\d+)", text) or ["0"])[0])

    return number("vgpr_count"), 4 * number("vgpr_spill_count"), text


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, check=True, capture_output=True, text=True)


def programs_at_once(one: Needs, chip: Chip) -> int:
    """On a multiprocessor, by registers, shared memory and warps; NVIDIA's granularity of 256
    registers a warp and 1 KiB of shared memory that each program takes besides."""
    per_warp = -(-max(1, one.registers) * chip.target.warp_size // 256) * 256
    files = 65536 if chip.target.backend == "cuda" else 4 * 512 * 64
    by_registers = files // (per_warp * one.warps)
    by_shared = (chip.processor_shared_kib << 10) // (one.shared_bytes + 1024)
    return min(by_registers, by_shared, chip.warps // one.warps, 32)
