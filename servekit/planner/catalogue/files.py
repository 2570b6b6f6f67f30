"""What the weights will take, by the headers of their files, where these are on this machine.

Nothing is fetched, and no tensor is read.
"""

import json
import os
import re
from math import prod
from pathlib import Path

from servekit.config.base import DTYPE_BYTES
from servekit.config.schema import Config
from servekit.errors import WeightsError
from servekit.planner.catalogue.checkpoint import safetensors_header
from servekit.planner.catalogue.gguf_sizes import read_sizes
from servekit.spec.model import parameters, rank_weights

HUB = re.compile(r"^hf:(?P<repo>[^/@]+/[^/@]+)(/(?P<file>[^@]+))?(@(?P<revision>.+))?$")
LAYER = re.compile(r"(?:^|\.)(?:layers|blk)\.(\d+)\.")
TABLES = ("rope_freqs.weight", "rotary_emb.inv_freq")
"""Computed from the configuration, whatever a file has."""
HEADS = ("lm_head.weight", "language_model.lm_head.weight", "output.weight")
"""A head that is the embedding is held once, also where a file has it twice."""
INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"


def weights_on_disk(config: Config) -> int | None:
    """Bytes that one device alone will hold, or None where the files are not here or do not say.

    Without a format the decoder holds every weight in model.dtype, whatever the file has, and then
    the plan is right but for parameters that it does not know of. Weights in the format of the
    file stay as they are. Damaged files are for `serve` to complain of.
    """
    path = find(config.model.source)
    wanted, stored = config.quantization, config.model.quantized
    in_dtype = wanted.weights == "none"
    if path is None or not (in_dtype or (stored and stored.weights == wanted.weights)):
        return None
    alone = config.parallelism.model_copy(update={"tensor": 1, "pipeline": 1, "data": 1})
    alone = alone.model_copy(update={"expert": 1})
    planned = rank_weights(config.model_copy(update={"parallelism": alone}))
    try:
        values, as_stored = sizes(path)
    except (WeightsError, OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    if not in_dtype:
        return as_stored + planned.draft.bytes + planned.rotary.bytes
    extra = decoder_values(config, values) - parameters(config.model.shape).total
    return planned.bytes + extra * DTYPE_BYTES[config.model.dtype]


def decoder_values(config: Config, values: dict[str, int]) -> int:
    """Without tables of rotary embedding, a second tied head, and layers after the last."""
    layers = config.model.shape.layers
    left_out = HEADS if config.model.shape.tie_word_embeddings else ()
    return sum(
        count
        for name, count in values.items()
        if not name.endswith(TABLES)
        and name not in left_out
        and not ((layer := LAYER.search(name)) and int(layer[1]) >= layers)
    )


def sizes(path: Path) -> tuple[dict[str, int], int]:
    """Values of each tensor by name, and the bytes of all; raises as the readers do."""
    if path.is_file():
        found = read_sizes(path)
        return found.values, found.bytes
    tensors = [tensor for file in safetensors(path) for tensor in safetensors_header(file)]
    return {tensor.name: prod(tensor.shape) for tensor in tensors}, sum(t.bytes for t in tensors)


def safetensors(folder: Path) -> list[Path]:
    """The files that an index names, or the only one there is; raises OSError if one is missing."""
    index = folder / INDEX
    if index.is_file():
        names = sorted({*json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()})
        return [folder / name for name in names]
    single = folder / SINGLE
    return [single] if single.is_file() else sorted(folder.glob("*.safetensors"))


def find(source: str) -> Path | None:
    """A .gguf file or a folder with safetensors that `source` means, if it is on this machine."""
    scheme, _, rest = source.partition(":")
    if scheme == "file":
        path: Path | None = Path(rest).expanduser()
    else:
        path = in_cache(source) if scheme == "pypi" else in_hub_cache(source)
    if path is None or path.is_file():
        return path if path is not None and path.suffix == ".gguf" else None
    return path if path.is_dir() and any(path.glob("*.safetensors")) else None


def in_cache(source: str) -> Path | None:
    from servekit.model.sources_cache import finished

    return finished(source)


def in_hub_cache(source: str) -> Path | None:
    """Where huggingface_hub keeps it: a snapshot of the commit that the revision last was."""
    match = HUB.match(source)
    if match is None:
        return None
    home = os.environ.get("HF_HOME") or "~/.cache/huggingface"
    cache = os.environ.get("HF_HUB_CACHE") or f"{home}/hub"
    folder = Path(cache).expanduser() / f"models--{match['repo'].replace('/', '--')}"
    revision = match["revision"] or "main"
    reference = folder / "refs" / revision
    commit = reference.read_text().strip() if reference.is_file() else revision
    snapshot = folder / "snapshots" / commit
    return snapshot / match["file"] if match["file"] else snapshot
