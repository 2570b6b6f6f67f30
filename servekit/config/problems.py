"""What is wrong with a configuration, all at once, each with its place."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import ValidationError

from servekit.config.base import LEAST, MOST
from servekit.config.describe import allowed, kinds_with, nearest, nearest_key, siblings
from servekit.config.origins import Origin, leaves, select
from servekit.errors import ConfigError

Kind = Literal["word", "option", "unknown", "value", "missing", "rule"]

WHOLE_OPTIONS = (
    "an option of your own sets every key of its group, or begins with defaults: [NAME, _self_] to "
    "take the rest from option NAME"
)


@dataclass(frozen=True, slots=True)
class Problem:
    """`word`: not understood; `option`: a choice that a group lacks; `unknown`: no such key;
    `value`: of a type or size that its key does not take; `missing`: a key without any; `rule`:
    keys that contradict each other.

    `path` is the dotted key or the word; `where` are the places it came from.
    """

    kind: Kind
    path: str
    message: str
    where: tuple[str, ...] = ()
    from_word: bool = False

    def __str__(self) -> str:
        lines = [f"{self.path}: {self.message}", *(f"    from {place}" for place in self.where)]
        return "\n".join(lines)


class InvalidConfig(ConfigError):
    """Every problem of one configuration."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        count = len(self.problems)
        head = "the configuration has an error" if count == 1 else f"the configuration has {count}"
        head += ":" if count == 1 else " errors:"
        body = "\n".join(f"  {line}" for p in self.problems for line in str(p).splitlines())
        if sum(problem.kind == "missing" for problem in self.problems) > 1:
            body += f"\n  {WHOLE_OPTIONS}"
        super().__init__(f"{head}\n{body}", param=self.problems[0].path, details={"errors": count})

    def __reduce__(self) -> tuple[Any, ...]:
        return (InvalidConfig, (self.problems,))


def shown(value: Any) -> str:
    """A value as one would write it in YAML, cut to a line."""
    names = {None: "null", True: "true", False: "false"}
    text = names[value] if value is None or isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def of_validation(
    error: ValidationError, tree: Mapping[str, Any], origins: Mapping[str, Origin]
) -> Iterator[Problem]:
    """pydantic's errors in our words."""
    for item in error.errors(include_url=False):
        path = _path(item["loc"], tree)
        key = ".".join(path)
        if item["type"] == "extra_forbidden":
            yield _unknown(key, select(tree, path), origins)
        elif item["type"] == "value_error":
            yield _broken_rule(key, str(item["ctx"]["error"]), tree, origins)
        elif item["type"] == "missing":
            yield Problem("missing", key, f"nothing sets it; it must be {allowed(key, tree)}")
        else:
            key = _known_part(key, tree)
            value, must = select(tree, tuple(key.split("."))), allowed(key, tree)
            yield Problem(
                "value",
                key,
                f"{shown(value)} is not allowed; it must be {must}{_hint(value, must)}",
                *_places([key], origins),
            )


def _path(loc: tuple[int | str, ...], tree: Any) -> tuple[str, ...]:
    """Without the tags that pydantic puts in for alternatives, and indices of lists."""
    path: list[str] = []
    for position, part in enumerate(loc):
        if isinstance(part, int):
            break
        tag = isinstance(tree, Mapping) and part not in tree and tree.get("kind") == part
        if tag and position < len(loc) - 1:
            continue
        path.append(part)
        tree = tree.get(part) if isinstance(tree, Mapping) else None
    return tuple(path)


def _known_part(key: str, tree: Mapping[str, Any]) -> str:
    while "." in key and not allowed(key, tree):
        key = key.rpartition(".")[0]
    return key


def _hint(value: Any, must: str) -> str:
    if isinstance(value, str) and value != "auto" and must.startswith("one of "):
        meant = nearest(value, must.removeprefix("one of ").split(", "))
        return f"; did you mean {meant}?" if meant else ""
    if isinstance(value, int | float) and not isinstance(value, bool):
        if MOST < value < math.inf:
            return "; no number is above 10^12"
        if 0 < value < LEAST:
            return "; what is not 0 is at least 10^-12"
    return '; write "auto" only where a rule derives it' if value == "auto" else ""


def _unknown(key: str, value: Any, origins: Mapping[str, Origin]) -> Problem:
    inner = [f"{key}.{leaf}" if leaf else key for leaf, _ in leaves(value)] or [key]
    path = inner[0] if len(inner) == 1 else key
    value = next((leaf for _, leaf in leaves(value)), value)
    if key == "recipe":
        message = "the first line of a recipe must be '# @package _global_'"
        return Problem("unknown", path, message, *_places(inner, origins))
    if kinds := kinds_with(path):
        message = f"belongs to kind {' and '.join(kinds)} only, not to the kind chosen here"
        return Problem("unknown", path, message, *_places(inner, origins))
    meant = nearest_key(path)
    message = f"no such key (set to {shown(value)})" if len(inner) == 1 else "no such group"
    message += f"; did you mean {meant}?" if meant else f"; there are {', '.join(siblings(key))}"
    return Problem("unknown", path, message, *_places(inner, origins))


def _broken_rule(
    group: str, message: str, tree: Mapping[str, Any], origins: Mapping[str, Origin]
) -> Problem:
    """A rule of a group names the keys it compares; their places are what helps."""
    inside = [key for key in origins if not group or key.startswith(group + ".")]
    named = [key for key in inside if re.search(rf"\b{key.rpartition('.')[2]}\b", message)]
    if not group:
        named = [key for key in named if key in message] or named
    places = tuple(
        with_value(key, select(tree, tuple(key.split("."))), origins[key]) for key in named
    )
    from_word = any(origins[key].kind == "word" for key in named)
    return Problem("rule", group or "configuration", message, places, from_word)


def with_value(key: str, value: Any, origin: Origin) -> str:
    """The place, and the value in it unless a word of the command line says that already."""
    texts = (f"{key}={value}", f"{key}={shown(value)}")
    if origin.kind == "word" and origin.source.lstrip("+") in texts:
        return origin.where
    return f"{origin.where}: {key}={shown(value)}"


def _places(keys: list[str], origins: Mapping[str, Origin]) -> tuple[tuple[str, ...], bool]:
    """Where keys came from, each place once; and whether a word of the command line is one."""
    found = [origin for key in keys for origin in _around(key, origins)]
    places = tuple(dict.fromkeys(origin.where for origin in found))
    return places, any(origin.kind == "word" for origin in found)


def _around(key: str, origins: Mapping[str, Origin]) -> list[Origin]:
    if key in origins:
        return [origins[key]]
    return [origin for path, origin in origins.items() if path.startswith(key + ".")]
