"""`hf:org/name@revision` and `hf:org/name/file.gguf@revision`, by way of huggingface_hub.

Its own cache, lock and resume are used, and its environment: HF_HOME, HF_ENDPOINT, HF_TOKEN,
HF_HUB_OFFLINE.
"""

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import constants, hf_hub_download, snapshot_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]

from servekit.errors import SourceError, SourceNotFound
from servekit.model.sources_cache import POLL_S, Progress, disk_trouble, folder_size, verify

PATTERNS = ("*.safetensors", "*.json", "*.txt", "*.jinja", "*.model")
"""Weights, configuration and tokenizer; no pickles and no code."""
LEFT_OUT = ("consolidated*", "original/*")
"""The same weights again, in the layout of their author's own code."""

_SOURCE = re.compile(r"^hf:(?P<repo>[^/@]+/[^/@]+)(/(?P<file>[^@]+))?(@(?P<revision>.+))?$")


@dataclass(frozen=True, slots=True)
class HubSource:
    repo: str
    file: str | None
    revision: str


def parse(source: str) -> HubSource:
    """Raises SourceNotFound for what is not `hf:org/name`, or has a file that is not .gguf."""
    match = _SOURCE.match(source)
    if match is None or (match["file"] and not match["file"].endswith(".gguf")):
        raise SourceNotFound(
            f"{source!r} does not name a model; write hf:org/name@revision, "
            "or hf:org/name/file.gguf@revision"
        )
    return HubSource(match["repo"], match["file"], match["revision"] or "main")


def fetch(source: str, sha256: str | None, progress: Progress) -> Path:
    """A snapshot folder, or the one .gguf file. Raises SourceError."""
    wanted = parse(source)
    if wanted.file is None and sha256 is not None:
        raise SourceError(
            f"model.sha256 is the checksum of one file, but {source} is a folder of several; "
            "remove it and pin a commit: hf:org/name@<commit>"
        )
    disable_progress_bars()
    folder = Path(constants.HF_HUB_CACHE) / f"models--{wanted.repo.replace('/', '--')}"
    outcome = _watched(lambda: _download(wanted), folder, progress)
    if isinstance(outcome, Exception):
        raise SourceError(f"{source}: {_reason(wanted, outcome)}") from outcome
    if wanted.file is not None and sha256 is not None:
        verify(outcome, source, sha256, progress)
    return outcome


def _download(wanted: HubSource) -> Path:
    if wanted.file is not None:
        return Path(hf_hub_download(wanted.repo, wanted.file, revision=wanted.revision))
    return Path(
        snapshot_download(
            wanted.repo,
            revision=wanted.revision,
            allow_patterns=list(PATTERNS),
            ignore_patterns=list(LEFT_OUT),
        )
    )


def _watched(download: Callable[[], Path], folder: Path, progress: Progress) -> Path | Exception:
    """Run it in a thread, reporting how much came, until it ends or `progress` raises.

    A cancelled thread ends with the process: it is a daemon, and what it has is resumed next time.
    """
    outcomes: list[Path | Exception] = []

    def run() -> None:
        try:
            outcomes.append(download())
        except Exception as error:  # handed to the caller's thread
            outcomes.append(error)

    thread = threading.Thread(target=run, name="hub-download", daemon=True)
    before = folder_size(folder)
    thread.start()
    while thread.is_alive():
        progress("download", max(0, folder_size(folder) - before), 0)
        thread.join(POLL_S)
    return outcomes[0]


def _reason(wanted: HubSource, error: Exception) -> str:
    """What the hub's many exceptions mean, and what to do."""
    token = "set HF_TOKEN to a token that may read it"
    if isinstance(error, GatedRepoError):
        return f"{wanted.repo} is gated; accept its licence on its page, and {token}"
    if isinstance(error, RepositoryNotFoundError):
        return f"there is no model {wanted.repo}, or it is private: check the name, or {token}"
    if isinstance(error, RevisionNotFoundError):
        return f"{wanted.repo} has no revision {wanted.revision!r}; name a branch, tag or commit"
    if isinstance(error, LocalEntryNotFoundError | OfflineModeIsEnabled):
        return (
            f"not whole in {constants.HF_HUB_CACHE}, and {_where()} cannot be asked; connect this "
            "machine once, or copy the folder and name it as file:/path"
        )
    if isinstance(error, EntryNotFoundError):
        return f"{wanted.repo} at {wanted.revision} has no {wanted.file}; check its list of files"
    if isinstance(error, HfHubHTTPError) and error.response is not None:
        status = error.response.status_code
        if status in (401, 403):
            return f"{_where()} refuses access to {wanted.repo} ({status}); {token}"
        return f"{_where()} answered {status}; try again later"
    if isinstance(error, HFValidationError):
        return f"{error}; write hf:org/name@revision"
    if isinstance(error, OSError) and (trouble := disk_trouble(error)):
        return f"{constants.HF_HUB_CACHE}: {trouble}, or set HF_HOME to a folder elsewhere"
    return f"{_where()} cannot be used ({type(error).__name__}: {error})"


def _where() -> str:
    if constants.HF_HUB_OFFLINE:
        return "the hub (HF_HUB_OFFLINE is set)"
    return f"the hub at {constants.ENDPOINT}"
