"""A plan says whether it fits, what the cache holds, and what would make it fit."""

import json
import pickle
import subprocess
import sys
import time

import pytest

from servekit.config.schema import Config
from servekit.planner.advice import LARGEST_FRACTION, with_change
from servekit.planner.plan import plan
from tests.conftest import tiny_config, tiny_shape
from tests.spec import shapes

TOO_LONG = shapes.deployment(shapes.LLAMA_8B, "l4", model={"max_model_len": 131072})


def applied(config: Config, overrides: tuple[str, ...]) -> Config:
    """What the command line makes of these words."""
    for word in overrides:
        key, text = word.split("=")
        value = text if key == "model.dtype" else json.loads(text)
        changed = with_change(config, key, value)
        assert changed is not None, f"{word} is not valid"
        config = changed
    return config


def test_the_keys_that_scripts_rely_on_are_there() -> None:
    report = plan(tiny_config()).to_json()
    assert report["verdict"] == "ok"
    assert report["kv"]["num_blocks"] == 65
    assert report["kv"]["capacity_tokens"] == 1024
    assert report["kv"]["blocks_per_request"] == 16
    assert report["kv"]["max_concurrency"] == 4.0
    assert report["kv"]["bytes_per_block"] == 16 * report["kv"]["bytes_per_token"] == 6144
    assert report["kv"]["rule"] == "kv.capacity_tokens"
    assert report["memory"]["total_gib"] == 4.0
    assert report["advice"] == report["warnings"] == []
    assert json.loads(json.dumps(report)) == report


def test_the_reported_memory_adds_up() -> None:
    memory = plan(TOO_LONG).to_json()["memory"]
    parts = ("weights", "activations", "runtime", "kv", "unused")
    assert sum(memory[f"{part}_gib"] for part in parts) == pytest.approx(memory["total_gib"])


def test_concurrency_is_stated_for_usual_lengths_up_to_the_models_own() -> None:
    longer = shapes.deployment(shapes.LLAMA_8B, "h100", model={"max_model_len": 16384})
    assert list(plan(longer).concurrency) == [2048, 8192, 16384]
    assert list(plan(tiny_config()).concurrency) == [256]


def test_a_plan_survives_the_way_to_another_process() -> None:
    made = plan(TOO_LONG)
    assert pickle.loads(pickle.dumps(made)) == made


UNFIT = {
    "length": TOO_LONG,
    "fraction": shapes.deployment(shapes.LLAMA_8B, "l4", kv={"memory_fraction": 0.1}),
    "gib": shapes.deployment(
        shapes.LLAMA_8B, "l4", kv={"memory_fraction": None, "memory_gib": 20.0}
    ),
    "tokens": shapes.deployment(
        shapes.LLAMA_8B, "l4", kv={"memory_fraction": None, "capacity_tokens": 1_000_000}
    ),
    "float32": shapes.deployment(shapes.LLAMA_8B, "l4", model={"dtype": "float32"}),
    "sampler": shapes.deployment(
        shapes.LLAMA_8B,
        "l4",
        scheduler={"max_num_seqs": 2048, "max_num_batched_tokens": 2048},
    ),
    "step": shapes.deployment(shapes.LLAMA_8B, "l4", scheduler={"max_num_batched_tokens": 65536}),
    "weights": shapes.deployment(shapes.LLAMA_70B, "h100"),
}


@pytest.mark.parametrize(
    ("case", "key"),
    [
        ("length", "model.max_model_len"),
        ("fraction", "kv.memory_fraction"),
        ("gib", "kv.memory_gib"),
        ("tokens", "kv.capacity_tokens"),
        ("float32", "model.dtype"),
        ("sampler", "scheduler.max_num_seqs"),
        ("step", "scheduler.max_num_batched_tokens"),
        ("weights", "parallelism.tensor"),
    ],
)
def test_what_is_too_much_is_named_and_every_advice_makes_it_fit(case: str, key: str) -> None:
    made = plan(UNFIT[case])
    assert made.verdict == "does_not_fit"
    assert key in [item.overrides[0].split("=")[0] for item in made.advice]
    for item in made.advice:
        assert plan(applied(UNFIT[case], item.overrides)).verdict == "ok", item.overrides


