"""The command line: a verb, flags, and the words of a configuration.

The verb and the flags are taken off before anything composes the words, so every verb reads the
same grammar. A verb imports what it needs when it runs: `servekit --help` imports nothing.
"""

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from servekit.errors import ConfigError, ServekitError

HYDRA_FLAGS = {"--cfg": 1, "-c": 1, "--package": 1, "-p": 1, "--resolve": 0, "--hydra-help": 0}
HYDRA_FLAGS |= {"--info": 1, "-i": 1, "--shell-completion": 0, "-sc": 0}
"""Flags that Hydra answers by itself, and how many words follow each."""

OUR_FLAGS = ("--json", "--help", "-h", "--version", "--multirun", "-m", "--config-dir", "-cd")


@dataclass(slots=True)
class Line:
    """A command line taken apart. `hydra` has flags with their values, for Hydra to answer."""

    verb: str | None = None
    words: list[str] = field(default_factory=list)
    as_json: bool = False
    help: bool = False
    version: bool = False
    sweep: bool = False
    config_dir: str | None = None
    hydra: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Verb:
    """`composes`: its words are a configuration, so Hydra's flags make sense."""

    phrase: str
    run: Callable[[Line], int]
    composes: bool = True


def _serve(line: Line) -> int:
    if line.sweep:
        raise ConfigError("serve runs one configuration; -m is for `servekit plan -m ...`")
    from servekit.config.compose import load
    from servekit.server.serve import main as serve

    return serve(load(line.words, line.config_dir), line.as_json)


def _plan(line: Line) -> int:
    from servekit.config.compose import jobs, load
    from servekit.planner.page import main as plan

    if not line.sweep:
        return plan(load(line.words, line.config_dir), line.as_json)
    codes = []
    for words in jobs(line.words, line.config_dir):
        print(f"# {' '.join(words)}", file=sys.stderr if line.as_json else sys.stdout, flush=True)
        codes.append(plan(load(words, line.config_dir), line.as_json))
    return max(codes, default=0)


def _explain(line: Line) -> int:
    if line.sweep:
        raise ConfigError("explain shows one configuration; -m is for `servekit plan -m ...`")
    from servekit.config.explain import main as explain

    return explain(line.words, line.config_dir, line.as_json)


def _models(line: Line) -> int:
    if line.config_dir or line.sweep:
        raise ConfigError("models takes no --config-dir and no -m; SERVEKIT_CONFIG_PATH adds some")
    from servekit.planner.models import main as models

    return models(line.words, line.as_json)


VERBS: dict[str, Verb] = {
    "serve": Verb("plan, check and launch; the verb may be left out", _serve),
    "plan": Verb("memory and KV capacity, before anything is loaded", _plan),
    "explain": Verb("a key's value, meaning, limits, and where it came from", _explain),
    "models": Verb("list the models; fetch or inspect one", _models, composes=False),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0 if all is well, 1 if we failed, 2 if configuration or plan are refused."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    as_json = "--json" in words
    try:
        return _run(parse(words))
    except ServekitError as error:
        if as_json:
            body = {"message": error.message, "type": error.kind, "code": error.code}
            print(json.dumps({"error": body}, indent=2))
        print(f"servekit: {error.message}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def parse(arguments: Sequence[str]) -> Line:
    """Takes verb and flags off the words; raises ConfigError for one that does not exist."""
    line = Line()
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        flag, equals, value = word.partition("=")
        if not word.startswith("-"):
            line.words.append(word)
        elif flag in ("--config-dir", "-cd"):
            if not equals and not rest:
                raise ConfigError(f"{flag} needs a folder after it")
            line.config_dir = value if equals else rest.pop(0)
        elif flag in HYDRA_FLAGS:
            takes = 0 if equals else HYDRA_FLAGS[flag]
            line.hydra += [word, *(rest.pop(0) for _ in range(takes) if _is_value(rest))]
        else:
            _switch(line, word)
    if line.words and _is_bare(line.words[0]):
        line.verb = line.words.pop(0)
        if line.verb not in VERBS:
            raise ConfigError(_no_verb(line.verb))
    late = next((word for word in line.words if word in VERBS), None)
    if late is not None and line.verb is None:
        raise ConfigError(f"the command comes first: servekit {late} ...")
    return line


def _switch(line: Line, word: str) -> None:
    match word:
        case "--json":
            line.as_json = True
        case "--help" | "-h":
            line.help = True
        case "--version":
            line.version = True
        case "--multirun" | "-m":
            line.sweep = True
        case _:
            raise ConfigError(f"there is no flag {word}{_meant(word, [*OUR_FLAGS, *HYDRA_FLAGS])}")


def _is_value(rest: list[str]) -> bool:
    return bool(rest) and not set(rest[0]) & set("=+~") and not rest[0].startswith("-")


def _is_bare(word: str) -> bool:
    return not set(word) & set("=+~")


def _no_verb(word: str) -> str:
    return (
        f"there is no command {word!r}{_meant(word, list(VERBS))}\nCommands are {', '.join(VERBS)};"
        " anything else is key=value, group=option or +recipe=name"
    )


def _meant(word: str, names: list[str]) -> str:
    from difflib import get_close_matches

    found = get_close_matches(word, names, n=1)
    return f"; did you mean {found[0]}?" if found else ""


def _run(line: Line) -> int:
    if line.version:
        from servekit import __version__

        print(f"servekit {__version__}")
        return 0
    asks_nothing = not (line.verb or line.words or line.hydra or line.config_dir)
    if line.help or asks_nothing:
        from servekit.config.help import page

        print(page({name: verb.phrase for name, verb in VERBS.items()}, line.config_dir))
        return 0
    verb = VERBS[line.verb or "serve"]
    if line.hydra:
        if not verb.composes:
            raise ConfigError(f"{line.verb} composes no configuration; {line.hydra[0]} shows one")
        from servekit.config.hydra_flags import answer

        return answer(line.hydra, line.words, line.config_dir, list(VERBS))
    return verb.run(line)
