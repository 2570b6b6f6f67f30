"""Where configuration files are, in plain file-system terms; `--help` needs no more."""

import os
from pathlib import Path

from servekit.errors import ConfigError

SEARCH_VARIABLE = "SERVEKIT_CONFIG_PATH"


def builtin_folder() -> Path:
    """`conf/`: inside the package when installed from a wheel, beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    candidates = (package / "conf", package.parent / "conf")
    for folder in candidates:
        if (folder / "config.yaml").is_file():
            return folder
    raise ConfigError(
        f"this installation has no configuration: neither {candidates[0]} nor {candidates[1]} "
        "has a config.yaml; install servekit again"
    )


def preferred_folders() -> list[Path]:
    """Folders of SERVEKIT_CONFIG_PATH: searched before the built-in one, first match wins."""
    words = filter(None, os.environ.get(SEARCH_VARIABLE, "").split(os.pathsep))
    return [_existing(Path(word), SEARCH_VARIABLE) for word in words]


def added_folder(config_dir: str | None) -> list[Path]:
    """The folder of `--config-dir`: searched after the built-in one."""
    return [_existing(Path(config_dir), "--config-dir")] if config_dir else []


def _existing(folder: Path, named_by: str) -> Path:
    if not folder.is_dir():
        raise ConfigError(f"{named_by} names {str(folder)!r}, which is not a folder")
    return folder.resolve()


def search_folders(config_dir: str | None, conf: Path | None = None) -> list[Path]:
    """All folders, in the order in which a name is looked up; `conf` stands for the built-in one.

    Another `conf/` is one of another revision, which `servekit diff` compares with.
    """
    return [*preferred_folders(), conf or builtin_folder(), *added_folder(config_dir)]


def options(group: str, folders: list[Path]) -> list[str]:
    """Names that may follow `group=`."""
    found = (file for folder in folders for file in (folder / group).glob("*.yaml"))
    return sorted({file.stem for file in found if is_file(file)})


def is_file(path: Path) -> bool:
    """Not for a link that leads nowhere, or to itself."""
    try:
        return path.is_file()
    except (OSError, RuntimeError):
        return False


def groups(folders: list[Path]) -> list[str]:
    """Names of the groups themselves; a folder without YAML files is none."""
    found = {file.parent.name for folder in folders for file in folder.glob("*/*.yaml")}
    return sorted(found)


def first_comment(group: str, option: str, folders: list[Path]) -> str:
    """The first comment line of an option's file that is not Hydra's package header."""
    for folder in folders:
        file = folder / group / f"{option}.yaml"
        if file.is_file():
            lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
            comments = [line[1:].strip() for line in lines if line.startswith("#")]
            return next((line for line in comments if not line.startswith("@package")), "")
    return ""
