"""A Hugging Face `config.json`, read into trees for `schema.Shape` and `schema.Quantized`.

`architectures` knows the model types. A key that a file leaves out has the default of its model
type in transformers; what a model computes and the decoder does not is a phrase in `planned_only`.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from servekit.config.architectures import quantized, reader
from servekit.config.paths import expanded, read_text
from servekit.errors import ConfigError

DTYPES = ("bfloat16", "float16", "float32")
BESIDE = "hf_quant_config.json"
"""Where some checkpoints say how they are quantized, and config.json does not."""


def read_config(path: str) -> dict[str, Any]:
    """The `config.json` at `path`, a file or the folder that holds it.

    Raises ConfigError if it is not there or not JSON.
    """
    file = expanded(path)
    config = _json(file)
    beside = (file / BESIDE) if file.is_dir() else file.with_name(BESIDE)
    if config.get("quantization_config") is None and beside.is_file():
        found = _json(beside)
        config["quantization_config"] = {"quant_method": "modelopt", **_inner(found, beside)}
    return config


def _inner(found: dict[str, Any], file: Path) -> dict[str, Any]:
    inner = found.get("quantization", found)
    if not isinstance(inner, dict):
        raise ConfigError(f"{str(file)!r}: quantization must be an object; it is {inner!r}")
    return inner


def _json(file: Path) -> dict[str, Any]:
    try:
        file = file / "config.json" if file.is_dir() else file
        loaded = json.loads(read_text(file))
    except OSError as error:
        raise ConfigError(
            f"{str(file)!r} cannot be read ({error.strerror}); model.config is a Hugging Face "
            "config.json or the folder that holds it"
        ) from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{str(file)!r} is not JSON: {error}") from error
    if not isinstance(loaded, dict):
        raise ConfigError(f"{str(file)!r} holds no JSON object")
    return loaded


def read_dtype(config: Mapping[str, Any]) -> str:
    """The dtype the weights were saved in; of quantized ones, that of the rest.

    bfloat16 where the file names none: nobody serves such weights in float32, and few on a GPU
    that has no bfloat16.
    """
    for source in (config, reader.text_of(config)):
        found = source.get("dtype") or source.get("torch_dtype")
        if found:
            name = str(found).removeprefix("torch.")
            if name in DTYPES:
                return name
            raise ConfigError(f"its dtype is {name}; say model.dtype, one of {', '.join(DTYPES)}")
    return "bfloat16"


def read_quantized(config: Mapping[str, Any]) -> dict[str, str] | None:
    """A tree for `schema.Quantized`; None for weights in a plain dtype."""
    return quantized.read(config)


def read_shape(config: Mapping[str, Any]) -> dict[str, Any]:
    """A tree for `schema.Shape`; raises ConfigError for what it has no numbers for."""
    return reader.read(config)
