"""What "auto" means, at each of the few keys that may say it; the only place that knows."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from servekit.config import hf, machine, site
from servekit.config.origins import COMMAND_LINE_RANK, Layered, Origin, leaves, select
from servekit.config.paths import expanded
from servekit.config.problems import Problem
from servekit.errors import ConfigError

AUTO = "auto"
GIB = 1024**3

Tree = Mapping[str, Any]


class Unknown(Exception):
    """A rule's input is itself missing or wrong, which is reported by itself."""


@dataclass(frozen=True, slots=True)
class Rule:
    """How one key is derived; `sentence` says so to the user, with {value} of the key it reads.

    A rule that `fills` is for a mapping: keys given by hand stay, it gives the rest.
    """

    value: Callable[[Tree], Any]
    sentence: str
    reads: str | None = None
    fills: bool = False

    def applies_to(self, given: Any, tree: Tree) -> bool:
        if given == AUTO:
            return True
        read = self.reads and select(tree, tuple(self.reads.split(".")))
        return self.fills and isinstance(given, Mapping) and read is not None


def _copy(path: str) -> Callable[[Tree], Any]:
    return lambda tree: _read(tree, path)


def _read(tree: Tree, path: str) -> Any:
    value = select(tree, tuple(path.split(".")))
    if value is None or value in (AUTO, "???"):
        raise Unknown
    return value


def _read_as(kind: Any, tree: Tree, path: str) -> Any:
    value = _read(tree, path)
    if not isinstance(value, kind):
        raise Unknown
    return value


def _checkpoint(tree: Tree) -> tuple[str, dict[str, Any]]:
    path = select(tree, ("model", "config"))
    if path is None:
        raise ConfigError("auto reads it from model.config, a Hugging Face config.json; give one")
    if not isinstance(path, str) or path in (AUTO, "???"):
        raise Unknown
    return path, hf.read_config(path)


def _folder(tree: Tree) -> Path:
    path = expanded(_checkpoint(tree)[0]).resolve()
    return path.parent if path.is_file() else path


def _of_checkpoint(reads: Callable[[dict[str, Any]], Any]) -> Callable[[Tree], Any]:
    def value(tree: Tree) -> Any:
        path, config = _checkpoint(tree)
        try:
            return reads(config)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error.message}") from error

    return value


def _on_cpu(measure: Callable[[], Any]) -> Callable[[Tree], Any]:
    def value(tree: Tree) -> Any:
        if _read(tree, "hardware.kind") != "cpu":
            raise ConfigError("auto measures this machine, which is for hardware.kind=cpu only")
        return measure()

    return value


def _memory_gib() -> float:
    return machine.memory_bytes() * 100 // GIB / 100


def _memory_fraction(tree: Tree) -> float:
    return 0.2 if _read(tree, "hardware.kind") == "cpu" else 0.9


def _of_source(key: str, otherwise: str) -> Callable[[Tree], Any]:
    def value(tree: Tree) -> Any:
        quantized = select(tree, ("model", "quantized"))
        if quantized == AUTO:
            raise Unknown
        return _read(quantized, key) if isinstance(quantized, Mapping) else otherwise

    return value


def _by_speed(tree: Tree, sizes: tuple[int, int, int]) -> int:
    """A size for a CPU or a small GPU, for a large one, and for the largest."""
    on_cpu = _read(tree, "hardware.kind") == "cpu"
    tflops = 0 if on_cpu else _read_as(int | float, tree, "hardware.bf16_tflops")
    return sizes[0] if tflops < 450 else sizes[1] if tflops < 1200 else sizes[2]


def _step_ms(tree: Tree) -> float | None:
    """Read before the step's tokens are derived: a number of them is a choice of the user's."""
    if select(tree, ("scheduler", "max_num_batched_tokens")) != AUTO:
        return None
    target: float | None = select(tree, ("slo", "tpot_ms"))
    return target


def _step_tokens(tree: Tree) -> int:
    seats = select(tree, ("scheduler", "max_num_seqs"))
    most = _by_speed(tree, (2048, 8192, 16384))
    return max(most, seats) if isinstance(seats, int) else most


def _seats(tree: Tree) -> int:
    tokens: int = _read_as(int, tree, "scheduler.max_num_batched_tokens")
    return min(_by_speed(tree, (256, 1024, 1024)), tokens)


def _constants(tree: Tree) -> dict[str, Any] | None:
    return site.constants_for(
        _read_as(str, tree, "hardware.name"),
        _read_as(int, tree, "parallelism.tensor"),
        _read_as(int, tree, "parallelism.pipeline"),
        model=site.model_key(_read(tree, "model.name"), _read(tree, "quantization.weights")),
    )


