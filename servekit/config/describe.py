"""The schema in words: which keys there are, what they mean, what they may hold."""

import difflib
import types
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from servekit.config.base import LEAST, MOST, Form
from servekit.config.schema import Config

SUFFIXES = {
    "gb_s": "10^9 bytes/s",
    "tflops": "10^12 operations/s",
    "per_s": "a second",
    "gib": "GiB",
    "mib": "MiB",
    "ms": "milliseconds",
    "s": "seconds",
}
"""By the end of a key, the longer ends first."""
NOUNS = ("tokens", "requests", "GPUs", "GiB", "MiB", "seconds")
OTHER_WORDS = {
    "awq": ("int4_g128",),
    "gptq": ("gptq_g128", "int4_g128"),
    "w8a8": ("int8",),
    "fp4": ("nvfp4",),
    "q4_k_m": ("q4_k",),
    "q5_k_m": ("q5_k",),
    "fp8_e4m3": ("fp8",),
    "fp8_e5m2": ("fp8",),
    "bf16": ("bfloat16", "none"),
    "fp16": ("float16", "none"),
    "half": ("float16",),
    "fp32": ("float32",),
    "gpu_memory_utilization": ("memory_fraction",),
    "mem_fraction_static": ("memory_fraction",),
    "tensor_parallel_size": ("tensor",),
    "pipeline_parallel_size": ("pipeline",),
}
"""What other engines say, and the words here; which of them is an option depends on the key."""


def models_of(annotation: Any) -> list[type[BaseModel]]:
    """The groups that a value of this type may be: one, several for a union, none for a leaf."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) is Annotated:
        return models_of(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return [model for part in get_args(annotation) for model in models_of(part)]
    return []


def walk(model: type[BaseModel] = Config, path: tuple[str, ...] = ()) -> Iterator[tuple[str, bool]]:
    """Every key of the schema with whether it is a leaf; keys of alternatives are merged."""
    for name, field in model.model_fields.items():
        here = (*path, name)
        inner = models_of(field.annotation)
        yield ".".join(here), not inner
        seen: set[str] = set()
        for alternative in inner:
            for key, leaf in walk(alternative, here):
                if key not in seen:
                    seen.add(key)
                    yield key, leaf


def all_keys() -> list[str]:
    return [key for key, _ in walk()]


def field_at(key: str, tree: Mapping[str, Any]) -> FieldInfo | None:
    """The field at a dotted key. Between alternatives, the `kind` in `tree` decides."""
    models: list[type[BaseModel]] = [Config]
    node: Any = tree
    field = None
    for part in key.split("."):
        if field is not None and get_origin(field.annotation) is dict:
            inner = FieldInfo.from_annotation(get_args(field.annotation)[1])
            inner.description = field.description
            return inner
        kind = node.get("kind") if isinstance(node, Mapping) else None
        models.sort(key=lambda model: not _is_kind(model, kind))
        field = next((m.model_fields[part] for m in models if part in m.model_fields), None)
        if field is None:
            return None
        models = models_of(field.annotation)
        node = node.get(part) if isinstance(node, Mapping) else None
    return field


def _is_kind(model: type[BaseModel], kind: Any) -> bool:
    field = model.model_fields.get("kind")
    return field is not None and kind in get_args(field.annotation)


def allowed(key: str, tree: Mapping[str, Any]) -> str:
    """What a key may hold: `a whole number, at least 1`, `one of a, b`, `true or false`."""
    parent, _, name = key.rpartition(".")
    around = field_at(parent, tree) if name == "kind" and parent else None
    if around is not None and len(kinds := _kinds(models_of(around.annotation))) > 1:
        return f"one of {', '.join(kinds)}"
    field = field_at(key, tree)
    return "" if field is None else _allowed(field.annotation, list(field.metadata))


def _allowed(annotation: Any, metadata: list[Any]) -> str:
    if get_origin(annotation) is Annotated:
        inner, *more = get_args(annotation)
        return _allowed(inner, [*_flat(more), *metadata])
    if models := models_of(annotation):
        return _allowed_group(models, annotation)
    if get_origin(annotation) in (Union, types.UnionType):
        parts = [part for part in get_args(annotation) if part is not types.NoneType]
        text = " or ".join(_allowed(part, metadata) for part in parts)
        return f"{text}, or null" if types.NoneType in get_args(annotation) else text
    if get_origin(annotation) is Literal:
        return f"one of {', '.join(map(str, get_args(annotation)))}"
    if get_origin(annotation) is dict:
        return f"names, each with {_allowed(get_args(annotation)[1], [])}"
    if get_origin(annotation) is tuple:
        return f"a list, each {_allowed(get_args(annotation)[0], [])}"
    if form := next((item for item in metadata if isinstance(item, Form)), None):
        return form.text
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    return ", ".join([names[annotation], *_limits(metadata)])


def _allowed_group(models: list[type[BaseModel]], annotation: Any) -> str:
    null = ", or null" if types.NoneType in get_args(annotation) else ""
    if len(models) == 1:
        return f"the keys {', '.join(models[0].model_fields)}{null}"
    return f"the keys of its kind, one of {', '.join(_kinds(models))}{null}"


def _kinds(models: list[type[BaseModel]]) -> list[str]:
    fields = [model.model_fields.get("kind") for model in models]
    return [kind for field in fields if field for kind in get_args(field.annotation)]


def _flat(metadata: list[Any]) -> list[Any]:
    return [m for item in metadata for m in (getattr(item, "metadata", None) or [item])]


def _limits(metadata: list[Any]) -> Iterator[str]:
    for item in metadata:
        match item:
            case Ge(ge=limit) if limit == LEAST:
                yield "more than 0"
            case Le(le=limit) if limit == MOST:
                continue
            case Ge(ge=limit):
                yield f"at least {limit}"
            case Gt(gt=limit):
                yield f"more than {limit}"
            case Le(le=limit):
                yield f"at most {limit}"
            case Lt(lt=limit):
                yield f"less than {limit}"
            case MinLen(min_length=1):
                yield "not empty"
            case _ if pattern := getattr(item, "pattern", None):
                yield f"matching {pattern}"


def unit(key: str, field: FieldInfo) -> str | None:
    """From the key's suffix, or the noun that its meaning starts or ends with."""
    name = key.rpartition(".")[2]
    for end, unit_words in SUFFIXES.items():
        if name.endswith(f"_{end}"):
            return unit_words
    meaning = (field.description or "").split(";")[0].split(":")[0]
    words = meaning.replace(",", " ").split() or [""]
    return next((word for word in (words[-1], words[0]) if word in NOUNS), None)


