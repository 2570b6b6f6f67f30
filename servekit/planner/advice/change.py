"""One configuration with a few words more, as the command line would read them after its own.

Composing a configuration takes a tenth of a second, and a search tries hundreds. What a word does
is therefore repeated here on the values: an option of a group replaces what files say of it and
leaves what a recipe or a word set, and a key that said "auto" is derived again, by the same rules.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from servekit.config.derive import AUTO, RULES, Unknown
from servekit.config.folders import options, search_folders
from servekit.config.origins import LOADER, Origin
from servekit.config.schema import Config
from servekit.errors import ConfigError

Value = float | int | str

REDERIVED = ("calibration", "scheduler", "kv")
"""Groups whose "auto" reads what a change may move; others read the model or this machine."""


@dataclass(frozen=True, slots=True)
class Change:
    """One word: a key and its value, or a group and its option."""

    key: str
    value: Value

    @property
    def word(self) -> str:
        return f"{self.key}={self.value}"


@dataclass(frozen=True, slots=True)
class Point:
    """`config` is `start` with `changes`.

    `derived` are the keys of `start` that said "auto"; `given` the leaves that a recipe or a word
    set, by group and name.
    """

    start: Config
    derived: frozenset[str]
    given: Mapping[str, Mapping[str, Any]]
    changes: tuple[Change, ...]
    config: Config

    def then(self, change: Change) -> "Point | None":
        """With one word more; None where that is no valid configuration, or changes nothing."""
        if any(change.key == earlier.key for earlier in self.changes):
            return None
        changes = (*self.changes, change)
        config = self._composed(changes)
        if config is None or config == self.config:
            return None
        return Point(self.start, self.derived, self.given, changes, config)

    def _composed(self, changes: tuple[Change, ...]) -> Config | None:
        tree = {name: dict(getattr(self.start, name)) for name in changed_groups(changes)}
        for key in self.derived:
            group, name = key.split(".")
            tree.setdefault(group, dict(getattr(self.start, group)))[name] = AUTO
        for change in changes:
            group, _, name = change.key.partition(".")
            if name:
                tree[group][name] = change.value
            else:
                tree[group] = {**option(group, str(change.value)), **self.given.get(group, {})}
        try:
            rederive({**dict(self.start), **tree}, tree, self.derived)
            return Config.model_validate({**dict(self.start), **tree})
        except (ValidationError, ConfigError, Unknown):
            return None


def starting_point(config: Config, origins: Mapping[str, Origin] | None = None) -> Point:
    """Without origins every value counts as given by a file: none is derived anew."""
    found = origins or {}
    derived = {key for key in RULES if is_derived(key, config, found)}
    given: dict[str, dict[str, Any]] = {}
    for key, origin in found.items():
        group, _, name = key.partition(".")
        if origin.rank > 0 and origin.kind != "derived" and name and "." not in name:
            given.setdefault(group, {})[name] = origin.value
    return Point(config, frozenset(derived), given, (), config)


def is_derived(key: str, config: Config, origins: Mapping[str, Origin]) -> bool:
    group, name = key.split(".")
    if group not in REDERIVED:
        return False
    if group == "kv" and getattr(config.kv, name) is None:
        return False  # another size of the cache took its place
    leaves = [key, *(leaf for leaf in origins if leaf.startswith(f"{key}."))]
    return any(leaf in origins and origins[leaf].kind == "derived" for leaf in leaves)


def changed_groups(changes: Collection[Change]) -> set[str]:
    return {change.key.partition(".")[0] for change in changes}


def rederive(whole: dict[str, Any], tree: Mapping[str, Any], derived: Collection[str]) -> None:
    """Replaces "auto" in `tree`, in place; `whole` has every group, those of `tree` among them."""
    read: dict[str, Any] = {
        name: group if isinstance(group, str) else dict(group) for name, group in whole.items()
    }
    read["model"]["shape"] = dict(read["model"]["shape"])
    for key, rule in RULES.items():
        group, name = key.split(".")
        if key in derived and tree[group][name] == AUTO:
            read[group][name] = tree[group][name] = rule.value(read)


def option(group: str, name: str) -> Mapping[str, Any]:
    """An option's file as it is, of the built-in folder or one of SERVEKIT_CONFIG_PATH."""
    return known_options(group)[name]


def known_options(group: str) -> Mapping[str, Mapping[str, Any]]:
    """What each option's file says, without those that only Hydra can put together."""
    return read_options(group, tuple(search_folders(None)))


@cache
def read_options(group: str, folders: tuple[Path, ...]) -> Mapping[str, Mapping[str, Any]]:
    found = {}
    for name in options(group, list(folders)):
        places = (folder / group / f"{name}.yaml" for folder in folders)
        file = next(place for place in places if place.is_file())
        try:
            tree = yaml.load(file.read_text(encoding="utf-8"), Loader=LOADER)
        except (OSError, yaml.YAMLError):
            continue
        if isinstance(tree, dict) and "defaults" not in tree:
            found[name] = tree
    return found
