"""Each share of a device's memory, with how sure its size is."""

from dataclasses import dataclass
from typing import Literal

from servekit.config.schema import Config, HardwareConfig
from servekit.spec.activations import activation_bytes, workspace_bytes
from servekit.spec.kv import KvLayout
from servekit.spec.model import GIB, rank_weights, stage_layers

Standing = Literal["exact", "measured", "modelled", "guess"]

RUNTIME_CPU_GIB = 0.6
"""Two processes with interpreter and torch."""

CONTEXT_GIB = {"one": 0.51, "several": 1.45}
"""The context of a CUDA process, as published start-up logs have it on one H100 and on several."""

COLLECTIVES_GIB = {"one": 0.25, "fast": 2.1, "pcie": 0.35, "stages": 0.2}
"""Memory of such a process outside torch, by its neighbours: none; tensor parallelism over NVLink
or over PCIe; other pipeline stages."""

GRAPHS_GIB, GRAPHS_LAYER_GIB, GRAPHS_EXPERTS_GIB = 0.37, 0.0156, 0.0148
"""A pool of graphs for batches of up to 512: fixed, for each layer, for each layer with experts.
Fitted to 41 published start-up logs, which are off by 0.42 GiB at most."""

BANDS = {
    "weights": 0.005,
    "unusual_weights": 0.02,
    "activations": 0.08,
    "state_activations": 1.0,
    "calibrated_weights": 0.002,
    "calibrated_activations": 0.05,
}
"""Half-widths as a share. Unusual are weights outside the decoder and kernels that pad. Activations
of layers with a state are off by a factor of two in the one log there is."""

BANDS_GIB = {"graphs": 0.42, "runtime_cpu": 0.3, "runtime": 0.5, "runtime_several": 1.0}
CALIBRATED_BAND_GIB = 0.1


@dataclass(frozen=True, slots=True)
class Component:
    """One share of the memory; `note` says how its size was found, `band_bytes` how well: half the
    width of the interval around it.
    """

    bytes: int
    standing: Standing
    note: str
    band_bytes: int = 0


def weights_component(
    config: Config, stage: int, *, measured: int | None, stored: int | None
) -> Component:
    if measured is not None:
        return Component(measured, "measured", "as loaded")
    alone = config.parallelism.pipeline == config.parallelism.expert_group == 1
    if stored is not None and alone:
        return Component(stored, "exact", "from the headers of the files")
    planned = rank_weights(config, stage).bytes
    weights, constants = config.quantization.weights, config.calibration.constants
    form = config.model.dtype if weights == "none" else weights
    if constants is not None and constants.weights_ratio is not None:
        size = int(planned * constants.weights_ratio)
        note = f"parameters in {form}, times {constants.weights_ratio:g} of {constants.source}"
        return Component(size, "measured", note, int(size * BANDS["calibrated_weights"]))
    unusual = config.model.shape.other_parameters or weights == "mxfp4"
    plain = weights == "none" and config.speculative.method == "none" and not unusual
    return Component(
        bytes=planned,
        standing="exact" if plain else "modelled",
        note=f"parameters in {form}",
        band_bytes=int(planned * BANDS["unusual_weights" if unusual else "weights"]),
    )


def activations_component(config: Config, stage: int) -> Component:
    size, constants = activation_bytes(config, stage), config.calibration.constants
    if constants is not None and constants.activations_ratio is not None:
        size = int(size * constants.activations_ratio)
        note = (
            f"one step at its limits, times {constants.activations_ratio:g} of {constants.source}"
        )
        if constants.weights_ratio is None:  # the log was of another model on this hardware
            return Component(size, "modelled", note, int(size * BANDS["activations"]))
        return Component(size, "measured", note, int(size * BANDS["calibrated_activations"]))
    band = BANDS["state_activations" if config.model.shape.state else "activations"]
    return Component(size, "modelled", "one step at its limits", int(size * band))


def workspace_component(config: Config, stage: int) -> Component:
    size = workspace_bytes(config, stage)
    if not size:
        return Component(0, "exact", "none")
    note = "gathered keys and values, masks, copies of logits; none with fused kernels"
    return Component(size, "modelled", note)


def graphs_component(config: Config, stage: int, *, measured: int | None = None) -> Component:
    if measured is not None:
        return Component(measured, "exact", "as measured when they were captured")
    constants, shape = config.calibration.constants, config.model.shape
    if config.hardware.kind == "cpu":
        return Component(0, "exact", "none on a CPU")
    if constants is not None and constants.graphs_gib is not None:
        return calibrated(constants.graphs_gib, f"as measured: {constants.source}")
    here = stage_layers(shape.layers, config.parallelism.pipeline)[stage]
    experts = sum(layer in here for layer in shape.moe_layers)
    size = GRAPHS_GIB + GRAPHS_LAYER_GIB * len(here) + GRAPHS_EXPERTS_GIB * experts
    return Component(
        bytes=int(size * GIB),
        standing="modelled",
        note="captured decode steps",
        band_bytes=int(BANDS_GIB["graphs"] * GIB),
    )


def runtime_component(config: Config, layout: KvLayout) -> Component:
    """What is there before any tensor, and the null block, which no request may own."""
    constants, parallelism = config.calibration.constants, config.parallelism
    if constants is not None and constants.runtime_gib is not None:
        base = calibrated(constants.runtime_gib, f"as measured: {constants.source}")
    elif config.hardware.kind == "cpu":
        base = guessed(RUNTIME_CPU_GIB, "interpreter and torch", "runtime_cpu")
    elif parallelism.expert_group > 1:
        fast = "fast" if is_fast(config.hardware) else "pcie"
        size = CONTEXT_GIB["several"] + COLLECTIVES_GIB[fast]
        base = guessed(size, "context, libraries and collectives", "runtime_several")
    elif parallelism.pipeline > 1:
        size = CONTEXT_GIB["several"] + COLLECTIVES_GIB["stages"]
        base = guessed(size, "context, libraries and collectives", "runtime_several")
    else:
        size = CONTEXT_GIB["one"] + COLLECTIVES_GIB["one"]
        base = guessed(size, "context and libraries", "runtime")
    return Component(
        bytes=base.bytes + layout.bytes_per_block,
        standing=base.standing,
        note=f"{base.note}; one null block of the cache",
        band_bytes=base.band_bytes,
    )


def is_fast(hardware: HardwareConfig) -> bool:
    return hardware.link in ("nvlink", "infinity_fabric")


def guessed(size_gib: float, note: str, band: str) -> Component:
    return Component(int(size_gib * GIB), "guess", note, int(BANDS_GIB[band] * GIB))


def calibrated(size_gib: float, note: str) -> Component:
    return Component(int(size_gib * GIB), "measured", note, int(CALIBRATED_BAND_GIB * GIB))
