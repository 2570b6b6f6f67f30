"""Rules between groups: what cannot be run whatever the memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from servekit.config.schema import Config

GROUPED = {"int4_g128": 128, "gptq_g128": 128, "fp8_block": 128, "int4_g32": 32}
"""Weight formats whose scales are shared by so many inputs, which one rank must hold whole."""


def impossible(config: Config) -> Iterator[str]:
    """Sentences, one for each rule that is broken."""
    yield from uneven_heads(config)
    yield from uneven_widths(config)
    yield from uneven_experts(config)
    shape, parallelism = config.model.shape, config.parallelism
    if parallelism.pipeline > shape.layers:
        yield (
            f"parallelism.pipeline={parallelism.pipeline} is more than the {shape.layers} layers"
        )
    if config.speculative.method == "mtp" and not shape.mtp_layers:
        yield "speculative.method=mtp needs model.shape.mtp_layers; this model has none"
    if config.slo.admission == "enforce" and config.slo.ttft_ms is None:
        yield (
            "slo.admission=enforce refuses requests that would miss slo.ttft_ms, which is null; "
            "give a target, or use slo.admission=observe"
        )
    if config.telemetry.vllm_names and config.telemetry.exporter == "none":
        yield (
            "telemetry.vllm_names=true are names at /metrics, which telemetry.exporter=none does "
            "not have; use telemetry.exporter=prometheus"
        )
    if config.kv.pinned_prompts and not config.kv.prefix_caching:
        yield "kv.pinned_prompts are of the prefix cache, and kv.prefix_caching is false"


def uneven_heads(config: Config) -> Iterator[str]:
    shape, tensor = config.model.shape, config.parallelism.tensor
    if shape.attention_layers:
        full = shape.heads_of(full=True).kv_heads
        for kv_heads in (shape.heads,) if shape.mla else (shape.kv_heads, full):
            wrong = [f"{shape.heads} heads"] if shape.heads % tensor else []
            if kv_heads % tensor and tensor % kv_heads and not shape.mla:
                wrong.append(f"{kv_heads} KV heads")
            if wrong:
                yield f"parallelism.tensor={tensor} does not divide {' and '.join(wrong)}"
                break
    match shape.state:
        case None:
            return
        case state if state.kind == "mamba1":
            counts = {"channels": state.inner_size}
        case state if state.kind == "mamba2":
            counts = {"heads": state.heads}
        case state:
            counts = {"key heads": state.key_heads, "value heads": state.value_heads}
    for name, count in counts.items():
        if count % tensor:
            yield f"parallelism.tensor={tensor} does not divide the {count} {name} of the state"


def uneven_widths(config: Config) -> Iterator[str]:
    """Widths of MLPs and experts, also as they are cut by the scales of a weight format."""
    shape, parallelism = config.model.shape, config.parallelism
    widths = []
    if shape.dense_layers:
        widths.append(("intermediate_size", shape.intermediate_size, parallelism.tensor))
    if shape.moe is not None and config.quantization.weights != "mxfp4":
        cut = parallelism.expert_tensor
        widths.append(("moe.intermediate_size", shape.moe.intermediate_size, cut))
    group = GROUPED.get(config.quantization.weights, 1)
    for name, width, parts in widths:
        if width % parts:
            yield f"{parts} ranks do not divide {name} ({width}); choose another parallelism"
        elif parts > 1 and width // parts % group:
            yield (
                f"quantization.weights={config.quantization.weights} has a scale for {group} "
                f"inputs, and {name} ({width}) on {parts} ranks is {width // parts}, not a "
                "multiple of it"
            )


def uneven_experts(config: Config) -> Iterator[str]:
    moe, expert = config.model.shape.moe, config.parallelism.expert
    if moe is None and expert > 1:
        yield f"parallelism.expert={expert} is for a mixture of experts, which this model is not"
    if moe is not None and moe.experts % expert:
        yield f"parallelism.expert={expert} does not divide the {moe.experts} experts"
