"""A GGUF file: its names, its layout and its metadata in the terms of `model.checkpoint`."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from gguf.constants import GGMLQuantizationType

from servekit.config.shape import OtherRope, Shape
from servekit.errors import WeightsError
from servekit.model import gguf_experts
from servekit.model.checkpoint import BLOCKS, Checkpoint, Stored, chunks
from servekit.model.gguf_metadata import GgufTensor, read_directory
from servekit.model.rope import inverse_frequencies

TOP_NAMES = {
    "token_embd": "embed_tokens",
    "output_norm": "norm",
    "output": "lm_head",
}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    **gguf_experts.SINGLE,
}
POST_NORM_NAMES = LAYER_NAMES | {
    "ffn_norm": "pre_feedforward_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
ROPE_FACTORS = "rope_freqs.weight"
HEAD = "output.weight"
"""A file without it ties the head to the embedding; one with it means it."""
KINDS = {kind.value: kind.name for kind in GGMLQuantizationType}

_PLAIN = {
    "activation": "silu",
    "norm_unit_offset": False,
    "post_norms": False,
    "scale_embeddings": False,
    "qk_norm": False,
}
_GEMMA = {
    "activation": "gelu_tanh",
    "norm_unit_offset": True,
    "post_norms": True,
    "scale_embeddings": True,
}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": _PLAIN | {"moe.router": "softmax", "moe.renormalise": True},  # Mixtral, too
    "qwen2": _PLAIN,
    "qwen3": _PLAIN | {"qk_norm": True},
    "qwen2moe": _PLAIN | {"moe.router": "softmax", "moe.renormalise": False},
    "qwen3moe": _PLAIN | {"qk_norm": True, "moe.router": "softmax", "moe.renormalise": True},
    "gemma2": _GEMMA | {"qk_norm": False},
    "gemma3": _GEMMA | {"qk_norm": True},
}
"""What each architecture of a file means for a Shape; only these are read."""

METADATA = {
    "block_count": "layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "context_length": "max_position_embeddings",
    "attention.head_count": "heads",
    "attention.head_count_kv": "kv_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.sliding_window": "sliding_window",
    "attn_logit_softcapping": "attention_logit_softcap",
    "final_logit_softcapping": "final_logit_softcap",
    "rope.freq_base": "rope.theta",
    "rope.freq_base_swa": "local_rope.theta",
    "rope.scaling.factor": "rope.factor",
    "rope.scaling.original_context_length": "rope.original_max_position_embeddings",
    **gguf_experts.METADATA,
}
"""Keys after `<architecture>.` and the facts they state."""


def read_gguf(path: Path, shape: Shape) -> Checkpoint:
    """Tensors of a file that is to hold a decoder of this shape.

    Raises WeightsError for a file that is cut short, of another architecture, one part of several,
    or with tensors of a kind that is not supported; each names what it is about.
    """
    directory = read_directory(path)
    metadata = directory.metadata
    architecture = metadata.get("general.architecture")
    if architecture not in ARCHITECTURES:
        raise WeightsError(
            f"{path} is of architecture {architecture!r}; supported are {', '.join(ARCHITECTURES)}"
        )
    if metadata.get("split.count", 1) > 1:
        raise WeightsError(
            f"{path} is one of {metadata['split.count']} parts; merge them into one file first"
        )
    tensors = [_stored(tensor, path, shape, architecture) for tensor in directory.tensors]
    _check_kinds(path, tensors)
    _check_end(path, tensors)
    for stored in tensors:
        if stored.name == ROPE_FACTORS:
            _check_rope_factors(stored, shape)
    return Checkpoint(
        path=path,
        tensors=[
            part
            for stored in tensors
            if stored.name != ROPE_FACTORS
            for part in gguf_experts.one_by_one(stored)
        ],
        facts=_facts(architecture, metadata)
        | {"tie_word_embeddings": not any(stored.name == HEAD for stored in tensors)},
        names=_names(shape),
        unit_offset_added=True,
    )


def _stored(tensor: GgufTensor, path: Path, shape: Shape, architecture: str) -> Stored:
    canonical = _canonical(tensor.name, POST_NORM_NAMES if shape.post_norms else LAYER_NAMES)
    rotated = re.search(r"\.[qk]_proj\.(weight|bias)$", canonical) is not None
    return Stored(
        name=tensor.name,
        canonical=canonical,
        size=tensor.size,
        kind=KINDS.get(tensor.kind, f"type {tensor.kind}"),
        file=path,
        offset=tensor.offset,
        interleaved=shape.head_dim if architecture == "llama" and rotated else None,
    )


def _canonical(name: str, layer_names: Mapping[str, str]) -> str:
    if match := re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name):
        index, part, kind = match.groups()
        return f"layers.{index}.{layer_names.get(part, part)}.{kind}"
    part, _, kind = name.rpartition(".")
    return f"{TOP_NAMES.get(part, part)}.{kind}"


def _names(shape: Shape) -> dict[str, str]:
    layer_names = POST_NORM_NAMES if shape.post_norms else LAYER_NAMES
    names = {f"{canonical}.weight": f"{part}.weight" for part, canonical in TOP_NAMES.items()}
    for index in range(shape.layers):
        for part, canonical in layer_names.items():
            for kind in ("weight", "bias"):
                names[f"layers.{index}.{canonical}.{kind}"] = f"blk.{index}.{part}.{kind}"
    return names | gguf_experts.names_of_experts(shape)


def _check_kinds(path: Path, tensors: list[Stored]) -> None:
    unknown = {stored.kind: stored.name for stored in tensors if stored.kind not in BLOCKS}
    if unknown:
        found = ", ".join(f"{kind} ({name})" for kind, name in unknown.items())
        raise WeightsError(
            f"{path} has tensors in {found}; supported are {', '.join(BLOCKS)}: "
            "choose a file in one of these"
        )
    for stored in tensors:
        if stored.size[-1] % BLOCKS[stored.kind][0]:
            raise WeightsError(
                f"tensor {stored.name} of {path} has rows of {stored.size[-1]} values, which "
                f"{stored.kind} cannot hold; the file is damaged"
            )


def _check_end(path: Path, tensors: list[Stored]) -> None:
    size = path.stat().st_size
    cut = [stored.name for stored in tensors if stored.offset + stored.num_bytes > size]
    if cut:
        some = ", ".join(cut[:5]) + (f" and {len(cut) - 5} more" if len(cut) > 5 else "")
        raise WeightsError(
            f"{path} is truncated: {size} bytes do not reach the end of {some}; fetch it again"
        )


def _facts(architecture: str, metadata: Mapping[str, Any]) -> dict[str, Any]:
    facts = dict(ARCHITECTURES[architecture])
    for key, fact in METADATA.items():
        value = metadata.get(f"{architecture}.{key}")
        if isinstance(value, list) and len(set(value)) == 1:
            value = value[0]
        if value is not None:
            facts[fact] = value
    if "head_dim" not in facts and {"hidden_size", "heads"} <= facts.keys():
        facts["head_dim"] = facts["hidden_size"] // facts["heads"]
    kind = metadata.get(f"{architecture}.rope.scaling.type")
    if kind is not None:
        facts["rope.kind"] = "default" if kind == "none" else kind
    return facts


def _check_rope_factors(stored: Stored, shape: Shape) -> None:
    """Llama 3's scaling comes as what each frequency is divided by."""
    frequencies = inverse_frequencies(shape.rope, shape.head_dim)[0]
    assert not isinstance(shape.rope, OtherRope), "it has no frequencies"
    plain = shape.rope.theta ** -(torch.arange(0, shape.head_dim, 2) / shape.head_dim)
    factors = plain / frequencies
    [(_, theirs)] = chunks(replace(stored, size=(1, stored.size[-1])))
    if theirs.numel() != factors.numel() or not torch.allclose(
        theirs[0].float(), factors, rtol=1e-3
    ):
        raise WeightsError(
            f"{stored.name} of {stored.file} divides rotary frequencies by up to "
            f"{theirs.max():.4g}, the configured {shape.rope.kind} rope by up to "
            f"{factors.max():.4g}; make model.shape.rope that of this file"
        )