def nearest(word: str, names: list[str], cutoff: float = 0.6) -> str | None:
    """The name that was probably meant; None if there is none.

    The same letters or nearly so come first, then our name for a word of another engine, then
    names with more or fewer parts (a100 and a100_80g, h100_sxm and h100), then a near one.
    """
    plain = _letters(word)
    same = [name for name in names if _letters(name) == plain]
    other = [name for name in OTHER_WORDS.get(word.lower(), ()) if name in names]
    longer = [name for name in names if name.startswith(f"{word}_") or name.endswith(f"_{word}")]
    shorter = [name for name in names if word.lower().startswith(f"{name}_")]
    slip, near = (
        difflib.get_close_matches(word, names, n=1, cutoff=limit) for limit in (0.9, cutoff)
    )
    begun = [name for name in names if len(word) > 2 and name.startswith(word)]
    only = begun if len(begun) == 1 else []
    parts = [*longer, *sorted(shorter, key=len, reverse=True)]
    return next(iter([*same, *other, *slip, *parts, *near, *only]), None)


def _letters(word: str) -> str:
    return "".join(letter for letter in word.lower() if letter.isalnum())


def siblings(key: str) -> list[str]:
    """Keys that the schema has beside this one; of the root, if its group does not exist."""
    parent = key.rpartition(".")[0]
    keys = all_keys()
    beside = [k for k in keys if k.rpartition(".")[0] == parent]
    return beside or [k for k in keys if "." not in k]


def nearest_key(key: str) -> str | None:
    """The schema key that a wrong dotted key probably meant.

    A misspelt last part among its true siblings comes first, then the same last part elsewhere,
    then, if there is no such group either, whatever is nearest as a whole.
    """
    keys = all_keys()
    parent, _, name = key.rpartition(".")
    by_name = {k.rpartition(".")[2]: k for k in keys if k.rpartition(".")[0] == parent}
    if found := nearest(name, list(by_name)):
        return by_name[found]
    same = [k for k in keys if k.rpartition(".")[2] == name]
    if same:
        return nearest(key, same, cutoff=0.0)
    return None if by_name else nearest(key, keys)


def kinds_with(key: str) -> list[str]:
    """The kinds of a union that have this key; none if it is not a key of a union."""
    parent, _, name = key.rpartition(".")
    around = field_at(parent, {}) if parent else None
    models = models_of(around.annotation) if around is not None else []
    return _kinds([model for model in models if name in model.model_fields])
