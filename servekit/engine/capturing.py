"""Captured graphs at start-up: whether there are any, what they may take, and for which cache."""

import gc
from collections.abc import Callable

import torch

from servekit.config.schema import Config
from servekit.engine.cuda_graphs import CudaCapturer, capturable
from servekit.engine.graphs import Capturer, DecodeGraphs, capture, ladder
from servekit.engine.runner import Runner
from servekit.engine.static_inputs import Staging, StaticDecodes, numbers_of_a_step
from servekit.model.cache import KvCache
from servekit.model.decoder import Decoder
from servekit.spec.groups import layer_groups
from servekit.spec.kv import KvLayout
from servekit.spec.memory import ledger
from servekit.spec.tensors import ceil_div

Capturing = Callable[[Decoder, KvCache, StaticDecodes], Capturer]
MOST_STAGED = 2**23
"""Numbers, of 8 bytes; a step of more is copied as it comes."""

Report = Callable[[int, int], None]


def capturing_of(decoder: Decoder, device: str) -> Capturing | None:
    """None where steps run as they are: on a CPU, or by kernels that ask the host for lengths."""
    return CudaCapturer if device != "cpu" and capturable(decoder) else None


def size_beside_graphs(
    config: Config, decoder: Decoder, capturing: Capturing | None, report: Report
) -> tuple[KvLayout, int]:
    """The cache, by the weights and graphs as they are, and the bytes that graphs may take.

    Graphs are captured twice: here against a cache of the null block, to learn what they take, and
    then against the one that is sized by that, for a graph knows memory by its address.
    """
    plan = ledger(config, weights_bytes=decoder.weight_bytes)
    budget_bytes = plan.graphs.bytes + plan.graphs.band_bytes
    if capturing is None:
        return plan.layout, budget_bytes
    taken = trial(config, decoder, plan.layout, budget_bytes, capturing, report)
    return (
        ledger(config, weights_bytes=decoder.weight_bytes, graphs_bytes=taken).layout,
        budget_bytes,
    )


def trial(
    config: Config,
    decoder: Decoder,
    layout: KvLayout,
    budget_bytes: int,
    capturing: Capturing,
    report: Report,
) -> int:
    """What graphs take, bytes: captured against a cache of the null block alone, and let go."""
    groups = [layers for _, layers in layer_groups(config.model.shape, config.kv.hybrid)]
    device = decoder.device
    cache = KvCache(
        config.model.shape, 1, layout.block_size, config.kv.dtype, device, groups=groups
    )
    graphs = graphs_of(config, decoder, cache, layout, budget_bytes, capturing, report)
    taken = graphs.captured.bytes
    del graphs, cache
    gc.collect()
    if device != "cpu":
        torch.cuda.empty_cache()
    return taken


def graphs_of(
    config: Config,
    decoder: Decoder,
    cache: KvCache,
    layout: KvLayout,
    budget_bytes: int,
    capturing: Capturing,
    report: Report,
) -> DecodeGraphs:
    """Of the decode steps of this cache."""
    sizes = ladder(config.scheduler.max_num_seqs)
    static = StaticDecodes(sizes[-1], table_widths(config, layout), decoder.device)
    captured = capture(
        capturing(decoder, cache, static),
        sizes,
        budget_bytes=budget_bytes,
        report=report,
    )
    return DecodeGraphs(captured, static)


def equip(
    runner: Runner,
    config: Config,
    layout: KvLayout,
    budget_bytes: int,
    capturing: Capturing | None,
    report: Report,
) -> None:
    """With graphs of its cache, and on a GPU with buffers that steps pass through."""
    if runner.device != "cpu":
        runner.staging = staging_for(config, layout, runner.device)
    if capturing is not None:
        runner.graphs = graphs_of(
            config, runner.decoder, runner.cache, layout, budget_bytes, capturing, report
        )
        runner.graphs.log()


def staging_for(config: Config, layout: KvLayout, device: str) -> Staging:
    """For the largest step, or for most where that would take much memory."""
    limits = config.scheduler
    numbers = numbers_of_a_step(
        limits.max_num_seqs, limits.max_num_batched_tokens, table_widths(config, layout)
    )
    return Staging(min(numbers, MOST_STAGED), device)


def table_widths(config: Config, layout: KvLayout) -> list[int]:
    """Blocks of the longest request, by group; 0 stands in a table for what is no longer seen."""
    return [ceil_div(config.model.max_model_len, layout.block_size)] * len(layout.groups)
