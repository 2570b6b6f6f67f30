"""Experts in a GGUF file: those of a layer are one tensor, and here each is one of its own."""

import re
from collections.abc import Iterator
from dataclasses import replace

from servekit.config.shape import Shape
from servekit.model.checkpoint import Stored

SINGLE = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
}
STACKED = {"gate_exps": "gate_proj", "up_exps": "up_proj", "down_exps": "down_proj"}

METADATA = {
    "expert_count": "moe.experts",
    "expert_used_count": "moe.experts_per_token",
    "expert_feed_forward_length": "moe.intermediate_size",
    "expert_shared_feed_forward_length": "moe.shared_intermediate_size",
}
"""Keys after `<architecture>.` and the facts they state."""


def one_by_one(stored: Stored) -> Iterator[Stored]:
    """The experts of a tensor [experts, outputs, inputs]; any other tensor as it is.

    A gate of one output is a vector in the file, and a row here.
    """
    if stored.canonical.endswith("shared_expert_gate.weight"):
        yield replace(stored, size=(1, stored.size[-1]))
        return
    match = re.fullmatch(r"(layers\.\d+)\.ffn_(\w+_exps)\.weight", stored.canonical)
    if match is None or match[2] not in STACKED or len(stored.size) != 3:
        yield stored
        return
    experts, each = stored.size[0], stored.size[1:]
    step = stored.num_bytes // experts
    for expert in range(experts):
        yield replace(
            stored,
            name=f"{stored.name}[{expert}]",
            canonical=f"{match[1]}.mlp.experts.{expert}.{STACKED[match[2]]}.weight",
            size=each,
            offset=stored.offset + expert * step,
        )


def names_of_experts(shape: Shape) -> dict[str, str]:
    """What a file calls each expert, by its canonical name."""
    return {
        f"layers.{layer}.mlp.experts.{expert}.{ours}.weight": (
            f"blk.{layer}.ffn_{theirs}.weight[{expert}]"
        )
        for layer in shape.moe_layers
        for expert in range(shape.moe.experts if shape.moe else 0)
        for theirs, ours in STACKED.items()
    }
