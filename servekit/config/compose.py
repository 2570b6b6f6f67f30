"""Words to configuration: `load` is the only way in.

    words ─▶ files, merged ─▶ words' own values ─▶ one KV size ─▶ "auto" derived ─▶ validated
                    (library)      (origins)                 (derive)            (schema)

Every step adds its problems to one list, so that a user sees all of them at once.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import product
from types import MappingProxyType
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError

from servekit.config.derive import RULES, derive
from servekit.config.describe import nearest
from servekit.config.folders import options
from servekit.config.kv_size import choose_kv_size
from servekit.config.library import RECIPE, Library
from servekit.config.origins import COMMAND_LINE_RANK, Layered, Origin, leaves
from servekit.config.problems import InvalidConfig, Problem, of_validation
from servekit.config.schema import Config

MISSING = "???"
WRONG_ALONE = ("unknown", "value", "missing")
"""Kinds of problems of one key, whatever the others say."""


@dataclass(frozen=True, slots=True)
class Composed:
    """A valid configuration, with the origin of each of its leaves by dotted key."""

    config: Config
    origins: Mapping[str, Origin]

    def __reduce__(self) -> tuple[Any, ...]:
        return (_composed, (self.config, dict(self.origins)))


def _composed(config: Config, origins: dict[str, Origin]) -> Composed:
    return Composed(config=config, origins=MappingProxyType(origins))


def load(words: Sequence[str], config_dir: str | None = None) -> Composed:
    """What these words of a command line mean.

    Raises InvalidConfig with every problem found, ConfigError if `config_dir` is not a folder.
    """
    return settle(*layer(Library(config_dir), words))


def settle(layered: Layered, problems: Sequence[Problem] = ()) -> Composed:
    """What a tree of `layer` means; it is not changed. Raises InvalidConfig as `load` does."""
    config, found = _examine(deepcopy(layered))
    if config is not None and not problems:
        return _composed(*config)
    if any(problem.kind in ("word", "option") for problem in problems):
        # Something was left out, so only what the remaining words say themselves is sure.
        found = [p for p in found if p.from_word and p.kind in WRONG_ALONE]
    elif config is None:
        found += _hidden_rules(layered, found)
    raise InvalidConfig([*problems, *found])


def jobs(words: Sequence[str], config_dir: str | None = None) -> list[list[str]]:
    """The word lists of a sweep: `a=1,2 b=3` makes `[a=1, b=3]` and `[a=2, b=3]`."""
    parsed, problems = Library(config_dir).parse(words)
    choices: list[list[str]] = []
    for override in parsed:
        word = str(override.input_line)
        if not override.is_sweep_override():
            choices.append([word])
        elif override.is_discrete_sweep():
            key = override.get_key_element()
            choices.append([f"{key}={value}" for value in override.sweep_string_iterator()])
        else:
            problems.append(Problem("word", word, "an interval has no end of values", (), True))
    if problems:
        raise InvalidConfig(problems)
    return [list(job) for job in product(*choices)]


def layer(library: Library, words: Sequence[str]) -> tuple[Layered, list[Problem]]:
    """Files and words, one upon the other; words that cannot be used are problems.

    Raises InvalidConfig where there is no tree at all: a file is missing or is not YAML.
    """
    parsed, problems = library.parse(words)
    choices: list[Override] = []
    settings: list[Override] = []
    for override in parsed:
        wrong = _unusable(library, override)
        problems += wrong
        if not wrong:
            (choices if library.chooses(override) else settings).append(override)
    pieces, wrong = library.pieces(choices)
    if wrong and not problems:
        raise InvalidConfig(wrong)
    problems += wrong
    layered = Layered()
    for rank, piece in enumerate(pieces, start=1):
        origin = Origin("file", piece.file, None, rank if piece.is_recipe else 0)
        layered.merge(piece.package, piece.tree, origin)
    for override in settings:
        problems += _set(layered, override, library)
    return layered, problems


def _unusable(library: Library, override: Override) -> list[Problem]:
    word = str(override.input_line)
    if override.is_sweep_override():
        message = "several values need -m, which `plan` understands; quote a value with commas"
        return [Problem("word", word, message, (), True)]
    if override.is_hydra_override():
        message = (
            "Hydra's own settings are fixed; --config-dir and SERVEKIT_CONFIG_PATH add folders"
        )
        return [Problem("word", word, message, (), True)]
    if library.chooses(override):
        return library.check_choice(override)
    return []


def _set(layered: Layered, override: Override, library: Library) -> list[Problem]:
    """Puts one word's value into the tree; a new key is let in and found by the schema."""
    path = tuple(override.key_or_group.split("."))
    word = str(override.input_line)
    if override.package is not None or "/" in override.key_or_group:
        group = override.key_or_group
        meant = nearest(group, library.groups)
        hint = f"; did you mean {meant}?" if meant else f"; there are {', '.join(library.groups)}"
        return [Problem("option", word, f"there is no group {group!r}{hint}", (), True)]
    if override.is_delete():
        if not layered.remove(path):
            return [Problem("unknown", word, "there is nothing to take away", (), True)]
        return []
    if len(path) == 1 and path[0] not in Config.model_fields:
        meant = nearest(path[0], library.groups)
        if meant == RECIPE:
            value = str(override.value())
            recipe = nearest(value, options(RECIPE, library.folders)) or value
            message = f"no such key; did you mean +{RECIPE}={recipe}?"
            return [Problem("unknown", path[0], message, (f"the command line ({word})",), True)]
    layered.merge(path, override.value(), Origin("word", word, None, COMMAND_LINE_RANK))
    return []


