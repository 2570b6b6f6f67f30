"""What carries the past in each layer: all of it, a window, a chunk, a state, or nothing."""

from collections.abc import Callable
from typing import Any

from servekit.config.architectures.family import Draft
from servekit.config.architectures.values import Values
from servekit.config.base import MOST_LAYERS
from servekit.errors import ConfigError

KINDS = {
    "full_attention": "full",
    "attention": "full",
    "global": "full",
    "indexed_attention": "full",
    "deepseek_sparse_attention": "full",
    "multi_head_attention": "full",
    "sliding_attention": "sliding",
    "sliding": "sliding",
    "local": "sliding",
    "chunked_attention": "chunked",
    "linear_attention": "state",
    "mamba": "state",
    "mamba2": "state",
    "mamba1": "state",
    "kda": "state",
    "conv": "none",
    "mlp": "none",
    "moe": "none",
}
"""What layer_types may name, and what it comes to."""

PATTERN = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
"""Letters of hybrid_override_pattern (Nemotron-H)."""


def number_of_layers(values: Values) -> int:
    """From its key, or where it is left out from the lists with an entry a layer."""
    names = layer_names(values)
    if names is not None and values.found("num_hidden_layers") is None:
        return len(names)
    layers = values.count("num_hidden_layers")
    if layers > MOST_LAYERS:
        raise ConfigError(f"num_hidden_layers must be at most {MOST_LAYERS}; it is {layers}")
    return layers


def layer_names(values: Values) -> list[Any] | None:
    """The entry of each layer, as the file spells it."""
    if pattern := values.word("hybrid_override_pattern"):
        unknown = {*pattern} - {*PATTERN}
        if unknown:
            raise ConfigError(
                f"hybrid_override_pattern must be made of {' '.join(PATTERN)}; it has "
                f"{' '.join(sorted(unknown))}"
            )
        return [PATTERN[letter] for letter in pattern]
    names = values.get("layer_types")
    if names is None:
        return None
    if not isinstance(names, list | tuple) or not names:
        raise ConfigError(f"layer_types must be a list with one entry a layer; it is {names!r}")
    return list(names)


def read_kinds(draft: Draft) -> None:
    """Fills `kinds`, and the keys of the tree that say it."""
    values, layers = draft.values, draft.layers
    names = layer_names(values)
    draft.part_names = names or []
    if names is not None:
        kinds = [_kind(name, layers) for name in names]
        if len(kinds) != layers:
            raise ConfigError(
                f"layer_types must name full_attention or sliding_attention, or another kind, for "
                f"each of {layers} layers; it has {len(kinds)}"
            )
    else:
        kinds = _listed(values, layers) or WINDOWS[draft.family.windows](draft)
    if draft.family.last_is_full:
        kinds[-1] = "full"
    window, kind = _window(draft, kinds)
    if window is None:
        kinds = ["full" if kind in ("sliding", "chunked") else kind for kind in kinds]
    draft.kinds = kinds
    slides = any(kind in ("sliding", "chunked") for kind in kinds)
    full = [layer for layer, kind in enumerate(kinds) if kind == "full"]
    draft.tree |= {
        "sliding_window": window if slides else None,
        "window_kind": kind,
        "full_attention_layers": full if slides else [],
        "mlp_only_layers": [layer for layer, kind in enumerate(kinds) if kind == "none"],
    }


def _kind(name: Any, layers: int) -> str:
    if not isinstance(name, str) or name not in KINDS:
        raise ConfigError(
            f"layer_types names {name!r}; known for each of {layers} layers are {', '.join(KINDS)}"
        )
    return KINDS[name]


def _window(draft: Draft, kinds: list[str]) -> tuple[int | None, str]:
    values = draft.values
    if "chunked" in kinds:
        return values.optional("attention_chunk_size"), "chunked"
    if draft.family.windows == "none" and "sliding" not in kinds:
        return None, "sliding"
    if draft.family.windows == "upper" and not values.flag("use_sliding_window"):
        return None, "sliding"
    return values.optional("sliding_window", "sliding_window_size"), "sliding"


def _listed(values: Values, layers: int) -> list[str] | None:
    """The spellings of single families, each by the key that it alone has."""
    for key, spelled in SPELLINGS.items():
        if values.found(key):
            return spelled(values, layers)
    return None


def _kimi(values: Values, layers: int) -> list[str]:
    """Layer numbers from 1."""
    full = {*values.inner("linear_attn_config").numbers("full_attn_layers")}
    return ["full" if layer + 1 in full else "state" for layer in range(layers)]


def _every(values: Values, layers: int) -> list[str]:
    every = values.count("full_attention_interval")
    return ["full" if (layer + 1) % every == 0 else "state" for layer in range(layers)]


def _jamba(values: Values, layers: int) -> list[str]:
    period, offset = values.count("attn_layer_period"), values.size("attn_layer_offset")
    return ["full" if layer % period == offset else "state" for layer in range(layers)]


def _marked(key: str, zero: str, one: str) -> Callable[[Values, int], list[str]]:
    def kinds(values: Values, layers: int) -> list[str]:
        return [one if mark else zero for mark in values.each(key, layers) or []]

    return kinds


def _indices(key: str, otherwise: str) -> Callable[[Values, int], list[str]]:
    def kinds(values: Values, layers: int) -> list[str]:
        full = {*values.numbers(key)}
        return ["full" if layer in full else otherwise for layer in range(layers)]

    return kinds


SPELLINGS: dict[str, Callable[[Values, int], list[str]]] = {
    "linear_attn_config": _kimi,
    "full_attention_interval": _every,
    "attn_layer_period": _jamba,
    "hybrid_layer_pattern": _marked("hybrid_layer_pattern", "full", "sliding"),
    "attn_type_list": _marked("attn_type_list", "state", "full"),
    "attn_layer_indices": _indices("attn_layer_indices", "state"),
    "full_attn_idxs": _indices("full_attn_idxs", "none"),
}


def _none(draft: Draft) -> list[str]:
    return ["state" if draft.family.state else "full"] * draft.layers


def _all(draft: Draft) -> list[str]:
    return ["sliding"] * draft.layers


def _upper(draft: Draft) -> list[str]:
    lower = draft.values.size("max_window_layers")
    return ["full" if layer < lower else "sliding" for layer in range(draft.layers)]


def _pattern(draft: Draft) -> list[str]:
    given = draft.values.get("sliding_window_pattern")
    if isinstance(given, str) and given and {*given} <= {"L", "G"}:
        letters = given * (draft.layers // len(given) + 1)
        kinds = ["sliding" if letter == "L" else "full" for letter in letters[: draft.layers]]
        return [*kinds[:-1], "full"] if given.endswith("G") else kinds
    every = draft.values.count_or(draft.family.pattern, "sliding_window_pattern")
    return ["sliding" if (layer + 1) % every else "full" for layer in range(draft.layers)]


def _chunked(draft: Draft) -> list[str]:
    """Layers with positions see their chunk, those without see everything (Llama 4)."""
    given = draft.values.get("no_rope_layers")
    marks = draft.values.each("no_rope_layers", draft.layers) if given else None
    every = draft.values.count_or(4, "no_rope_layer_interval")
    positions = marks or [(layer + 1) % every for layer in range(draft.layers)]
    return ["chunked" if position else "full" for position in positions]


WINDOWS: dict[str, Callable[[Draft], list[str]]] = {
    "none": _none,
    "all": _all,
    "upper": _upper,
    "pattern": _pattern,
    "chunked": _chunked,
}
