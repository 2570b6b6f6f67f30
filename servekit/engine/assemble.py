"""Weights, cache, runner and scheduler of one engine, and what they measured."""

import time
from collections.abc import Callable
from pathlib import Path

from servekit.config.schema import Config
from servekit.engine.messages import Loading, Ready
from servekit.engine.runner import Runner
from servekit.engine.warmup import warm_up
from servekit.errors import DoesNotFit, NotBuilt
from servekit.model.cache import KvCache
from servekit.model.decoder import Decoder
from servekit.model.weights import load_decoder
from servekit.scheduler.scheduler import Scheduler
from servekit.spec.kv import KvLayout
from servekit.spec.memory import ledger
from servekit.spec.model import GIB

Report = Callable[[Loading], None]


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
    config: Config, decoder: Decoder, report: Report, *, load_s: float = 0.0
) -> tuple[Scheduler, Runner, Ready]:
    """Sizes the cache by the weights as loaded, and runs the worst step.

    Raises DoesNotFit where the cache cannot be had, NotBuilt where it is of a kind that the decoder
    does not have, WeightsError where the model gives no numbers.
    """
    layout = ledger(config, weights_bytes=decoder.weight_bytes).layout
    cache = allocate(config, layout)
    runner = Runner(decoder, cache, device=device_of(config))
    started = time.monotonic()
    warm_up(runner, config, lambda done, total: report(Loading("warmup", done, total)))
    scheduler = Scheduler(
        config.scheduler,
        num_blocks=layout.allocated_blocks,
        block_size=layout.block_size,
        max_model_len=config.model.max_model_len,
        prefix_caching=config.kv.prefix_caching,
    )
    measured = Ready(
        max_model_len=config.model.max_model_len,
        capacity_tokens=layout.capacity_tokens,
        num_blocks=layout.num_blocks,
        weights_bytes=decoder.weight_bytes,
        kv_bytes=cache.bytes_to_own,
        load_s=load_s,
        warmup_s=time.monotonic() - started,
    )
    return scheduler, runner, measured


def allocate(config: Config, layout: KvLayout) -> KvCache:
    """Blocks that requests may own, and the null block beside them."""
    if not layout.uniform:
        raise NotBuilt(
            "kv.hybrid=true keeps less of sliding-window layers than of others, which this release "
            "plans but does not run; use kv.hybrid=false"
        )
    if layout.num_blocks == 0:
        raise DoesNotFit(
            f"what is left for the KV cache is not one block of {layout.block_size} tokens "
            f"({layout.bytes_per_block / GIB:.3f} GiB); give it more (kv.memory_gib) or take a "
            "smaller model"
        )
    kv = config.kv
    try:
        return KvCache(
            config.model.shape,
            layout.allocated_blocks,
            layout.block_size,
            kv.dtype,
            device_of(config),
        )
    except (RuntimeError, MemoryError) as refused:
        raise DoesNotFit(
            f"a KV cache of {layout.bytes / GIB:.2f} GiB could not be allocated: {refused}; "
            "lower kv.memory_gib or kv.memory_fraction"
        ) from refused
