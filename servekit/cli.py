"""The command line: a verb, flags, and the words of a configuration.

The verb and the flags are taken off before anything composes the words, so every verb reads the
same grammar. A verb imports what it needs when it runs: `servekit --help` imports nothing.
"""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from servekit import output
from servekit.config.hydra_words import COMPLETION, HYDRA_FLAGS, check_completion, leads, taken
from servekit.errors import ConfigError, ServekitError

VERB_FLAGS = {"--explain": "plan", "--markdown": "diff"}
"""Switches of one verb each."""

VERB_VALUES = {
    "--from-log": ("plan", "a file"),
    "--fail-on": ("diff", "policies"),
    "--requests": ("simulate", "a number"),
    "--seeds": ("simulate", "a number"),
    "--html": ("simulate", "a file"),
    "--compare": ("simulate", "key=value,value"),
    "--tenant": ("keys", "a name"),
    "--id": ("keys", "a name"),
    "--access": ("keys", "inference, admin or both"),
    "--max-concurrent": ("keys", "a number"),
    "--requests-per-minute": ("keys", "a number"),
    "--tokens-per-minute": ("keys", "a number"),
}
"""Flags of one verb each that take a value, and what it is."""

OUR_FLAGS = (
    *("--json", "--help", "-h", "--version", "--multirun", "-m", "--config-dir", "-cd"),
    *VERB_FLAGS,
    *VERB_VALUES,
)


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
    options: dict[str, str] = field(default_factory=dict)
    """Flags of one verb, with their values; a switch has none."""


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
    from servekit.planner.pages.page import main as plan
    from servekit.planner.pages.sweep import main as sweep

    if not line.sweep:
        composed = load(line.words, line.config_dir)
        if (log := line.options.get("--from-log")) is not None:
            if "--explain" in line.options:
                raise ConfigError("--from-log and --explain are two pages; ask for one")
            from servekit.planner.startup.startup_log import main as read_log

            return read_log(log, composed, line.as_json)
        return plan(composed, line.as_json, explain="--explain" in line.options)
    if line.options:
        raise ConfigError(f"{next(iter(line.options))} is for one configuration, not for -m")
    each = jobs(line.words, line.config_dir)
    return sweep(each, lambda words: load(words, line.config_dir), line.as_json)


def _simulate(line: Line) -> int:
    if line.sweep:
        raise ConfigError("simulate compares with --compare key=value,value; -m is for plan")
    from servekit.config.compose import load
    from servekit.simulator.simulate import main as simulate

    return simulate(
        line.words,
        lambda words: load(words, line.config_dir).config,
        as_json=line.as_json,
        requests=line.options.get("--requests"),
        seeds=line.options.get("--seeds"),
        html=line.options.get("--html"),
        varied=line.options.get("--compare"),
    )


def _explain(line: Line) -> int:
    if line.sweep:
        raise ConfigError("explain shows one configuration; -m is for `servekit plan -m ...`")
    from servekit.config.explain import main as explain

    return explain(line.words, line.config_dir, line.as_json)


def _models(line: Line) -> int:
    if line.config_dir or line.sweep:
        raise ConfigError("models takes no --config-dir and no -m; SERVEKIT_CONFIG_PATH adds some")
    from servekit.planner.catalogue.models import main as models

    return models(line.words, line.as_json)


def _diff(line: Line) -> int:
    if line.sweep:
        raise ConfigError("diff compares two configurations; -m is for `servekit plan -m ...`")
    from servekit.planner.diff.diff import main as diff

    return diff(
        line.words,
        line.config_dir,
        as_json=line.as_json,
        markdown="--markdown" in line.options,
        fail_on=line.options.get("--fail-on"),
    )


def _keys(line: Line) -> int:
    if line.config_dir or line.sweep:
        raise ConfigError("keys takes no --config-dir and no -m")
    from servekit.server.new_keys import main as keys

    return keys(line.words, line.options, line.as_json)


