"""A drawn machine: /proc and /sys/fs/cgroup below a temporary folder."""

from pathlib import Path

import pytest

from servekit.config.machine import (
    best_instructions,
    cpu_name,
    guessed_bandwidth_gb_s,
    guessed_bf16_tflops,
    memory_bytes,
    usable_cores,
)

GIB = 1024**3


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine of 8 GiB in no group."""
    write(tmp_path, "proc/meminfo", f"MemTotal:       {8 * GIB // 1024} kB\nMemFree: 1 kB\n")
    write(tmp_path, "proc/self/cgroup", "0::/\n")
    return tmp_path


def write(root: Path, name: str, text: str) -> None:
    file = root / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_without_limits_the_memory_is_the_machines(root: Path) -> None:
    assert memory_bytes(root) == 8 * GIB


def test_a_limit_of_the_second_version_counts(root: Path) -> None:
    write(root, "sys/fs/cgroup/memory.max", f"{2 * GIB}\n")
    assert memory_bytes(root) == 2 * GIB


def test_max_is_no_limit(root: Path) -> None:
    write(root, "sys/fs/cgroup/memory.max", "max\n")
    write(root, "sys/fs/cgroup/cpu.max", "max 100000\n")
    assert memory_bytes(root) == 8 * GIB
    assert usable_cores(root, affinity=6) == 6


def test_the_smallest_limit_on_the_way_up_counts(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/a/b\n")
    write(root, "sys/fs/cgroup/a/b/memory.max", "max\n")
    write(root, "sys/fs/cgroup/a/memory.max", f"{3 * GIB}\n")
    write(root, "sys/fs/cgroup/memory.max", f"{4 * GIB}\n")
    assert memory_bytes(root) == 3 * GIB


def test_a_limit_above_the_machine_does_not_make_memory(root: Path) -> None:
    write(root, "sys/fs/cgroup/memory.max", f"{64 * GIB}\n")
    assert memory_bytes(root) == 8 * GIB


def test_a_limit_of_the_first_version_counts(root: Path) -> None:
    write(root, "proc/self/cgroup", "4:memory:/box\n3:cpu,cpuacct:/box\n")
    write(root, "sys/fs/cgroup/memory/box/memory.limit_in_bytes", f"{GIB}\n")
    write(root, "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us", "150000\n")
    write(root, "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us", "50000\n")
    assert memory_bytes(root) == GIB
    assert usable_cores(root, affinity=8) == 3


def test_no_quota_of_the_first_version_is_minus_one(root: Path) -> None:
    write(root, "proc/self/cgroup", "3:cpu:/\n")
    write(root, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n")
    write(root, "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
    assert usable_cores(root, affinity=8) == 8


def test_inside_a_container_the_top_of_the_mount_is_its_own_group(root: Path) -> None:
    write(root, "proc/self/cgroup", "4:memory:/docker/0123\n")
    write(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", f"{GIB}\n")
    assert memory_bytes(root) == GIB


@pytest.mark.parametrize(("quota", "cores"), [(250000, 2), (50000, 1), (800000, 4)])
def test_a_quota_is_rounded_down_to_whole_cores_but_never_to_none(
    root: Path, quota: int, cores: int
) -> None:
    write(root, "sys/fs/cgroup/cpu.max", f"{quota} 100000\n")
    assert usable_cores(root, affinity=4) == cores


XEON = """processor	: 0
model name	: INTEL(R) XEON(R) PLATINUM 8581C CPU @ 2.10GHz
flags		: fpu sse2 avx2 avx512f avx512_bf16 amx_bf16 amx_tile
bugs		: spectre_v1
"""
ARM = "processor	: 0\nFeatures	: fp asimd i8mm bf16\n"
OLD = "processor	: 0\nmodel name	: bf16 of a name\nflags		: fpu sse2\n"


@pytest.mark.parametrize(
    ("info", "best", "tflops"),
    [(XEON, "amx_bf16", 1.0), (ARM, "bf16", 0.1), (OLD, None, 0.02), ("", None, 0.02)],
)
def test_the_rate_of_a_core_is_guessed_by_its_best_instructions(
    root: Path, info: str, best: str | None, tflops: float
) -> None:
    write(root, "proc/cpuinfo", info)
    assert best_instructions(root) == best
    assert guessed_bf16_tflops(root) == pytest.approx(tflops * usable_cores(root))


def test_the_cpu_has_the_name_that_the_kernel_gives_it(root: Path) -> None:
    write(root, "proc/cpuinfo", XEON)
    assert cpu_name(root) == "INTEL(R) XEON(R) PLATINUM 8581C CPU @ 2.10GHz"


def test_a_cpu_that_the_kernel_has_no_name_for_is_a_cpu(root: Path) -> None:
    write(root, "proc/cpuinfo", ARM)
    assert cpu_name(root) == cpu_name(root / "nowhere") == "CPU"


def test_a_core_less_means_less_bandwidth(root: Path) -> None:
    write(root, "sys/fs/cgroup/cpu.max", "100000 100000\n")
    assert guessed_bandwidth_gb_s(root) == 10.0


def test_a_socket_reads_no_faster_with_ever_more_cores(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(192)), raising=False)
    assert guessed_bandwidth_gb_s(root) == 300.0


def test_this_machine_can_be_read() -> None:
    assert memory_bytes() > GIB // 8
    assert usable_cores() >= 1
