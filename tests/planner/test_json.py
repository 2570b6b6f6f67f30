"""The JSON of a plan has the keys that scripts rely on, is valid, and is described key by key."""

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from servekit.config.compose import load
from servekit.planner.plan import plan
from tests.conftest import tiny_config
from tests.planner.refused import REFUSED, UNFIT

DOCUMENT = Path(__file__).parents[2] / "docs/plan-json.md"

FIXED = {
    "memory": "total_gib weights_gib activations_gib graphs_gib runtime_gib kv_gib standing",
    "kv": "bytes_per_token block_size bytes_per_block num_blocks capacity_tokens "
    "blocks_per_request max_concurrency",
    "latency": "ttft_ms tpot_ms output_tokens_per_s saturation_concurrency",
    "cost": "usd_per_hour usd_per_million_output_tokens",
}

CASES = (
    *UNFIT[:6],
    *REFUSED[len(UNFIT) :],
    "+recipe=chat_llama8b",
    "+recipe=batch_llama8b slo.goodput_per_s=5 slo.usd_per_million_output_tokens=1",
    "model=llama3_8b hardware=h100 slo=chat workload.request_rate=500",
    "model=llama3_8b hardware=rtx4090 kv.memory_gib=0.01",
    "model=qwen3_next_80b_a3b hardware=h200 parallelism=tp4",
)


@cache
def report(words: str) -> dict[str, Any]:
    composed = load(words.split())
    return plan(composed.config, origins=composed.origins).to_json()


@pytest.mark.parametrize("words", CASES)
def test_the_fixed_keys_are_always_there(words: str) -> None:
    found = report(words)
    for group, names in FIXED.items():
        assert set(names.split()) <= set(found[group]), group
    for name in ("ttft_ms", "tpot_ms"):
        assert set(found["latency"][name]) >= {"p50", "p95"}
    for line in found["slo"]:
        assert set(line) >= {"name", "target", "predicted", "band", "verdict"}
    for item in found["advice"]:
        assert set(item) == {"overrides", "effect", "planned_only"}


@pytest.mark.parametrize("words", CASES)
def test_it_is_strictly_valid(words: str) -> None:
    found = report(words)
    assert json.loads(json.dumps(found, allow_nan=False)) == found


@pytest.mark.parametrize("words", CASES)
def test_the_parts_of_memory_make_the_total(words: str) -> None:
    memory = report(words)["memory"]
    parts = {name for name in memory if name.endswith("_gib")} - {"total_gib"}
    assert sum(memory[name] for name in parts) == pytest.approx(memory["total_gib"], rel=1e-6)
    assert {f"{name}_gib" for name in memory["standing"]} == parts - {"unused_gib"}


def test_the_tiny_cache_is_counted_exactly() -> None:
    kv = plan(tiny_config()).to_json()["kv"]
    assert (kv["num_blocks"], kv["capacity_tokens"], kv["blocks_per_request"]) == (64, 1024, 16)
    assert kv["max_concurrency"] == kv["num_blocks"] / kv["blocks_per_request"] == 4.0
    assert kv["bytes_per_block"] == 16 * kv["bytes_per_token"] == 6144
    assert kv["rule"] == "kv.capacity_tokens"


def test_a_pool_of_named_size_is_that_size() -> None:
    found = report("model=llama3_8b hardware=h100 kv.memory_gib=10")
    assert found["memory"]["kv_gib"] == pytest.approx(10.0, abs=0.002)
    assert found["kv"]["num_blocks"] == 10 * 2**30 // found["kv"]["bytes_per_block"]


def test_what_does_not_fit_has_a_price_and_no_latency() -> None:
    found = report("model=llama3_70b hardware=h100")
    assert found["cost"]["usd_per_hour"] == 4.5
    assert found["cost"]["usd_per_million_output_tokens"] is None
    assert found["latency"]["ttft_ms"] == {"p50": None, "p95": None, "p99": None}
    assert found["latency"]["output_tokens_per_s"] is None
    assert found["slo"] == []


def test_a_queue_without_end_has_no_first_token() -> None:
    found = report("model=llama3_8b hardware=h100 slo=chat workload.request_rate=500")
    assert found["latency"]["ttft_ms"]["p95"] is None
    assert found["latency"]["stable"] is False
    assert found["latency"]["tpot_ms"]["p95"] > 0


@pytest.mark.parametrize("group", ["memory", "kv", "latency", "cost"])
def test_every_standing_has_a_word_and_a_number_beside_it(group: str) -> None:
    found = report("+recipe=chat_llama8b")[group]
    assert set(found["standing"].values()) <= {"exact", "measured", "modelled", "guess"}
    for name, band in found["bands"].items():
        assert name in found or f"{name}_gib" in found
        widths = band.values() if isinstance(band, dict) else [band]
        assert all(width >= 0 for width in widths)


def keys_of(tree: dict[str, Any], inside: str = "") -> Iterator[tuple[str, str]]:
    """Each key with the object it is in; what is by component, length or name is no key."""
    by_name = ("standing", "bands", "notes", "concurrency_by_tokens", "before")
    for name, value in tree.items():
        yield inside, name
        inner = value[0] if isinstance(value, list) and value else value
        if isinstance(inner, dict) and name not in by_name:
            yield from keys_of(inner, name)


def test_the_document_names_every_key() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    described = set(re.findall(r"`(?:\w+\.)?(\w+)`", text))
    for words in CASES:
        missing = {
            f"{inside}.{name}" for inside, name in keys_of(report(words)) if name not in described
        }
        assert not missing


def test_the_document_names_no_key_that_is_not_there() -> None:
    rows = re.findall(r"^\| `([\w.]+)`(?:, `(\w+)`)? \|", DOCUMENT.read_text("utf-8"), re.MULTILINE)
    described = {name.split(".")[-1] for row in rows for name in row if name}
    words_of_values = {"exact", "measured", "modelled", "guess", "does_not_fit", "impossible"}
    words_of_values |= {"misses_slo", "unsure", "ok"}
    there = {name for words in CASES for _, name in keys_of(report(words))}
    assert described - words_of_values <= there