@pytest.mark.parametrize(
    ("case", "word"), [("gib", "kv.memory_gib"), ("tokens", "kv.capacity_tokens")]
)
def test_an_advised_cache_leaves_a_share_of_what_is_free(case: str, word: str) -> None:
    book = plan(UNFIT[case]).ledger
    free = book.unused_bytes + book.kv.bytes
    item = next(item for item in plan(UNFIT[case]).advice if item.overrides[0].startswith(word))
    advised = plan(applied(UNFIT[case], item.overrides)).ledger.kv.bytes
    assert 0.94 * free < advised <= LARGEST_FRACTION * free


def test_advice_that_only_plans_says_so_and_comes_last() -> None:
    planned_only = [item["planned_only"] for item in plan(UNFIT["float32"]).to_json()["advice"]]
    assert planned_only == sorted(planned_only)
    assert planned_only[-1]
    apart = plan(shapes.deployment(shapes.LLAMA_70B, "l4", parallelism={"tensor": 2}))
    assert apart.advice
    assert all(item.planned_only for item in apart.advice)


def test_the_advised_length_is_the_longest_round_one() -> None:
    (word,) = next(iter(plan(TOO_LONG).advice)).overrides
    length = int(word.removeprefix("model.max_model_len="))
    assert length % 1024 == 0
    longer = with_change(TOO_LONG, "model.max_model_len", length + 1024)
    assert longer is not None
    assert plan(longer).verdict == "does_not_fit"


def test_the_effect_of_an_advice_is_that_of_its_plan() -> None:
    item = plan(TOO_LONG).advice[0]
    changed = plan(applied(TOO_LONG, item.overrides))
    assert item.effect["capacity_tokens"] == changed.kv.capacity_tokens
    assert item.effect["max_concurrency"] == round(changed.max_concurrency, 2)


def test_a_cpu_is_not_advised_to_become_two() -> None:
    config = tiny_config(hardware={"memory_gib": 0.5})
    made = plan(config)
    assert made.verdict == "does_not_fit"
    assert made.advice == ()


def test_a_named_pool_warns_of_the_longest_request_it_serves() -> None:
    made = plan(tiny_config(kv={"capacity_tokens": 128}))
    assert made.verdict == "ok"
    assert made.warnings == (
        "kv.capacity_tokens holds 128 tokens: that is the longest request served, not the 256 of "
        "model.max_model_len",
    )


def test_fewer_blocks_than_running_requests_are_a_warning() -> None:
    made = plan(tiny_config(kv={"capacity_tokens": 64}, model={"max_model_len": 64}))
    assert any("4 blocks, fewer than the 8 requests" in line for line in made.warnings)


def test_several_devices_are_said_to_be_planned_only() -> None:
    made = plan(shapes.deployment(shapes.LLAMA_8B, "h100", parallelism={"tensor": 2}))
    assert made.verdict == "ok"
    assert made.warnings == (
        "parallelism.tensor=2: this release plans several devices but runs on one",
    )


def test_sliding_window_layers_are_said_to_be_stored_whole() -> None:
    shape = tiny_shape(sliding_window=32, full_attention_layers=(2,))
    made = plan(tiny_config(model={"shape": shape}))
    assert [line[:32] for line in made.warnings] == ["2 of 3 layers look back 32 token"]


def test_the_heaviest_plan_takes_a_fraction_of_a_second() -> None:
    began = time.perf_counter()
    plan(UNFIT["tokens"])
    assert time.perf_counter() - began < 0.5


def test_planning_loads_no_torch() -> None:
    code = (
        "import sys, servekit.planner.page, servekit.planner.gate, servekit.planner.models; "
        "print([name for name in ('torch', 'hydra', 'transformers') if name in sys.modules])"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert child.stdout.strip() == "[]"
