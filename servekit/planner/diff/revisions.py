"""Configuration as it was at a revision of a git repository, in a temporary folder.

Only git itself is asked; nothing of the working tree or the index is touched.
"""

import io
import os
import posixpath
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from servekit.config.folders import options
from servekit.config.library import RECIPE, Library
from servekit.errors import ConfigError
from servekit.planner.diff.sides import Source

CONF = "conf"
TOP = "."
LINK = b"120000"
"""Mode of a symbolic link in a tree of git."""


@dataclass(frozen=True, slots=True)
class Repository:
    """`folder` is what is read of it, relative to `top`; `added` if it is that of --config-dir."""

    top: Path
    folder: str
    added: bool


def repository(config_dir: str | None) -> Repository:
    """The repository of --config-dir, or of the current folder and its `conf/`.

    Raises ConfigError where there is none.
    """
    wanted = Path(config_dir).resolve() if config_dir else Path.cwd()
    near = next(folder for folder in (wanted, *wanted.parents) if folder.is_dir())
    try:
        top = Path(_git(near, "rev-parse", "--show-toplevel").decode().rstrip("\n")).resolve()
    except subprocess.CalledProcessError as error:
        raise ConfigError(
            f"{near} is not in a git repository that can be read, so there are no revisions to "
            f"compare ({_complaint(error)}); two quoted lists of words, such as "
            "'+recipe=a' '+recipe=a kv.dtype=fp8', need none"
        ) from error
    folder = wanted.relative_to(top).as_posix() if config_dir else CONF
    return Repository(top, folder, bool(config_dir))


def commit(repo: Repository, revision: str) -> str:
    """The full name of a commit; raises ConfigError where the word names none."""
    if revision.startswith("-"):
        raise ConfigError(f"{revision} is neither a revision nor a flag that servekit knows")
    try:
        named = _git(repo.top, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    except subprocess.CalledProcessError as error:
        raise ConfigError(
            f"{revision!r} is neither a revision of {repo.top} nor words of a configuration; "
            f"words have a = in them, as in '+recipe={revision} kv.dtype=fp8', and a revision that "
            "a shallow clone lacks must be fetched"
        ) from error
    return named.decode().strip()


@contextmanager
def source_at(repo: Repository, revision: str) -> Iterator[Source]:
    """The configuration of one revision, for as long as the context lasts."""
    sha = commit(repo, revision)
    with TemporaryDirectory(prefix="servekit-") as folder:
        root = Path(folder).resolve()
        _extract(repo, sha, root)
        read = root / repo.folder
        if read.exists() and not read.is_dir():
            raise ConfigError(f"{repo.folder} is no folder at {revision}; --config-dir names one")
        if repo.added:
            read.mkdir(parents=True, exist_ok=True)
            yield Source(revision, Library(str(read)), root)
        elif (read / "config.yaml").is_file():
            yield Source(revision, Library(None, read), root)
        else:
            raise ConfigError(
                f"{repo.top} has no {CONF}/config.yaml at {revision}; --config-dir names the "
                "folder with your recipes"
            )


def recipes(source: Source, repo: Repository) -> list[str]:
    """Recipes that come from the revision, not from elsewhere on the search path."""
    assert source.root is not None, "a revision has a folder"
    return options(RECIPE, [source.root / repo.folder])


def _extract(repo: Repository, sha: str, root: Path) -> None:
    """The folder, and what symbolic links in it lead to, such as `conf/recipe` to `recipes`."""
    wanted = [repo.folder]
    for path in wanted:
        wanted += [target for target in _links(repo, sha, path) if target not in wanted]
    present = [path for path in wanted if _listed(repo, sha, path)]
    if not present:
        return
    archive = _git(repo.top, "archive", "--format=tar", sha, "--", *_literal(present))
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        try:
            tar.extractall(root, filter="data")
        except tarfile.FilterError as error:
            raise ConfigError(f"{sha[:12]} cannot be read: {error}") from error


def _links(repo: Repository, sha: str, path: str) -> Iterator[str]:
    """Where symbolic links under `path` lead, as paths of the repository; none out of it."""
    for entry in _listed(repo, sha, path):
        about, _, name = entry.partition(b"\t")
        mode, _, blob = about.split(b" ")
        if mode == LINK:
            leads = os.fsdecode(_git(repo.top, "cat-file", "blob", blob.decode()))
            target = posixpath.normpath(posixpath.join(posixpath.dirname(os.fsdecode(name)), leads))
            if not target.startswith(("/", "..")):
                yield target


def _listed(repo: Repository, sha: str, path: str) -> list[bytes]:
    listing = _git(repo.top, "ls-tree", "-r", "-z", "--full-tree", sha, "--", path)
    return [entry for entry in listing.split(b"\0") if entry]


def _literal(paths: Sequence[str]) -> list[str]:
    """As they are: no `*` of a folder's name is a pattern. The top is all, without a name."""
    return [] if TOP in paths else [f":(top,literal){path}" for path in paths]


def _git(folder: Path, *arguments: str) -> bytes:
    command = ["git", "-C", str(folder), *arguments]
    try:
        return subprocess.run(command, check=True, capture_output=True).stdout
    except FileNotFoundError as error:
        raise ConfigError("git is not installed, and revisions are read with it") from error


def _complaint(error: subprocess.CalledProcessError) -> str:
    lines = os.fsdecode(error.stderr).strip().splitlines()
    return lines[0] if lines else f"git returned {error.returncode}"
