"""Flags on the command line that Hydra answers, as words: read without importing Hydra."""

from servekit.errors import ConfigError

CFG = ("job", "hydra", "all")
INFO = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")
COMPLETION = ("--shell-completion", "-sc")
HYDRA_FLAGS: dict[str, tuple[str, ...] | None] = {
    **dict.fromkeys(("--cfg", "-c"), CFG),
    **dict.fromkeys(("--info", "-i"), INFO),
    **dict.fromkeys(("--package", "-p", "--resolve", *COMPLETION)),
}
"""Flags that Hydra answers by itself, with the words that may follow where they are fixed."""


def leads(hydra: list[str]) -> bool:
    return any(HYDRA_FLAGS.get(flag) in (CFG, INFO) for flag in hydra)


def taken(word: str, rest: list[str]) -> list[str]:
    """One of Hydra's flags with its value, which is taken off `rest`; Hydra's checks are ours."""
    flag, equals, value = word.partition("=")
    if flag in (*COMPLETION, "--resolve"):
        if equals:
            raise ConfigError(f"{flag} takes no value, here {value!r}")
        return [flag]
    given = value if equals else rest.pop(0) if _is_value(rest) else None
    choices = HYDRA_FLAGS[flag]
    if choices is INFO and given is None:
        return [flag]
    if not given or (choices is not None and given not in choices):
        wanted = f"one of {', '.join(choices)}" if choices else "a group, such as kv,"
        raise ConfigError(f"{flag} needs {wanted} after it" + (f", not {given}" if given else ""))
    return [flag, given]


def check_completion(words: list[str]) -> None:
    shells = ("bash", "fish", "zsh")
    known = [f"{verb}={shell}" for verb in ("install", "uninstall", "query") for shell in shells]
    if len(words) != 1 or words[0] not in known:
        raise ConfigError(
            f"-sc needs one of install=SHELL, uninstall=SHELL, query=SHELL after it, where SHELL "
            f"is {', '.join(shells)}" + (f"; here it has {' '.join(words)}" if words else "")
        )


def _is_value(rest: list[str]) -> bool:
    return bool(rest) and not set(rest[0]) & set("=+~") and not rest[0].startswith("-")
