"""Which layers have experts, how many, how wide, and what is shared beside them."""

from typing import Any

from servekit.config.architectures.family import Draft
from servekit.config.architectures.values import Values
from servekit.errors import ConfigError


def read_experts(draft: Draft) -> None:
    """Fills `moe`, and None where no layer has experts."""
    values, family = draft.values, draft.family
    experts = _same(draft, "num_experts") or 0
    dense = dense_layers(draft) if experts else []
    draft.tree["moe"] = None
    if not experts or len(dense) == draft.layers:
        _only_shared(draft)
        return
    width = _same(draft, "moe_intermediate_size") or values.count("intermediate_size")
    shared = values.size("shared_expert_intermediate_size")
    draft.tree["moe"] = {
        "experts": experts,
        "experts_per_token": _chosen(draft),
        "intermediate_size": width,
        "shared_intermediate_size": shared or (_same(draft, "n_shared_experts") or 0) * width,
        "shared_gate": family.shared_gate,
        "router": family.router,
        "renormalise": draft.is_set(family.renormalise),
        "routed_scale": values.number(1.0, "routed_scaling_factor"),
        "router_bias": draft.is_set(family.router_bias) or values.get("topk_method") == "noaux_tc",
        "expert_bias": family.expert_bias,
        "dense_layers": dense,
    }
    if key := values.found("dense_intermediate_size", "intermediate_size_mlp"):
        draft.tree["intermediate_size"] = values.count(key)
    _narrow(draft, width)
    if family.router == "sigmoid" and values.size("n_group") > 1:
        draft.note("experts chosen among the best groups of them")


def _chosen(draft: Draft) -> int:
    chosen = _same(draft, "num_experts_per_tok")
    if not chosen:
        raise ConfigError("a mixture of experts needs num_experts_per_tok")
    return chosen


def _same(draft: Draft, name: str) -> int | None:
    """A number, or a list with the same number for every layer."""
    value = draft.values.get(name)
    if isinstance(value, list | tuple) and value:
        numbers = draft.values.numbers(name)
        if len({*numbers}) > 1:
            draft.note(f"{name} that differs from layer to layer, planned as its mean")
        return round(sum(numbers) / len(numbers))
    return draft.values.optional(name)


def _only_shared(draft: Draft) -> None:
    """Where there are no experts, what would be shared beside them is the MLP (Granite 4)."""
    if draft.family.shared_is_mlp and draft.values.found("shared_expert_intermediate_size"):
        width = draft.values.count("shared_expert_intermediate_size")
        draft.tree["intermediate_size"] = width


def _narrow(draft: Draft, width: int) -> None:
    """Experts that work in a latent space narrower than the residual stream.

    They are as large, and as fast, as experts of full width in and out that are narrower inside.
    """
    key = draft.values.found("moe_latent_size", "routed_expert_hidden_size")
    if key is None:
        return
    latent = draft.values.count(key)
    moe = draft.tree["moe"]
    moe["intermediate_size"] = max(1, round(width * latent / draft.hidden))
    sparse = draft.layers - len(moe["dense_layers"])
    draft.other += sparse * 2 * draft.hidden * latent
    draft.note(f"experts {latent} wide in and out")


def dense_layers(draft: Draft) -> list[int]:
    """Layers without experts, by whichever of the spellings the file has."""
    values, layers = draft.values, range(draft.layers)
    if {"moe", "mlp"} & {*map(str, draft.part_names)}:
        return [layer for layer in layers if draft.part_names[layer] != "moe"]
    for key, reader in READERS.items():
        if values.tree.get(key) is not None:
            sparse = reader(values, draft.layers)
            return [layer for layer in layers if layer not in sparse]
    return []


def _types(values: Values, layers: int) -> set[int]:
    types = values.each("mlp_layer_types", layers) or []
    if unknown := [kind for kind in types if kind not in ("dense", "sparse")]:
        raise ConfigError(f"mlp_layer_types must name dense or sparse; it names {unknown[0]!r}")
    return {layer for layer, kind in enumerate(types) if kind == "sparse"}


def _enumerated(values: Values, layers: int) -> set[int]:
    text = values.word("moe_layers_enum") or ""
    try:
        return {int(number) for number in text.split(",") if number.strip()}
    except ValueError as error:
        raise ConfigError(f"moe_layers_enum must be numbers and commas; it is {text!r}") from error


def _frequency(values: Values, layers: int) -> set[int]:
    first = values.size("first_k_dense_replace")
    if isinstance(values.get("moe_layer_freq"), list | tuple):
        marks = values.each("moe_layer_freq", layers) or []
        return {layer for layer, mark in enumerate(marks) if mark}
    every = values.count_or(1, "moe_layer_freq")
    return {layer for layer in range(first, layers) if layer % every == 0}


def _interleaved(values: Values, layers: int) -> set[int]:
    if values.get("moe_layers") is not None:
        return {*values.numbers("moe_layers")}
    every = values.count("interleave_moe_layer_step")
    return {*range(every - 1, layers, every)}


def _stepped(values: Values, layers: int) -> set[int]:
    every, dense = values.count_or(1, "decoder_sparse_step"), {*values.numbers("mlp_only_layers")}
    return {layer for layer in range(layers) if layer not in dense and (layer + 1) % every == 0}


def _periodic(values: Values, layers: int) -> set[int]:
    period, offset = values.count("expert_layer_period"), values.size("expert_layer_offset")
    return {layer for layer in range(layers) if layer % period == offset}


def _between(values: Values, layers: int) -> set[int]:
    first, every = values.size("moe_layer_start_index"), values.count_or(1, "moe_layer_interval")
    last: Any = values.get("moe_layer_end_index")
    last = layers - 1 if last is None or last == -1 else values.size("moe_layer_end_index")
    return {layer for layer in range(layers) if first <= layer <= last and (layer + 1) % every == 0}


READERS = {
    "mlp_layer_types": _types,
    "moe_layers_enum": _enumerated,
    "moe_layers": _interleaved,
    "interleave_moe_layer_step": _interleaved,
    "moe_layer_freq": _frequency,
    "first_k_dense_replace": _frequency,
    "decoder_sparse_step": _stepped,
    "mlp_only_layers": _stepped,
    "expert_layer_period": _periodic,
    "moe_layer_start_index": _between,
}
