"""One side of a comparison: the words of a deployment, composed and planned."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from servekit.config.compose import Composed, layer, settle
from servekit.config.library import Library
from servekit.config.origins import Layered
from servekit.config.problems import InvalidConfig
from servekit.errors import ConfigError
from servekit.planner.plan import Plan, plan


@dataclass(frozen=True, slots=True)
class Source:
    """Where configuration is read from. `root` is the folder that files of a revision lie in for
    now: places are told without it."""

    label: str
    library: Library
    root: Path | None = None


@dataclass(frozen=True, slots=True)
class Side:
    """`layered` is the tree before anything is derived; without a `plan` there are `problems`."""

    source: Source
    layered: Layered | None
    composed: Composed | None
    plan: Plan | None
    problems: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        return self.plan.verdict if self.plan else "invalid"

    def origin(self, key: str) -> str:
        """Where a leaf came from, as `servekit explain` says it."""
        assert self.composed is not None, "only a valid configuration has origins"
        origins = self.composed.origins
        while key not in origins:
            key = key.rpartition(".")[0]
        verb = "derived: " if origins[key].kind == "derived" else ""
        return verb + self.clean(origins[key].where)

    def clean(self, text: str) -> str:
        """Without the temporary folder of a revision, so that a place is one of its repository."""
        return without_root(text, self.source.root)


def without_root(text: str, root: Path | None) -> str:
    if root is None:
        return text
    return text.replace(f"{root}{os.sep}", "").replace(f"{os.path.relpath(root)}{os.sep}", "")


def side(source: Source, words: Sequence[str]) -> Side:
    """Raises nothing for a configuration that is not valid: that is a side with problems."""
    layered = None
    try:
        layered, problems = layer(source.library, words)
        composed = settle(layered, problems)
    except InvalidConfig as error:
        found = tuple(without_root(str(problem), source.root) for problem in error.problems)
        return Side(source, layered, None, None, found)
    try:
        return Side(source, layered, composed, plan(composed.config, advise=False))
    except ConfigError as error:  # of a trace that cannot be read
        return Side(source, layered, None, None, (without_root(error.message, source.root),))
