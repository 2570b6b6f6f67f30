"""Launch parameters as data: `tuned/<gpu>.yaml`, op -> key -> parameters.

The files are written by `python -m benchmarks.kernels --tune` on the GPU that they are named after.
"""

from functools import cache
from pathlib import Path

import yaml

from servekit.kernels.target import target

FOLDER = Path(__file__).with_name("tuned")

Parameters = dict[str, int]


def launch_parameters(op: str, key: str, default: Parameters) -> Parameters:
    """Those tuned for `key` of `op` on the current GPU; else `default`.

    What a row leaves out it takes from `default`; a row may name nothing that `default` does not.
    """
    row = table(target().gpu).get(op, {}).get(key)
    return default if row is None else {**default, **row}


@cache
def table(gpu: str) -> dict[str, dict[str, Parameters]]:
    """All of a GPU; empty for one that nobody tuned for."""
    path = FOLDER / f"{gpu}.yaml"
    if not gpu or not path.is_file():
        return {}
    rows = yaml.safe_load(path.read_text()) or {}
    return dict(rows)


def tables() -> dict[str, dict[str, dict[str, Parameters]]]:
    """By GPU, all that there are."""
    return {path.stem: table(path.stem) for path in sorted(FOLDER.glob("*.yaml"))}
