"""The boundary to Hydra: its search path, its words and its defaults lists become plain trees.

Hydra decides which files make up a configuration and in which order; merging them is left to
`origins.Layered`, which remembers where each leaf came from.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import yaml
from hydra import version
from hydra._internal.config_repository import CachingConfigRepository, ConfigRepository
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra._internal.defaults_list import create_defaults_list
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.default_element import GroupDefault
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.core.plugins import Plugins
from hydra.errors import HydraException, MissingConfigException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from servekit.config import folders
from servekit.config.describe import nearest
from servekit.config.origins import place
from servekit.config.problems import Problem

VERSION_BASE = "1.3"
LONGEST_KEY = 200
MOST_DEEP = 20
RECIPE = "recipe"


class UserConfigs(SearchPathPlugin):
    """Folders of SERVEKIT_CONFIG_PATH come before ours, in Hydra's own commands as well."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for folder in folders.preferred_folders():
            search_path.prepend("user", f"file://{folder}", anchor="main")


def register() -> None:
    """Makes UserConfigs known to Hydra in this process, once."""
    plugins = Plugins.instance()
    if UserConfigs not in plugins.discover(SearchPathPlugin):
        plugins.register(UserConfigs)


@dataclass(frozen=True, slots=True)
class Piece:
    """One file's share of a configuration: `tree` goes to `package`."""

    file: str
    package: tuple[str, ...]
    tree: dict[str, Any]
    is_recipe: bool


