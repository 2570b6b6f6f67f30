"""What this machine gives a process: memory and cores, with container limits counted.

Everything is read below `root`, so that a test can draw its own machine.
"""

import os
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")


def memory_bytes(root: Path = ROOT) -> int:
    """Physical memory, or the smallest cgroup limit if that is less."""
    limits = [
        number
        for folder, version in _cgroups("memory", root)
        if (number := _number(folder / ("memory.max" if version == 2 else "memory.limit_in_bytes")))
        is not None
    ]
    return min([_physical_bytes(root), *limits])


def usable_cores(root: Path = ROOT, affinity: int | None = None) -> int:
    """Cores this process may run on, cut down to the cgroup's CPU quota; at least 1.

    A quota of 2.5 cores counts as 2: threads beyond it would only be throttled.
    """
    if affinity is None:
        affinity = _affinity()
    quotas = [
        quota
        for folder, version in _cgroups("cpu", root)
        if (quota := _cpu_quota(folder, version)) is not None
    ]
    return max(1, int(min([float(affinity), *quotas])))


def _affinity() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _physical_bytes(root: Path) -> int:
    try:
        text = (root / "proc/meminfo").read_text(encoding="ascii")
    except OSError:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    kib = next(line.split()[1] for line in text.splitlines() if line.startswith("MemTotal:"))
    return int(kib) * 1024


def _cgroups(controller: str, root: Path) -> Iterator[tuple[Path, int]]:
    """Folders whose limits bind this process, its own group and all above, with the version.

    Inside a container the path in /proc/self/cgroup may be the host's and not exist; then the
    mount's top is the container's own group.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            yield from _upwards(root / "sys/fs/cgroup", path, 2)
        elif controller in controllers.split(","):
            for mount in {controller, controllers}:
                yield from _upwards(root / "sys/fs/cgroup" / mount, path, 1)


def _upwards(mount: Path, path: str, version: int) -> Iterator[tuple[Path, int]]:
    parts = [part for part in path.split("/") if part not in ("", "..")]
    for depth in range(len(parts), -1, -1):
        folder = mount.joinpath(*parts[:depth])
        if folder.is_dir():
            yield folder, version


def _cpu_quota(folder: Path, version: int) -> float | None:
    """Cores' worth of time; None without a limit."""
    if version == 2:
        words = _text(folder / "cpu.max").split()
        if len(words) != 2 or words[0] == "max":
            return None
        return int(words[0]) / int(words[1])
    quota = _number(folder / "cpu.cfs_quota_us")
    period = _number(folder / "cpu.cfs_period_us")
    return quota / period if quota is not None and quota > 0 and period else None


def _number(file: Path) -> int | None:
    text = _text(file)
    return int(text) if text.lstrip("-").isdigit() else None


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii").strip()
    except OSError:
        return ""


CORE_BANDWIDTH_GB_S = 10.0
"""What one core of a server reads from memory, with others reading too."""
SOCKET_BANDWIDTH_GB_S = 300.0
"""Eight channels of DDR5: more cores do not read faster."""

CORE_TFLOPS = {
    "amx_bf16": 1.0,
    "avx512_bf16": 0.2,
    "avx512f": 0.1,
    "avx2": 0.05,
    "bf16": 0.1,  # Arm
    "asimd": 0.03,
}
"""16-bit matrix products of one core by its best instructions, 10^12 operations/s."""
ANY_CORE_TFLOPS = 0.02


def guessed_bandwidth_gb_s(root: Path = ROOT) -> float:
    return min(SOCKET_BANDWIDTH_GB_S, CORE_BANDWIDTH_GB_S * usable_cores(root))


def guessed_bf16_tflops(root: Path = ROOT) -> float:
    each = CORE_TFLOPS.get(best_instructions(root) or "", ANY_CORE_TFLOPS)
    return round(each * usable_cores(root), 3)


def best_instructions(root: Path = ROOT) -> str | None:
    """The first of `CORE_TFLOPS` that this CPU has; None where it says nothing of the kind."""
    flags = set((_cpu_info("flags", root) or _cpu_info("Features", root)).split())
    return next((flag for flag in CORE_TFLOPS if flag in flags), None)


def cpu_name(root: Path = ROOT) -> str:
    """As the kernel calls it; Arm machines may not say."""
    return _cpu_info("model name", root) or "CPU"


def _cpu_info(key: str, root: Path) -> str:
    """The first line of that key."""
    for line in _text(root / "proc/cpuinfo").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return ""
