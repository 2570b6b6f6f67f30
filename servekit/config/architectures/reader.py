"""A config.json, read part by part into a tree for `Shape`."""

from collections.abc import Mapping
from typing import Any

from servekit.config.architectures.attention import read_attention, read_mlp
from servekit.config.architectures.defaults import defaults_of
from servekit.config.architectures.experts import read_experts
from servekit.config.architectures.families import FAMILIES, NESTED, SAME
from servekit.config.architectures.family import Draft, Family
from servekit.config.architectures.layers import number_of_layers, read_kinds
from servekit.config.architectures.oddities import read_oddities
from servekit.config.architectures.rope import read_ropes, stretched
from servekit.config.architectures.spellings import spelled
from servekit.config.architectures.states import read_state
from servekit.config.architectures.towers import read_towers
from servekit.config.architectures.values import Values
from servekit.errors import ConfigError

TEXT_KEYS = ("text_config", "llm_config", "language_config", "thinker_config")
PARTS = ("attn_config", "ffn_config")
"""Where some files keep numbers of their own (MPT, DBRX)."""
REFUSED = {
    "falcon_h1": "attention and a state in the same layer",
    "zamba2": "attention and a state in the same layer",
    "zamba": "attention and a state in the same layer",
    "nemotron-nas": "attention and MLP that differ from layer to layer",
    "deepseek_v4": "compressed keys and values",
    "deepseek_ref": "compressed keys and values",
    "longcat_flash": "two attentions and two MLPs in a layer",
}
"""What `Shape` has no numbers for."""

PLAIN = Family(qkv_bias="attention_bias", output_bias="attention_bias", mlp_bias="mlp_bias")
NEEDED = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
)
UNLIMITED = 1 << 20
"""Tokens of context where nothing but a state carries the past."""


def read(config: Mapping[str, Any]) -> dict[str, Any]:
    draft = open_draft(config)
    read_kinds(draft)
    read_attention(draft)
    read_mlp(draft)
    read_experts(draft)
    read_state(draft)
    read_ropes(draft)
    read_norms(draft)
    read_whole(draft)
    for extra in draft.family.extras:
        extra(draft)
    read_oddities(draft)
    read_towers(draft, config)
    draft.tree["other_parameters"] = max(0, draft.other)
    draft.tree["planned_only"] = draft.notes
    return draft.tree


def text_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a file that is about its decoder; the whole file where none is nested."""
    for key in TEXT_KEYS:
        inner = config.get(key)
        if inner is not None:
            if not isinstance(inner, Mapping):
                raise ConfigError(f"{key} must be an object; it is {inner!r}")
            return text_of(inner)
    return config


def open_draft(config: Mapping[str, Any]) -> Draft:
    text = text_of(config)
    kind = model_type(config, text)
    known = SAME.get(kind, kind)
    family = FAMILIES.get(known, PLAIN)
    values = with_defaults(config, text, kind)
    if known not in FAMILIES and (missing := [key for key in NEEDED if not values.found(key)]):
        raise ConfigError(
            f"model_type {kind!r} is not known, and to be read as a plain decoder its file lacks "
            f"{', '.join(missing)}"
        )
    draft = Draft(
        kind=kind,
        family=family,
        values=values,
        layers=number_of_layers(values),
        hidden=values.count("hidden_size"),
        notes=list(family.notes),
    )
    if known not in FAMILIES:
        draft.note(f"model_type {kind!r} is read as a plain decoder")
    return draft


def model_type(config: Mapping[str, Any], text: Mapping[str, Any]) -> str:
    """Of the decoder; raises ConfigError where there is none, or one that cannot be planned."""
    outer = Values(config).word("model_type")
    kind = Values(text).word("model_type") or NESTED.get(outer or "") or outer or of_class(config)
    if text is config and kind in NESTED:
        kind = NESTED[kind]
    if kind is None:
        raise ConfigError(
            "it names no model_type (model_type None); give model.config a Hugging Face config.json"
        )
    if Values(text).flag("is_encoder_decoder"):
        raise ConfigError(f"model_type {kind!r} has an encoder; only decoders are served")
    if kind in REFUSED:
        raise ConfigError(
            f"model_type {kind!r} has {REFUSED[kind]}, which cannot be planned; write model.shape "
            "by hand as the nearest model that can"
        )
    return kind


def of_class(config: Mapping[str, Any]) -> str | None:
    """The model type whose class `architectures` names, where the file does not name the type."""
    names = config.get("architectures")
    if not isinstance(names, list | tuple) or not names:
        return None
    name = str(names[0]).split("For")[0].lower()
    known = [*FAMILIES, *SAME, *NESTED, *REFUSED]
    return next((kind for kind in known if kind.replace("_", "") == name), None)


def with_defaults(config: Mapping[str, Any], text: Mapping[str, Any], kind: str) -> Values:
    """What the file says, over what its family fixes, over the defaults of its model type.

    Whether the head is tied is said of the whole, also where the decoder is nested.
    """
    inner = {key: value for name in PARTS for key, value in Values(text).inner(name).tree.items()}
    named, spellings = spelled({**inner, **text})
    if config.get("tie_word_embeddings") is not None:
        named["tie_word_embeddings"] = config["tie_word_embeddings"]
    named = {key: value for key, value in named.items() if value is not None or key in text}
    known = SAME.get(kind, kind)
    defaults, _ = spelled(defaults_of(kind) or defaults_of(known))
    fixed = dict(FAMILIES.get(known, PLAIN).fixed)
    if named.get("rope_scaling") or named.get("rope_theta"):
        fixed.pop("rope_parameters", None)  # the file says it in the older spelling
    return Values({**defaults, **fixed, **named}, spellings)


def read_norms(draft: Draft) -> None:
    """The tree has two norms of one vector a layer, and one after the last."""
    family, hidden = draft.family, draft.hidden
    draft.tree |= {
        "rms_norm_eps": draft.values.number(1e-6, "rms_norm_eps"),
        "norm_unit_offset": family.unit_offset,
        "post_norms": family.post_norms,
        "scale_embeddings": family.scale_embeddings,
    }
    vectors = family.layer_norms * (2 if family.norm == "layer" else 1)
    draft.other += draft.layers * (vectors - 2) * hidden
    if family.norm == "layer":
        draft.other += hidden
    if family.layer_norms == 0:
        draft.other -= hidden
    if family.norm != "rms":
        draft.note("LayerNorm")


def read_whole(draft: Draft) -> None:
    """What is of no layer."""
    values = draft.values
    tied = values.found("tie_word_embeddings")
    draft.tree |= {
        "layers": draft.layers,
        "hidden_size": draft.hidden,
        "vocab_size": values.count("vocab_size"),
        "max_position_embeddings": _positions(draft),
        "tie_word_embeddings": values.flag(tied) if tied else draft.family.tied,
        "mtp_layers": values.size("num_nextn_predict_layers"),
        "shared_kv_layers": [],
        "mixer_only_layers": [],
    }


def _positions(draft: Draft) -> int:
    if not draft.attention_layers:
        return draft.values.count_or(UNLIMITED, "max_position_embeddings")
    return stretched(draft.values, draft.values.count("max_position_embeddings"))