class Library:
    """The configuration files that a command line can choose from."""

    def __init__(self, config_dir: str | None, conf: Path | None = None) -> None:
        version.setbase(VERSION_BASE)
        Plugins.instance()  # it registers the kinds of sources that a search path may name
        self.folders = folders.search_folders(config_dir, conf)
        search_path = ConfigSearchPathImpl()
        search_path.append("hydra", "pkg://hydra.conf")
        for folder in self.folders:
            search_path.append("main", f"file://{folder}")
        search_path.append("schema", "structured://")
        self.repository = CachingConfigRepository(ConfigRepository(search_path))
        self.groups = folders.groups(self.folders)
        self._parser = OverridesParser.create(config_loader=self)  # type: ignore[arg-type]

    def get_group_options(
        self, group_name: str, results_filter: ObjectType | None = ObjectType.CONFIG
    ) -> list[str]:
        """What Hydra's `glob(*)` asks its loader for."""
        return list(self.repository.get_group_options(group_name, results_filter))

    def parse(self, words: Sequence[str]) -> tuple[list[Override], list[Problem]]:
        """Hydra's override grammar, and what does not follow it."""
        parsed, problems = [], []
        for word in words:
            try:
                if complaint := _unreadable(word):
                    raise HydraException(complaint)
                parsed += self._parser.parse_overrides([word])
            except HydraException as error:
                problems.append(Problem("word", word, self._not_a_word(word, error), (), True))
        return parsed, problems

    def _not_a_word(self, word: str, error: HydraException) -> str:
        named = [
            f"{'+' if group == RECIPE else ''}{group}={word}"
            for group in [RECIPE, *self.groups]
            if word in folders.options(group, self.folders)
        ]
        return f"is not understood; did you mean {named[0]}?" if named else _grammar(word, error)

    def chooses(self, override: Override) -> bool:
        """Whether a word chooses an option of a group, rather than setting a key."""
        return self.repository.group_exists(override.key_or_group) and not isinstance(
            override.value(), dict
        )

    def check_choice(self, override: Override) -> list[Problem]:
        """Options that do not exist, and the wrong one of `group=` and `+group=`."""
        if override.is_delete():
            return []
        group, value = override.key_or_group, override.value()
        options = folders.options(group, self.folders)
        wanted = value if isinstance(value, list) else [value]
        messages = [
            _no_option(group, "null" if option is None else str(option), options)
            for option in wanted
            if option not in options
        ]
        by_default = group in self.default_groups()
        if override.package is None and by_default and override.type != OverrideType.CHANGE:
            messages.append(f"{group} is chosen by default; write {group}={value}")
        elif override.package is None and by_default and isinstance(value, list):
            messages.append(f"{group} takes one choice; write {group}={value[0]}")
        elif override.package is None and not by_default and not override.is_add():
            messages.append(f"{group} is not chosen by default; write +{group}={value}")
        word = str(override.input_line)
        return [Problem("option", word, message, (), True) for message in messages]

    def default_groups(self) -> list[str]:
        loaded = self.repository.load_config("config")
        assert loaded is not None, "config.yaml is in every search path"
        items = [item for item in loaded.defaults_list or [] if isinstance(item, GroupDefault)]
        return [str(item.group) for item in items if not item.is_override()]

    def pieces(self, choices: Sequence[Override]) -> tuple[list[Piece], list[Problem]]:
        """The files that the choices ask for, in the order in which they are merged."""
        try:
            defaults = create_defaults_list(
                repo=self.repository,
                config_name="config",
                overrides_list=list(choices),
                prepend_hydra=True,
                skip_missing=False,
            )
            paths = [(item.config_path or "", item.package) for item in defaults.defaults]
            ours = [item for item in paths if not item[0].startswith("hydra/")]
            return [self._piece(path, package) for path, package in ours], []
        except MissingConfigException as error:
            return [], [self._missing(error, choices)]
        except yaml.MarkedYAMLError as error:
            return [], [_not_yaml(error)]
        except RecursionError:
            places = tuple(place(file) for file in self._chosen_files(choices))
            text = "a file that is read refers to itself, or nests too deep"
            return [], [Problem("option", "defaults", text, places)]
        except (HydraException, OmegaConfBaseException, ValueError) as error:
            return [], [self._not_composable(error)]

    def _piece(self, path: str, package: str | None) -> Piece:
        loaded = self.repository.load_config(path)
        assert loaded is not None, "the defaults list names files that exist"
        tree = OmegaConf.to_container(loaded.config, resolve=False)
        if not isinstance(tree, dict):
            raise ValueError(f"{self._file(path)} holds a list; a mapping is needed")
        tree.pop("hydra", None)
        return Piece(
            file=self._file(path),
            package=tuple(package.split(".")) if package else (),
            tree={str(key): value for key, value in tree.items()},
            is_recipe=path.startswith(f"{RECIPE}/"),
        )

    def _file(self, path: str) -> str:
        candidates = (folder / f"{path}.yaml" for folder in self.folders)
        return str(next(file.resolve() for file in candidates if file.is_file()))

    def _missing(self, error: MissingConfigException, choices: Sequence[Override]) -> Problem:
        """Choices of the words exist, so the name is in the defaults list of a file they choose."""
        path = str(error.missing_cfg_file)
        group, _, option = path.rpartition("/")
        places = [
            place(file, number)
            for file in self._chosen_files(choices)
            for number, line in enumerate(
                Path(file).read_text("utf-8", "replace").splitlines(), start=1
            )
            if re.search(rf"(?<![\w.-]){re.escape(option)}(?![\w.-])", line)
        ]
        if group in self.groups:
            message = _no_option(group, option, folders.options(group, self.folders))
        else:
            message = f"there is no such file, and no group {group or path!r}"
        return Problem("option", path, message, tuple(places))

    def _chosen_files(self, choices: Sequence[Override]) -> Iterator[str]:
        for override in choices:
            value = override.value()
            for option in value if isinstance(value, list) else [value]:
                yield self._file(f"{override.key_or_group}/{option}")

    def _not_composable(self, error: Exception) -> Problem:
        text = " ".join(str(error).split("\nTo append")[0].split())
        named_in = re.match(r"In '([^']*)': ", text)
        places = (place(self._file(named_in[1])),) if named_in else ()
        text = text[named_in.end() :] if named_in else text
        if re.search(rf"Could not override '[^']*@{RECIPE}\b", text):
            text = "the first line of a recipe must be '# @package _global_'"
        elif "Multiple values for recipe" in text:
            text = "one +recipe= at a time; a recipe may name another in its own defaults"
        elif found := re.search(r"Could not override '([^']*)'\. No match", text):
            meant = nearest(found[1], self.groups)
            guess = f"did you mean {meant}?" if meant else f"there are {', '.join(self.groups)}"
            text = f"'override /{found[1]}' names no group; {guess}"
        return Problem("option", "defaults", text, places)


def _not_yaml(error: yaml.MarkedYAMLError) -> Problem:
    mark = error.problem_mark
    file, line = (mark.name, mark.line + 1) if mark else ("a file", None)
    return Problem("word", Path(file).name, f"is not YAML: {error.problem}", (place(file, line),))


def _no_option(group: str, option: str, options: list[str]) -> str:
    meant = nearest(option, options)
    guess = f"did you mean {meant}? There" if meant else "there"
    return f"{group} has no {option!r}; {guess} are {', '.join(options)}"


def _unreadable(word: str) -> str | None:
    """What Hydra's parser would not get to the end of."""
    key, _, value = word.lstrip("+~").partition("=")
    if not key and "=" in word:
        return "there is no key before ="
    if len(key) > LONGEST_KEY:
        return f"its key has {len(key)} letters"
    depths = accumulate((letter in "[{(") - (letter in "]})") for letter in value)
    return "it nests too deep" if max(depths, default=0) > MOST_DEEP else None


def _grammar(word: str, error: HydraException) -> str:
    """Hydra's complaint in one line, without its link."""
    if not re.search(r"[=~]", word):
        return "is not understood; a word is key=value, group=option or +recipe=name"
    text = " ".join(str(error).split("\nSee https")[0].split())
    return f"is not understood: {text}"
