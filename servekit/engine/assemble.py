"""Weights, cache, runner and scheduler of one engine, and what they measured."""

import logging
import time
from collections.abc import Callable
from pathlib import Path

from servekit.config.schema import Config
from servekit.engine.capturing import Capturing, capturing_of, equip, size_beside_graphs
from servekit.engine.messages import Loading, Phase, Ready
from servekit.engine.runner import Runner
from servekit.engine.warmup import warm_up
from servekit.errors import DoesNotFit, NotBuilt
from servekit.model.cache import KvCache
from servekit.model.decoder import Decoder
from servekit.model.weights import load_decoder
from servekit.scheduler.scheduler import Scheduler
from servekit.scheduler.settings import settings_of
from servekit.spec.groups import layer_groups
from servekit.spec.kv import KvLayout
from servekit.spec.latency import step_model
from servekit.spec.model import GIB
from servekit.spec.tabled import Tabled

logger = logging.getLogger(__name__)

Report = Callable[[Loading], None]


def told(report: Report, phase: Phase) -> Callable[[int, int], None]:
    return lambda done, total: report(Loading(phase, done, total))


def device_of(config: Config) -> str:
    return "cpu" if config.hardware.kind == "cpu" else "cuda:0"


def load(config: Config, path: Path, report: Report) -> tuple[Decoder, float]:
    """The decoder and the seconds it took; raises WeightsError."""
    started = time.monotonic()
    decoder = load_decoder(
        path,
        config.model.shape,
        config.model.dtype,
        device_of(config),
        lambda done, total: report(Loading("load", done, total)),
    )
    return decoder, time.monotonic() - started


def assemble(
    config: Config,
    decoder: Decoder,
    report: Report,
    *,
    load_s: float = 0.0,
    capturing: Capturing | None = None,
) -> tuple[Scheduler, Runner, Ready]:
    """Sizes the cache by the weights and graphs as they are, and runs the worst step.

    Raises DoesNotFit where the cache cannot be had, NotBuilt where it is of a kind that the decoder
    does not have or of kernels that are not here, WeightsError where the model gives no numbers.
    """
    engine = config.engine
    decoder.compute_by(engine.kernels_by_op, deterministic=engine.deterministic)
    logger.info("kernels: %s", decoder.kernels)
    capturing = capturing or capturing_of(decoder, device_of(config))
    layout, budget = size_beside_graphs(config, decoder, capturing, told(report, "trial"))
    settings = settings_of(config, layout, Tabled(step_model(config)))
    cache, host = allocate(config, layout, settings.kv.host_blocks)
    runner = Runner(decoder, cache, device=device_of(config), host=host)
    equip(runner, config, layout, budget, capturing, told(report, "capture"))
    started = time.monotonic()
    slowest_step_s = warm_up(runner, config, layout, told(report, "warmup"))
    scheduler = Scheduler(settings)
    measured = Ready(
        max_model_len=config.model.max_model_len,
        max_servable_tokens=scheduler.kv.max_servable_tokens,
        capacity_tokens=layout.capacity_tokens,
        num_blocks=layout.num_blocks,
        weights_bytes=decoder.weight_bytes,
        kv_bytes=cache.bytes_to_own,
        load_s=load_s,
        warmup_s=time.monotonic() - started,
        slowest_step_s=slowest_step_s,
        graphs=0 if runner.graphs is None else len(runner.graphs.sizes),
        graphs_bytes=0 if runner.graphs is None else runner.graphs.captured.bytes,
    )
    return scheduler, runner, measured


def allocate(config: Config, layout: KvLayout, host_blocks: int) -> tuple[KvCache, KvCache | None]:
    """Blocks that requests may own, the null block beside them, and those of host memory."""
    if not runs(layout):
        raise NotBuilt(
            "kv.hybrid=true keeps less of some layers than of others, which this release runs for "
            "sliding windows whose keys and values are as wide as those of other layers; use "
            "kv.hybrid=false"
        )
    if layout.num_blocks == 0:
        raise DoesNotFit(
            f"what is left for the KV cache is not one block of {layout.block_size} tokens "
            f"({layout.bytes_per_block / GIB:.3f} GiB); give it more (kv.memory_gib) or take a "
            "smaller model"
        )
    device = device_of(config)
    try:
        cache = _cache(config, layout, layout.allocated_blocks, device)
    except (RuntimeError, MemoryError) as refused:
        raise DoesNotFit(
            f"a KV cache of {layout.bytes / GIB:.2f} GiB could not be allocated: {refused}; "
            "lower kv.memory_gib or kv.memory_fraction"
        ) from refused
    if host_blocks == 0:
        return cache, None
    try:
        return cache, _cache(config, layout, host_blocks, "cpu", pinned=device != "cpu")
    except (RuntimeError, MemoryError) as refused:
        raise DoesNotFit(
            f"host memory of {config.kv.offload_gib:g} GiB could not be allocated: {refused}; "
            "lower kv.offload_gib"
        ) from refused


def runs(layout: KvLayout) -> bool:
    """Blocks of every group hold as many tokens of layers that see all or a sliding window."""
    return all(group.kind in ("full", "sliding") and group.stretch == 1 for group in layout.groups)


def _cache(
    config: Config, layout: KvLayout, blocks: int, device: str, *, pinned: bool = False
) -> KvCache:
    groups = [layers for _, layers in layer_groups(config.model.shape, config.kv.hybrid)]
    return KvCache(
        config.model.shape,
        blocks,
        layout.block_size,
        config.kv.dtype,
        device,
        groups=groups,
        pinned=pinned,
    )
