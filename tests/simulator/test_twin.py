"""The simulator decides what the engine decides: the same requests, the same batches, and when."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from servekit.config.schema import Config
from servekit.scheduler.stats import SchedulerStats
from servekit.simulator.record import Served
from tests.conftest import tiny_config, tiny_shape
from tests.simulator.twins import SEED, Told, engine_of, simulated

VOCABULARY = 1000


def rounded(served: Served | None) -> tuple[Any, ...]:
    """Sums of the same times in another order differ in their last bits."""
    assert served is not None
    return tuple(round(value, 9) if isinstance(value, float) else value for value in served)


Happened = Callable[[SchedulerStats, list[Served]], bool]


class Case(NamedTuple):
    groups: dict[str, dict[str, Any]]
    happened: Happened
    """What the case is there for; it must not pass because nothing of the kind came up."""


SLOW = {"bandwidth_gb_s": 0.05, "bf16_tflops": 0.0005}
"""A device on which a step's time depends on its tokens, even of a tiny model."""
SMALL = {"capacity_tokens": 256, "block_size": 8}
STARTS = {"shared_prefix_tokens": 21, "shared_prefixes": 4}
TURNS = {"turns": 2.5, "think_s": 0.2, "request_rate": 8.0, "prompt_tokens": 70}
PACED = {"order": "deadline", "decode_slowdown": 1.5, "max_step_ms": 12.0}


def waited(stats: SchedulerStats, served: list[Served]) -> bool:
    return any(one.queue_s is not None and one.queue_s > 0.1 for one in served)


def preempted(stats: SchedulerStats, served: list[Served]) -> bool:
    return stats.preemptions_total > 2


def took_over(stats: SchedulerStats, served: list[Served]) -> bool:
    return stats.takeovers_total > 0


def hit(stats: SchedulerStats, served: list[Served]) -> bool:
    return stats.prefix_hit_tokens_total > 0.1 * stats.prefix_query_tokens_total


def refused(code: str) -> Happened:
    return lambda stats, served: {one.code for one in served} == {"", code}


CASES = {
    "light": Case(
        {"workload": {"request_rate": 3.0}}, lambda stats, served: not waited(stats, served)
    ),
    "busy": Case({}, waited),
    "bursts": Case({"workload": {"arrivals": "bursts", "burst_size": 7}}, waited),
    "closed": Case({"workload": {"arrivals": "closed", "concurrency": 11, **STARTS}}, hit),
    "short of blocks": Case({"kv": SMALL}, preempted),
    "cheapest victim": Case(
        {"kv": SMALL, "scheduler": {"victim": "cheapest", "max_skip_ahead": 16}}, preempted
    ),
    "reserve predicted": Case({"kv": SMALL, "scheduler": {"reserve": "predicted"}}, waited),
    "reserve worst case": Case(
        {"kv": SMALL, "scheduler": {"reserve": "worst_case"}},
        lambda stats, served: stats.preemptions_total == 0,
    ),
    "swapped": Case(
        {"kv": {**SMALL, "offload_gib": 1e-3}}, lambda stats, served: stats.swaps_total > 2
    ),
    "shared starts": Case({"workload": STARTS, "kv": {"block_size": 8}}, hit),
    "turns": Case({"workload": TURNS, "kv": {"block_size": 8}}, hit),
    "turns, short of blocks": Case({"workload": TURNS, "kv": SMALL}, preempted),
    "turns without a prefix cache": Case(
        {"workload": TURNS, "kv": {"prefix_caching": False}},
        lambda stats, served: stats.prefix_hit_tokens_total == 0,
    ),
    "static": Case({"scheduler": {"policy": "static"}}, waited),
    "priority": Case(
        {
            "workload": {"priorities": {"0": 1.0, "5": 2.0}},
            "scheduler": {"order": "priority", "aging_s": 1.0},
        },
        took_over,
    ),
    "shortest prefill": Case({"scheduler": {"order": "shortest_prefill", "aging_s": 1.0}}, waited),
    "longest prefix": Case(
        {"workload": STARTS, "scheduler": {"order": "longest_prefix", "aging_s": 1.0}}, hit
    ),
    "fair": Case(
        {
            "workload": {"tenants": {"a": 1.0, "b": 3.0}},
            "scheduler": {"order": "fair", "tenant_weights": {"b": 2.0}},
        },
        waited,
    ),
    "two pools": Case(
        {"workload": {"batch_share": 0.5}, "scheduler": {"order": "two_pool"}}, took_over
    ),
    "paced": Case({"slo": {"ttft_ms": 500.0}, "scheduler": PACED}, waited),
    "refused what would be late": Case(
        {"slo": {"ttft_ms": 300.0, "admission": "enforce"}, "scheduler": PACED},
        refused("slo_unattainable"),
    ),
    "refused by a full queue": Case({"scheduler": {"max_num_waiting": 3}}, refused("queue_full")),
    "impatient": Case(
        {"workload": {"patience_s": 0.5}},
        lambda stats, served: {one.end for one in served} == {"finished", "left"},
    ),
    "windows": Case(
        {
            "model": {
                "shape": tiny_shape(
                    layers=6, sliding_window=8, full_attention_layers=(5,), vocab_size=VOCABULARY
                )
            },
            "kv": {"hybrid": True, "block_size": 4, "capacity_tokens": 400},
        },
        waited,
    ),
}
BASE: dict[str, dict[str, Any]] = {
    "model": {"shape": tiny_shape(vocab_size=VOCABULARY)},
    "hardware": SLOW,
    "workload": {"request_rate": 25.0, "prompt_tokens": 40, "output_tokens": 20},
}