def _doctor(line: Line) -> int:
    if line.words or line.config_dir or line.sweep:
        raise ConfigError("doctor looks at this machine; it takes no words but --json")
    from servekit.planner.machine.doctor import main as doctor

    return doctor(line.as_json)


VERBS: dict[str, Verb] = {
    "serve": Verb("plan, check and launch; the verb may be left out", _serve),
    "plan": Verb("does it fit, how fast, what does it cost, before anything is loaded", _plan),
    "simulate": Verb("what clients would see: this scheduler, on a modelled device", _simulate),
    "diff": Verb("what a change does to capacity, latency and cost", _diff, composes=False),
    "explain": Verb("a key's value, meaning, limits, and where it came from", _explain),
    "models": Verb("list the models; fetch or inspect one", _models, composes=False),
    "keys": Verb("make a key, and its line for server.api_keys", _keys, composes=False),
    "doctor": Verb("what this machine is, as a hardware option", _doctor, composes=False),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0 if all is well, 1 if we failed, 2 if configuration or plan are refused."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    as_json = "--json" in words
    output.opened()
    try:
        try:
            return output.flushed(_run(parse(words)))
        except ServekitError as error:
            return output.flushed(output.refused(error, as_json))
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        return output.failed(error)


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
        elif flag in VERB_VALUES:
            line.options[flag] = _value(flag, value if equals else None, rest)
        elif flag in HYDRA_FLAGS:
            line.hydra += taken(word, rest)
        else:
            _switch(line, word)
    if line.words and _is_bare(line.words[0]):
        line.verb = line.words.pop(0)
        if line.verb not in VERBS:
            raise ConfigError(_no_verb(line.verb))
    _check_options(line)
    late = next((word for word in line.words if word in VERBS), None)
    if late is not None and line.verb is None:
        raise ConfigError(f"the command comes first: servekit {late} ...")
    if set(COMPLETION) & set(line.hydra):
        check_completion(line.words)
    elif line.hydra and not leads(line.hydra):
        raise ConfigError(f"{line.hydra[0]} goes with --cfg job, which shows the composed YAML")
    return line


def _value(flag: str, given: str | None, rest: list[str]) -> str:
    """What stands after `=` or as the next word, which is taken off `rest`."""
    value = given if given is not None else rest.pop(0) if rest else ""
    if not value or (given is None and value.startswith("-")):
        raise ConfigError(f"{flag} needs {VERB_VALUES[flag][1]} after it")
    return value


def _check_options(line: Line) -> None:
    for flag in line.options:
        verb = VERB_FLAGS.get(flag) or VERB_VALUES[flag][0]
        if line.verb != verb:
            raise ConfigError(f"{flag} is for servekit {verb}")


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
        case _ if word in VERB_FLAGS:
            line.options[word] = ""
        case _:
            raise ConfigError(f"there is no flag {word}{_meant(word, [*OUR_FLAGS, *HYDRA_FLAGS])}")


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

        print(json.dumps({"version": __version__}) if line.as_json else f"servekit {__version__}")
        return 0
    asks_nothing = not (line.verb or line.words or line.hydra or line.config_dir)
    if line.help or asks_nothing:
        from servekit.config.help import page, to_json, verb_page

        if line.verb is not None and not line.as_json:
            asked = VERBS[line.verb]
            print(verb_page(line.verb, asked.phrase, asked.composes, line.config_dir))
            return 0
        verbs = {name: verb.phrase for name, verb in VERBS.items()}
        if line.as_json:
            print(json.dumps(to_json(verbs, line.config_dir), indent=2))
        else:
            print(page(verbs, line.config_dir))
        return 0
    verb = VERBS[line.verb or "serve"]
    if line.hydra:
        if not verb.composes:
            raise ConfigError(f"{line.verb} composes no configuration; {line.hydra[0]} shows one")
        from servekit.config.hydra_flags import answer

        return answer(line.hydra, line.words, line.config_dir, list(VERBS))
    return verb.run(line)
