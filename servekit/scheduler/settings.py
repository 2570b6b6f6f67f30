"""What a scheduler is built from."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from servekit.config.scheduling import SchedulerConfig
from servekit.config.schema import Config, HardwareConfig
from servekit.config.targets import SloConfig
from servekit.scheduler.groups import Group, KvSettings
from servekit.spec.kv import KvLayout


class StepTime(Protocol):
    """Seconds of a step of one model copy; `spec.latency.StepModel` is one."""

    def seconds(
        self, decodes: float, context: float, prefill: Sequence[tuple[float, float]] = ()
    ) -> float:
        """`decodes` requests go on by a token, with `context` tokens each on average; of each
        prompt chunk: its tokens, and those that are there already.
        """
        ...


@dataclass(frozen=True, slots=True)
class Settings:
    """`step_time` None: nothing is known of the machine, and no decision rests on seconds."""

    scheduler: SchedulerConfig
    slo: SloConfig
    kv: KvSettings
    max_model_len: int
    step_time: StepTime | None = None
    block_copy_s: float | None = None
    """To copy a block between device and host, seconds; None: nothing is known."""


HOST_GB_S = 20.0
"""Between a device and pinned memory of its host, 10^9 bytes/s one way: sixteen lanes of PCIe 4, of
whose 32 about two thirds arrive. A guess where the lanes are newer, on the safe side."""


def host_gb_s(hardware: HardwareConfig) -> float:
    """A CPU reads and writes its own memory: half of its bandwidth."""
    return hardware.bandwidth_gb_s / 2 if hardware.kind == "cpu" else HOST_GB_S


def settings_of(config: Config, layout: KvLayout, step_time: StepTime | None) -> Settings:
    """Of one copy of the model; engine and simulator build theirs here."""
    groups = tuple(Group(group.window, group.kind == "chunked") for group in layout.groups)
    return Settings(
        scheduler=config.scheduler,
        slo=config.slo,
        kv=KvSettings(
            num_blocks=layout.allocated_blocks,
            block_size=layout.block_size,
            groups=groups,
            prefix_caching=config.kv.prefix_caching,
            host_blocks=int(config.kv.offload_gib * 1024**3) // layout.bytes_per_block,
            step_tokens=layout.in_flight,
        ),
        max_model_len=config.model.max_model_len,
        step_time=step_time,
        block_copy_s=layout.bytes_per_block / (1e9 * host_gb_s(config.hardware)),
    )