RULES: dict[str, Rule] = {
    "hardware.memory_gib": Rule(
        _on_cpu(_memory_gib), "this machine's memory, or the container's limit if that is less"
    ),
    "hardware.threads": Rule(
        _on_cpu(lambda: machine.usable_cores()),
        "the cores this process may use, or the container's CPU quota if that is less",
    ),
    "hardware.bandwidth_gb_s": Rule(
        _on_cpu(lambda: machine.guessed_bandwidth_gb_s()),
        "a guess from the cores of this machine; servekit doctor measures it",
    ),
    "hardware.bf16_tflops": Rule(
        _on_cpu(lambda: machine.guessed_bf16_tflops()),
        "a guess from the cores of this machine and their instructions; servekit doctor "
        "measures it",
    ),
    "model.shape": Rule(
        _of_checkpoint(hf.read_shape), "read from {value}", reads="model.config", fills=True
    ),
    "model.source": Rule(
        lambda tree: f"file:{_folder(tree)}", "the folder of {value}", reads="model.config"
    ),
    "model.name": Rule(
        lambda tree: _folder(tree).name, "the folder's name in {value}", reads="model.config"
    ),
    "model.dtype": Rule(
        _of_checkpoint(hf.read_dtype),
        "what {value} was saved in, bfloat16 where it does not say",
        reads="model.config",
    ),
    "model.max_model_len": Rule(
        _copy("model.shape.max_position_embeddings"),
        "the longest context of the model, model.shape.max_position_embeddings={value}",
        reads="model.shape.max_position_embeddings",
    ),
    "model.quantized": Rule(
        _of_checkpoint(hf.read_quantized),
        "quantization_config of {value}, if it has one",
        reads="model.config",
    ),
    "quantization.weights": Rule(
        _of_source("weights", "none"),
        "as the source has them, model.quantized={value}",
        reads="model.quantized",
    ),
    "quantization.scope": Rule(
        _of_source("scope", "linears"),
        "as the source has them, model.quantized={value}",
        reads="model.quantized",
    ),
    "scheduler.max_step_ms": Rule(
        _step_ms,
        "slo.tpot_ms={value}, if max_num_batched_tokens is auto too; null: a step is as long as "
        "its tokens take",
        reads="slo.tpot_ms",
    ),
    "scheduler.max_num_batched_tokens": Rule(
        _step_tokens,
        "steps of like duration: 2048, from 450 TFLOPS 8192, from 1200 TFLOPS 16384; "
        "hardware.bf16_tflops={value}",
        reads="hardware.bf16_tflops",
    ),
    "scheduler.max_num_seqs": Rule(
        _seats,
        "256, or 1024 on a device of 450 TFLOPS or more, and no more than "
        "scheduler.max_num_batched_tokens; hardware.bf16_tflops={value}",
        reads="hardware.bf16_tflops",
    ),
    "kv.dtype": Rule(_copy("model.dtype"), "the same as model.dtype={value}", reads="model.dtype"),
    "kv.hybrid": Rule(
        lambda tree: True,
        "true: layers keep what they can still see",
    ),
    "kv.memory_fraction": Rule(
        _memory_fraction,
        "0.9 on a GPU, which serves alone; 0.2 on a CPU, whose memory is others' too; "
        "hardware.kind={value}",
        reads="hardware.kind",
    ),
    "engine.in_flight": Rule(
        lambda tree: 1 if _read(tree, "hardware.kind") == "cpu" else 2,
        "2 on a GPU, which computes while the host plans; 1 on a CPU, which does both; "
        "hardware.kind={value}",
        reads="hardware.kind",
    ),
    "engine.kernels": Rule(
        lambda tree: "torch" if _read(tree, "hardware.kind") == "cpu" else "triton",
        "triton on a GPU, torch on a CPU; hardware.kind={value}",
        reads="hardware.kind",
    ),
    "calibration.constants": Rule(
        _constants, "the site file of this hardware and parallelism, if there is one"
    ),
}
"""In the order in which they are applied: a rule may read what one before it derived."""


def derive(layered: Layered) -> tuple[list[Problem], set[str]]:
    """Replaces every "auto" in place; returns what could not be derived, and these keys.

    A key whose rule reads a wrong value is among the keys without a problem of its own.
    """
    problems = []
    open_keys = set()
    for key, rule in RULES.items():
        path = tuple(key.split("."))
        given = select(layered.tree, path)
        if not rule.applies_to(given, layered.tree):
            continue
        try:
            value = rule.value(layered.tree)
        except Unknown:
            open_keys.add(key)
        except ConfigError as error:
            open_keys.add(key)
            read = rule.reads and select(layered.tree, tuple(rule.reads.split(".")))
            blamed = rule.reads if rule.reads and read is not None else key
            problems.append(_problem(blamed, error.message, layered.origins[blamed]))
        else:
            if isinstance(given, Mapping):
                value = {name: inner for name, inner in value.items() if name not in given}
            layered.merge(path, value, _origin(rule, layered.tree))
    for key, value in leaves(layered.tree):
        if value == AUTO and key not in RULES and layered.origins[key].kind != "derived":
            open_keys.add(key)
            message = f"auto is not allowed here; it is at {', '.join(RULES)}"
            problems.append(_problem(key, message, layered.origins[key]))
    return list(dict.fromkeys(problems)), open_keys


def _origin(rule: Rule, tree: Tree) -> Origin:
    read = select(tree, tuple(rule.reads.split("."))) if rule.reads else None
    return Origin(
        "derived",
        rule.sentence.format(value="null" if read is None else read),
        None,
        rank=COMMAND_LINE_RANK,
    )


def _problem(key: str, message: str, origin: Origin) -> Problem:
    return Problem("value", key, message, (origin.where,), origin.kind == "word")
