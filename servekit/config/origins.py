"""Which file, word or rule a value came from."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

Kind = Literal["file", "word", "derived"]

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The one in C where PyYAML was built with it."""

COMMAND_LINE_RANK = 1_000_000
"""Above every file."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where one leaf got its value, and what that value replaced.

    `source` is a file's absolute path, a word of the command line, or the sentence of a rule.
    `rank` orders layers: 0 for groups and their defaults, then recipes as they are merged, then the
    command line. `inside` is the key in the file, which may differ from the key in the tree.
    """

    kind: Kind
    source: str
    value: Any
    rank: int = 0
    inside: tuple[str, ...] = ()
    replaced: "Origin | None" = None

    @property
    def where(self) -> str:
        """For people: `conf/kv/paged.yaml:3`, `the command line (kv.dtype=float32)`, a rule."""
        if self.kind == "word":
            return f"the command line ({self.source})"
        if self.kind == "derived":
            return self.source
        return place(self.source, line_of(Path(self.source), self.inside))


def place(file: str, line: int | None = None) -> str:
    """A file as one would open it from here, with its line."""
    shown = os.path.relpath(file)
    if shown.startswith(os.pardir):
        shown = file
    return f"{shown}:{line}" if line else shown


def line_of(file: Path, key: tuple[str, ...]) -> int | None:
    """The line of a key in a YAML file, or of the nearest key around it."""
    try:
        node = yaml.compose(
            file.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        )
    except (OSError, yaml.YAMLError):
        return None
    line = None
    for part in key:
        if not isinstance(node, yaml.MappingNode):
            break
        found = next((pair for pair in node.value if pair[0].value == part), None)
        if found is None:
            break
        line, node = found[0].start_mark.line + 1, found[1]
    return line


class Layered:
    """A tree built layer by layer, that remembers the origin of each leaf.

    Invariant: the keys of `origins` are exactly the paths of the leaves of `tree`.
    """

    def __init__(self) -> None:
        self.tree: dict[str, Any] = {}
        self.origins: dict[str, Origin] = {}

    def merge(self, path: tuple[str, ...], value: Any, origin: Origin) -> None:
        """Puts `value` at `path`: mappings are merged into, anything else is replaced.

        `origin` is that of the whole; each leaf gets it with its own value and place inside.
        """
        if isinstance(value, Mapping) and value:
            for key, inner in value.items():
                deeper = Origin(
                    origin.kind, origin.source, inner, origin.rank, (*origin.inside, str(key))
                )
                self.merge((*path, str(key)), inner, deeper)
            return
        if value == {} and isinstance(select(self.tree, path), Mapping):
            return
        self._place(path, value, origin)

    def _place(self, path: tuple[str, ...], value: Any, origin: Origin) -> None:
        replaced = self.origins.get(".".join(path))
        node = self.tree
        for depth, part in enumerate(path[:-1], start=1):
            if not isinstance(node.get(part), dict):
                self._forget(path[:depth])
                node[part] = {}
            node = node[part]
        self._forget(path)
        node[path[-1]] = value
        self.origins[".".join(path)] = Origin(
            origin.kind, origin.source, value, origin.rank, origin.inside, replaced
        )

    def remove(self, path: tuple[str, ...]) -> bool:
        """Takes a leaf or a subtree away, and mappings left empty; False if there was none."""
        parent = select(self.tree, path[:-1])
        if not isinstance(parent, dict) or path[-1] not in parent:
            return False
        self._forget(path)
        del parent[path[-1]]
        if not parent and len(path) > 1:
            self.remove(path[:-1])
        return True

    def _forget(self, path: tuple[str, ...]) -> None:
        dotted = ".".join(path)
        for key in [k for k in self.origins if k == dotted or k.startswith(dotted + ".")]:
            del self.origins[key]


def select(tree: Any, path: tuple[str, ...]) -> Any:
    """The node at `path`; None where there is none."""
    for part in path:
        if not isinstance(tree, Mapping) or part not in tree:
            return None
        tree = tree[part]
    return tree


def leaves(tree: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Dotted paths and values of everything that is not a non-empty mapping."""
    if isinstance(tree, Mapping) and (tree or not path):
        for key, inner in tree.items():
            yield from leaves(inner, (*path, str(key)))
    else:
        yield ".".join(path), tree
