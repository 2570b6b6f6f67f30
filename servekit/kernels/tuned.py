"""Launch parameters as data: `tuned/<gpu>.yaml`, op -> key -> parameters.

The files are written by `python -m benchmarks.kernels --tune` on the GPU that they are named after.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from servekit.errors import ConfigError
from servekit.kernels.target import target

FOLDER = Path(__file__).with_name("tuned")

Parameters = dict[str, int]

MAY_BE: dict[str, dict[str, tuple[int, ...]]] = {
    "paged_decode": {
        "tile": (16, 32, 64, 128),
        "num_warps": (2, 4, 8),
        "num_stages": (1, 2, 3, 4),
    },
    "paged_prefill": {
        "rows": (64, 128),
        "tile": (32, 64, 128),
        "num_warps": (4, 8),
        "num_stages": (1, 2, 3),
    },
    # fewer than 64 rows would be another instruction, another BK another order of the sum: a row
    # would depend on its company
    "matmul": {
        "BM": (64, 128),
        "BN": (64, 128, 256),
        "BK": (32, 64, 128),
        "num_warps": (4, 8),
        "num_stages": (2, 3, 4, 5),
    },
    "quantised_matmul": {
        "BM": (16, 32, 64, 128),
        "BN": (32, 64, 128),
        "splits": (1, 2, 4, 8, 16),
        "num_warps": (4, 8),
        "num_stages": (2, 3, 4, 5),
    },
    "moe": {
        "BM": (16, 32, 64, 128),
        "BN": (32, 64, 128),
        "BK": (32, 64, 128),
        "num_warps": (4, 8),
        "num_stages": (2, 3, 4),
    },
}
"""What a kernel is right with, by operation and parameter; and what is tried."""

_trying: dict[tuple[str, str], Parameters] = {}
_watched: list[tuple[str, str, Parameters]] | None = None


def launch_parameters(op: str, key: str, default: Parameters) -> Parameters:
    """Those tuned for `key` of `op` on the current GPU; else `default`.

    What a row leaves out it takes from `default`. Raises ConfigError for a file that is not right.
    """
    if _watched is not None:
        _watched.append((op, key, dict(default)))
    if (trial := _trying.get((op, key))) is not None:
        return {**default, **trial}
    row = table(target().gpu).get(op, {}).get(key)
    return default if row is None else {**default, **row}


@contextmanager
def trying(op: str, key: str, parameters: Parameters) -> Iterator[None]:
    """Within, `key` of `op` is launched with these."""
    _trying[op, key] = parameters
    try:
        yield
    finally:
        del _trying[op, key]


@contextmanager
def watching() -> Iterator[list[tuple[str, str, Parameters]]]:
    """What launches ask for within: operation, key and default."""
    global _watched
    found: list[tuple[str, str, Parameters]] = []
    _watched = found
    try:
        yield found
    finally:
        _watched = None


@cache
def table(gpu: str) -> Mapping[str, dict[str, Parameters]]:
    """All of a GPU; empty for one that nobody tuned for. Raises ConfigError."""
    path = FOLDER / f"{gpu}.yaml"
    if not gpu or not path.is_file():
        return {}
    try:
        rows = yaml.safe_load(path.read_text()) or {}
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {error}") from error
    if problems := list(objections(rows)):
        raise ConfigError(
            f"{path} has launch parameters that a kernel is not right with:\n  "
            + "\n  ".join(problems[:10])
            + "\nmend it, write it anew (python -m benchmarks.kernels --tune), or remove it"
        )
    return dict(rows)


def tables() -> dict[str, Mapping[str, dict[str, Parameters]]]:
    """By GPU, all that there are."""
    return {path.stem: table(path.stem) for path in sorted(FOLDER.glob("*.yaml"))}


def objections(rows: Any) -> Iterator[str]:
    """What stands against a table, one sentence each."""
    if not isinstance(rows, Mapping):
        yield "it is not a table: operation, key, parameters"
        return
    for op, own in rows.items():
        if op not in MAY_BE:
            yield f"{op}: there is no such operation; there are {', '.join(MAY_BE)}"
        elif not isinstance(own, Mapping):
            yield f"{op}: it is not a table: key, parameters"
        else:
            for key, row in own.items():
                yield from _of_row(op, key, row)
    products = rows.get("matmul")
    if isinstance(products, Mapping):
        yield from _of_one_order(products)


def _of_row(op: str, key: str, row: Any) -> Iterator[str]:
    if not isinstance(row, Mapping):
        yield f"{op}, {key}: it is not a table: parameter, number"
        return
    for name, value in row.items():
        if name not in MAY_BE[op]:
            yield f"{op}, {key}: there is no {name}; there are {', '.join(MAY_BE[op])}"
        elif value not in MAY_BE[op][name]:
            yield f"{op}, {key}: {name} is {value}, and may be {list(MAY_BE[op][name])}"


def _of_one_order(rows: Mapping[str, Any]) -> Iterator[str]:
    """Products of one size must sum in one order, however many rows there are."""
    found: dict[str, set[int]] = {}
    for key, row in rows.items():
        if isinstance(row, Mapping):
            dtype, _, size = key.partition(", ")
            found.setdefault(f"{dtype}, {size.partition('x')[2]}", set()).add(row.get("BK", 64))
    for size, depths in found.items():
        if len(depths) > 1:
            yield (
                f"matmul, {size}: BK is {sorted(depths)} by the number of rows, and must be one, "
                "for it is the order of the sum"
            )
