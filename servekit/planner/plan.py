"""What a configuration comes to, before anything is loaded: arithmetic, no device, no download."""

from dataclasses import dataclass
from typing import Any, Literal

from servekit.config.schema import Config
from servekit.planner.advice import Advice, advise
from servekit.spec.memory import KvLayout, Ledger, ledger
from servekit.spec.model import GIB, parameters

Verdict = Literal["ok", "does_not_fit"]

REFERENCE_LENGTHS = (2048, 8192)
"""Request lengths, in tokens, that concurrency is stated for beside the model's own."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A prediction that start-up checks; picklable. `ledger` is that of one device."""

    config: Config
    ledger: Ledger
    warnings: tuple[str, ...]
    advice: tuple[Advice, ...]

    @property
    def verdict(self) -> Verdict:
        return "ok" if self.ledger.fits else "does_not_fit"

    @property
    def kv(self) -> KvLayout:
        return self.ledger.layout

    @property
    def max_concurrency(self) -> float:
        """Requests of `model.max_model_len` tokens that the cache holds at once."""
        return self.kv.max_concurrency(self.config.model.max_model_len)

    @property
    def concurrency(self) -> dict[int, float]:
        """The same by request length, for the usual lengths up to the model's own."""
        longest = self.config.model.max_model_len
        lengths = [*(length for length in REFERENCE_LENGTHS if length < longest), longest]
        return {length: self.kv.max_concurrency(length) for length in lengths}

    def to_json(self) -> dict[str, Any]:
        """Sizes in GiB (2**30) of one device; the keys are fixed for scripts."""
        model = self.config.model
        return {
            "verdict": self.verdict,
            "problem": self.ledger.problem,
            "name": self.config.name,
            "model": {
                "name": model.name,
                "parameters": parameters(model.shape).total,
                "dtype": model.dtype,
                "max_model_len": model.max_model_len,
            },
            "hardware": {
                "name": self.config.hardware.name,
                "kind": self.config.hardware.kind,
                "devices": self.config.parallelism.tensor,
            },
            "memory": memory_json(self.ledger),
            "kv": self.kv_json(),
            "advice": [item.to_json() for item in self.advice],
            "warnings": list(self.warnings),
        }

    def kv_json(self) -> dict[str, Any]:
        return {
            "dtype": self.config.kv.dtype,
            "bytes_per_token": self.kv.bytes_per_token,
            "block_size": self.kv.block_size,
            "bytes_per_block": self.kv.bytes_per_block,
            "num_blocks": self.kv.num_blocks,
            "capacity_tokens": self.kv.capacity_tokens,
            "blocks_per_request": self.kv.blocks_for(self.config.model.max_model_len),
            "max_concurrency": round(self.max_concurrency, 3),
            "concurrency_by_tokens": {
                str(length): round(count, 3) for length, count in self.concurrency.items()
            },
            "rule": self.ledger.rule,
        }


def memory_json(book: Ledger) -> dict[str, Any]:
    parts = book.components
    return {
        "total_gib": book.total_bytes / GIB,
        **{f"{name}_gib": part.bytes / GIB for name, part in parts.items()},
        "unused_gib": book.unused_bytes / GIB,
        "standing": {name: part.standing for name, part in parts.items()},
    }


def plan(config: Config) -> Plan:
    """Raises nothing: what does not fit is a plan that says so, with advice."""
    book = ledger(config)
    return Plan(
        config=config,
        ledger=book,
        warnings=tuple(warnings(config, book)),
        advice=() if book.fits else tuple(advise(config)),
    )


def warnings(config: Config, book: Ledger) -> list[str]:
    """What will be served, but perhaps not as meant."""
    found = []
    kv, longest, shape = book.layout, config.model.max_model_len, config.model.shape
    if config.parallelism.tensor > 1:
        found.append(
            f"parallelism.tensor={config.parallelism.tensor}: this release plans several devices "
            "but runs on one"
        )
    if book.fits and not book.holds_longest_request:
        found.append(
            f"{book.rule} holds {kv.capacity_tokens} tokens: that is the longest request served, "
            f"not the {longest} of model.max_model_len"
        )
    if book.fits and kv.usable_blocks < config.scheduler.max_num_seqs:
        found.append(
            f"the KV cache has {kv.usable_blocks} blocks, fewer than the "
            f"{config.scheduler.max_num_seqs} requests of scheduler.max_num_seqs, and each needs "
            "at least one"
        )
    windowed = [layer for layer in range(shape.layers) if shape.window(layer) is not None]
    if windowed and longest > (shape.sliding_window or 0):
        found.append(
            f"{len(windowed)} of {shape.layers} layers look back {shape.sliding_window} tokens "
            "only; this release stores them at full length all the same"
        )
    return found
