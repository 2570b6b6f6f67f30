"""Files that a user names: what is no plain file is refused, not waited for or read for ever."""

from pathlib import Path

from servekit.errors import ConfigError

MOST_BYTES = 64 << 20
"""Of a text that is read whole; a configuration has a few thousand."""


def expanded(path: str) -> Path:
    """With `~` replaced; raises ConfigError for the home of nobody."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ConfigError(f"{path!r} starts with the home of a user who does not exist") from None


def is_there(path: Path) -> bool:
    """Whether there is anything; raises OSError where that cannot be known, as of a long name."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def plain_file(path: Path) -> Path:
    """Raises OSError for what is not there, and for folders, pipes and devices."""
    if path.is_dir():
        raise IsADirectoryError(None, "Is a directory")
    path.stat()
    if not path.is_file():
        raise OSError(None, "Not a plain file")
    return path


def read_text(path: Path) -> str:
    """Raises OSError as `plain_file` and for a file too long, UnicodeError for one not UTF-8."""
    if plain_file(path).stat().st_size > MOST_BYTES:
        raise OSError(None, f"Longer than {MOST_BYTES >> 20} MiB")
    return path.read_text(encoding="utf-8-sig")