def config_of(case: Case) -> Config:
    groups = {**BASE, **case.groups}
    groups["workload"] = {**BASE["workload"], **groups["workload"]}
    return tiny_config(**groups)


@pytest.mark.parametrize("name", CASES)
def test_engine_and_simulator_plan_the_same_batches(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Step for step: requests, positions, tokens, block tables, copies; and when."""
    case = CASES[name]
    engine = engine_of(config_of(case), monkeypatch)
    batches, served = simulated(config_of(case), engine.names, monkeypatch)
    assert case.happened(engine.scheduler.stats(), served)
    assert_same(engine.batches, batches)
    assert list(map(rounded, engine.clients.served)) == list(map(rounded, served))


def test_what_the_model_says_by_itself_changes_no_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts as a load generator has them, answers as the model has them."""
    words = {"shape": tiny_shape(vocab_size=32_000)}  # two that begin alike by chance are rare
    config = config_of(Case({"model": words, "workload": STARTS, "kv": SMALL}, preempted))
    engine = engine_of(config, monkeypatch, drawn=True)
    batches, served = simulated(config, engine.names, monkeypatch)
    assert preempted(engine.scheduler.stats(), served)
    assert_same(list(map(shape_of, engine.batches)), list(map(shape_of, batches)))


def assert_same(engine: list[Told], simulator: list[Told]) -> None:
    """A simulator may take steps at once in which nothing happens but decodes; it gives their
    batches numbers, and what it does next shows whether it took them right.
    """
    theirs = {batch[0]: batch for batch in simulator}
    together: list[int] = []
    for batch in engine:
        number, ids, *_, others, copies = batch
        if number in theirs:
            assert batch == theirs.pop(number), f"seed {SEED}"
            together = []
        else:
            assert not others, f"step {number} was taken with prompts"
            assert not any(copies), f"step {number} was taken with copies"
            assert ids == (together or ids), f"somebody came or went in step {number}"
            together = ids
    assert not theirs
    assert engine[-1] == simulator[-1]


def shape_of(batch: Told) -> tuple[Any, ...]:
    """All of it but the tokens themselves."""
    id, ids, starts, _, tables, others, copies = batch
    rows = [(of, start, len(tokens), *rest) for of, start, tokens, *rest in others]
    return id, ids, starts, tables, rows, copies
