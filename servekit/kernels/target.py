"""What a kernel is launched on."""

from dataclasses import dataclass
from functools import cache
from typing import Any

from servekit.kernels.language import triton

INTERPRETER = "interpreter"


@dataclass(frozen=True, slots=True)
class Target:
    """`arch` is sm_90, gfx942 ..., or "interpreter"; `gpu` the name of its file of tuned launches,
    "" if it has none; `processors` its multiprocessors (compute units); `shared_bytes` the most
    shared memory of one program."""

    arch: str
    gpu: str
    processors: int
    shared_bytes: int

    @property
    def is_amd(self) -> bool:
        return self.arch.startswith("gfx")

    @property
    def has_fp8(self) -> bool:
        """Instructions for OCP e4m3, and so a Triton type for it."""
        return self.arch == INTERPRETER or self.arch in ("gfx942", "gfx950") or self.at_least(89)

    def at_least(self, capability: int) -> bool:
        """An NVIDIA chip of this compute capability (89 for 8.9) or a later one."""
        return self.arch.startswith("sm_") and int(self.arch[3:]) >= capability


@cache
def interpreted() -> bool:
    """Whether kernels run on the CPU, in Triton's interpreter."""
    return bool(getattr(getattr(triton, "knobs", None), "runtime", None)) and bool(
        triton.knobs.runtime.interpret
    )


def target() -> Target:
    """That of the current device. Raises RuntimeError where Triton has no active driver."""
    if interpreted():
        return Target(INTERPRETER, "", 4, 1 << 30)
    driver = triton.runtime.driver.active
    current = driver.get_current_target()
    return _described(driver, current.backend, current.arch, driver.get_current_device())


@cache
def _described(driver: Any, backend: str, arch: Any, device: int) -> Target:
    properties = driver.utils.get_device_properties(device)
    return Target(
        arch=f"sm_{arch}" if backend == "cuda" else str(arch).split(":")[0],
        gpu=_file_name(getattr(driver, "gpu_name", None) or _device_name(device)),
        processors=properties["multiprocessor_count"],
        shared_bytes=properties["max_shared_mem"],
    )


def _device_name(device: int) -> str:
    import torch  # a driver that only compiles has a name of its own

    return str(torch.cuda.get_device_name(device))


def _file_name(name: str) -> str:
    """NVIDIA H200 -> nvidia_h200"""
    return "_".join("".join(c if c.isalnum() else " " for c in name.lower()).split())
