"""Vision towers and what projects their output into the decoder, counted as parameters."""

from collections.abc import Callable, Mapping
from typing import Any

from servekit.config.architectures.defaults import defaults_of
from servekit.config.architectures.family import Draft
from servekit.config.architectures.values import Values
from servekit.config.architectures.vision import TOWERS, estimated, layers_and_width

Projector = Callable[[Values, Values, int, int], int]
"""From the whole file, the tower's part, its width and the decoder's: parameters."""


def read_towers(draft: Draft, config: Mapping[str, Any]) -> None:
    """A tower of a kind that is not known is estimated from its depth and width."""
    outer = Values(config)
    kind = outer.word("model_type") or ""
    for key in ("vision_config", "audio_config"):
        inner = outer.inner(key).tree or outer.inner("thinker_config").inner(key).tree
        if inner:
            _read_tower(draft, outer, kind, Values(inner))
    if outer.found("vision_config") and kind not in TEXT_ONLY_SERVED:
        draft.note(f"it is multimodal ({kind})")


TEXT_ONLY_SERVED = ("gemma3",)
"""Checkpoints whose decoder is served without their tower."""


def _read_tower(draft: Draft, outer: Values, kind: str, part: Values) -> None:
    name = VISION_OF.get(kind) or part.word("model_type") or ""
    defaults = defaults_of(name) or defaults_of(VISION_DEFAULTS.get(kind, ""))
    tower = Values({**defaults, **part.tree})
    if name in TOWERS:
        draft.other += TOWERS[name](tower, draft.hidden)
    elif layers_and_width(tower) is not None:
        draft.other += estimated(tower)
        draft.note(f"a tower of kind {name or kind}, its size estimated")
    else:
        draft.note(f"a tower of kind {name or kind}, not counted")
        return
    projector = PROJECTORS.get(kind)
    if projector is not None and name in TOWERS:
        _, width = layers_and_width(tower) or (0, 0)
        draft.other += projector(outer, tower, width, draft.hidden)


VISION_OF: dict[str, str] = {
    "qwen2_vl": "qwen2_vl_vision",
    "qwen2_5_vl": "qwen2_5_vl_vision",
    "qwen3_vl": "qwen3_vl_vision",
    "qwen3_vl_moe": "qwen3_vl_vision",
    "qwen3_5": "qwen3_5_vision",
    "qwen3_5_moe": "qwen3_5_vision",
    "kimi_vl": "moonvit",
    "kimi_k25": "moonvit",
    "glm4v": "glm4v_vision",
    "glm4v_moe": "glm4v_vision",
    "glm46v": "glm4v_vision",
    "minimax_m3_vl": "minimax_m3_vl_vision",
    "step3p7": "step3p7_vision",
    "idefics3": "idefics3_vision",
    "smolvlm": "idefics3_vision",
    "llama4": "llama4_vision_model",
    "mllama": "mllama_vision_model",
}
"""Towers that a file does not name, or names otherwise."""

VISION_DEFAULTS: dict[str, str] = {"kimi_vl": "kimi_k25_vision", "smolvlm": "smolvlm_vision"}


def _llava(outer: Values, tower: Values, width: int, text: int) -> int:
    layers = outer.get("vision_feature_layer")
    width *= len(layers) if isinstance(layers, list) else 1
    bias = 0 if outer.tree.get("multimodal_projector_bias") is False else 2 * text
    return width * text + text * text + bias


def _llava_next(outer: Values, tower: Values, width: int, text: int) -> int:
    return _llava(outer, tower, width, text) + text


def _mistral(outer: Values, tower: Values, width: int, text: int) -> int:
    merged = outer.count_or(2, "spatial_merge_size") ** 2 * width
    bias = 2 * text if outer.flag("multimodal_projector_bias") else 0
    return width + merged * width + width * text + text * text + bias


def _gemma3(outer: Values, tower: Values, width: int, text: int) -> int:
    return width * text + width


def _linear(outer: Values, tower: Values, width: int, text: int) -> int:
    return width * text


def _biased(outer: Values, tower: Values, width: int, text: int) -> int:
    return width * text + text


def _internvl(outer: Values, tower: Values, width: int, text: int) -> int:
    ratio = outer.number(0.5, "downsample_ratio")
    merged = round(width / ratio**2)
    return 2 * merged + merged * text + text + text * text + text


def _idefics(outer: Values, tower: Values, width: int, text: int) -> int:
    return outer.count_or(2, "scale_factor") ** 2 * width * text


def _step(outer: Values, tower: Values, width: int, text: int) -> int:
    return 4 * width * text + (text if outer.flag("projector_bias") else 0)


def _cohere(outer: Values, tower: Values, width: int, text: int) -> int:
    merged = outer.count_or(2, "downsample_factor") ** 2 * width
    inner = outer.count_or(36864, "alignment_intermediate_size")
    return merged * inner + inner + inner // 2 * text + text


PROJECTORS: dict[str, Projector] = {
    "llava": _llava,
    "llava_next": _llava_next,
    "mistral3": _mistral,
    "gemma3": _gemma3,
    "gemma4": _linear,
    "paligemma": _biased,
    "internvl": _internvl,
    "idefics3": _idefics,
    "smolvlm": _idefics,
    "cohere2_vision": _cohere,
    "step3p7": _step,
}