def _examine(
    layered: Layered,
) -> tuple[tuple[Config, dict[str, Origin]] | None, list[Problem]]:
    """The configuration in a tree, or everything that is wrong with it; changes `layered`."""
    problems = _resolve(layered)
    problems += choose_kv_size(layered)
    underived, open_keys = derive(layered)
    problems += underived
    open_keys |= {problem.path for problem in problems}
    try:
        config = Config.model_validate(_tuples(layered.tree), strict=True)
    except ValidationError as error:
        found = list(of_validation(error, layered.tree, layered.origins))
        wrong = {problem.path for problem in found} | open_keys
        problems += [
            problem
            for problem in found
            if not _is_under(problem.path, open_keys) and not _is_copy(problem, layered, wrong)
        ]
        return None, problems
    if problems:
        return None, problems
    return (config, dict(layered.origins)), []


def _resolve(layered: Layered) -> list[Problem]:
    """Replaces `${...}` by what it refers to; reports that and `???` where it cannot be."""
    tree = None
    problems = []
    for key, value in list(leaves(layered.tree)):
        origin = layered.origins[key]
        if value == MISSING:
            problems.append(
                Problem("value", key, f"must be given: {key}=...", (origin.where,), False)
            )
        elif isinstance(value, str) and "${" in value:
            # seldom needed, and slow to make: half the time of composing
            tree = OmegaConf.create(layered.tree) if tree is None else tree
            try:
                resolved = OmegaConf.select(tree, key, throw_on_resolution_failure=True)
            except OmegaConfBaseException as error:
                text = str(error).splitlines()[0]
                problems.append(
                    Problem("value", key, f"{value} leads nowhere: {text}", (origin.where,))
                )
                continue
            if OmegaConf.is_config(resolved):
                resolved = OmegaConf.to_container(resolved, resolve=True)
            layered.merge(tuple(key.split(".")), resolved, replace(origin, replaced=None))
    return problems


def _tuples(node: Any) -> Any:
    """Lists as the tuples that a frozen schema holds."""
    if isinstance(node, Mapping):
        return {key: _tuples(value) for key, value in node.items()}
    return tuple(_tuples(value) for value in node) if isinstance(node, list) else node


def _is_under(path: str, keys: set[str]) -> bool:
    return any(path == key or path.startswith(key + ".") for key in keys)


def _is_copy(problem: Problem, layered: Layered, wrong: set[str]) -> bool:
    """Whether a value is wrong only because the one it was derived from is."""
    rule, origin = RULES.get(problem.path), layered.origins.get(problem.path)
    return (
        rule is not None
        and origin is not None
        and origin.kind == "derived"
        and (rule.reads in wrong)
    )


def _hidden_rules(layered: Layered, found: Sequence[Problem]) -> list[Problem]:
    """Contradictions that the schema does not look for while single values are wrong.

    Each wrong value is taken back to what it replaced, and the rest is examined again; a rule that
    speaks of such a key is left for the next run.
    """
    repaired = deepcopy(layered)
    wrong = [problem.path for problem in found if problem.kind in WRONG_ALONE]
    for key in wrong:
        origin = layered.origins.get(key)
        if origin is not None and origin.replaced is not None:
            repaired.merge(tuple(key.split(".")), origin.replaced.value, origin.replaced)
        else:
            repaired.remove(tuple(key.split(".")))
    _, again = _examine(repaired)
    seen = {problem.path for problem in found}
    return [
        problem
        for problem in again
        if problem.kind == "rule"
        and problem.path not in seen
        and not any(f"{key}=" in place for key in wrong for place in problem.where)
    ]
