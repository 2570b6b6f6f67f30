"""A device for Triton that compiles and runs nothing: the project's launchers, on any machine.

    with compiling("sm_90") as compiled:
        rms_norm_triton(torch.empty(4, 4096, device="meta"), ...)

Launchers take meta tensors, specialise, compile for the target and "launch" nothing. Needs neither
GPU nor driver; TRITON_INTERPRET must not be set when triton is imported.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.compiler import CompiledKernel
from triton.runtime import driver


@dataclass(frozen=True, slots=True)
class Chip:
    """`shared_kib`: most of one program, and of a multiprocessor, whose `registers` and `warps` are
    shared out too; the published numbers of the compute capability or of the architecture."""

    target: GPUTarget
    processors: int
    shared_kib: int
    processor_shared_kib: int
    warps: int


CHIPS = {
    "sm_80": Chip(GPUTarget("cuda", 80, 32), 108, 163, 164, 64),
    "sm_89": Chip(GPUTarget("cuda", 89, 32), 142, 99, 100, 48),
    "sm_90": Chip(GPUTarget("cuda", 90, 32), 132, 227, 228, 64),
    "sm_100": Chip(GPUTarget("cuda", 100, 32), 148, 227, 228, 64),
    "gfx942": Chip(GPUTarget("hip", "gfx942", 64), 304, 64, 64, 32),
}


class Utilities:
    """What Triton asks of a driver's library."""

    def __init__(self, chip: Chip) -> None:
        self.chip = chip

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {
            "max_shared_mem": self.chip.shared_kib << 10,
            "multiprocessor_count": self.chip.processors,
            "max_num_regs": 65536,
            "warpSize": self.chip.target.warp_size,
        }

    def load_binary(self, *_: Any) -> tuple[int, int, int, int, int]:
        return 1, 1, 0, 0, 1024


class CompileOnly:
    """A driver by its shape: the methods that a launch calls. `gpu_name` is nobody's, so that no
    table of tuned parameters is taken, unless one is named."""

    def __init__(self, arch: str, gpu_name: str) -> None:
        self.arch, self.chip = arch, CHIPS[arch]
        self.gpu_name = gpu_name
        self.utils = Utilities(self.chip)

    def get_current_target(self) -> GPUTarget:
        return self.chip.target

    def get_current_device(self) -> int:
        return list(CHIPS).index(self.arch)  # Triton keeps what it compiled by device

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def map_python_to_cpp_type(self, kind: str) -> str:
        return kind

    def launcher_cls(self, source: Any, metadata: Any) -> Any:
        return lambda *arguments, **options: None


@contextmanager
def compiling(arch: str, gpu_name: str = "nobody's") -> Iterator[list[CompiledKernel]]:
    """The list has every kernel that was launched inside, once."""
    compiled: list[CompiledKernel] = []
    active, launch_metadata = driver._active, CompiledKernel.launch_metadata

    def noted(self: CompiledKernel, *arguments: Any) -> Any:
        if all(self is not one for one in compiled):
            compiled.append(self)
        return launch_metadata(self, *arguments)

    driver.set_active(CompileOnly(arch, gpu_name))
    CompiledKernel.launch_metadata = noted
    try:
        yield compiled
    finally:
        CompiledKernel.launch_metadata = launch_metadata
        driver._active = active
