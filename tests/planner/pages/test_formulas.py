"""Every formula of a plan comes to what the plan says, whatever the model and its parallelism."""

import json
import math
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from servekit.config.compose import load
from servekit.config.schema import Config
from servekit.planner.outcome import assess
from servekit.planner.pages.formula import Formula, formulas_page, short
from servekit.planner.pages.formulas import formulas
from servekit.planner.pages.page import main
from servekit.planner.plan import plan
from tests.conftest import tiny_config
from tests.planner.arithmetic import evaluate

DEPLOYMENTS = {
    "dense": "model=llama3_8b hardware=h100 slo=chat",
    "biases": "model=qwen2_5_7b hardware=a100_80g kv.memory_gib=10",
    "narrow": "model=llama3_8b hardware=l4 kv.dtype=int4 quantization=int4_g128 "
    "model.max_model_len=4096",
    "stages": "model=llama3_70b hardware=h100 parallelism.pipeline=4",
    "more ranks than KV heads": "model=qwen3_30b_a3b hardware=h100 parallelism=tp8",
    "latent": "model=deepseek_v2_lite hardware=h100 kv.capacity_tokens=100000",
    "latent, experts over ranks": "model=deepseek_v3 hardware=b200 parallelism=tp8_ep8 "
    "quantization=fp8_block speculative=mtp kv.dtype=fp8",
    "copies that share experts": "model=deepseek_v3 hardware=b200 parallelism=dp8_ep8 "
    "quantization=fp8_block",
    "windows": "model=gemma3_27b hardware=h100 model.max_model_len=8192",
    "windows and experts": "model=gpt_oss_20b hardware=h100",
    "chunks": "model=llama4_scout hardware=h200 parallelism=tp4 model.max_model_len=8192",
    "states": "model=qwen3_next_80b_a3b hardware=h100 parallelism=tp4",
    "two kinds of layers": "model=gemma4_31b hardware=h200 model.max_model_len=32768",
    "two kinds, not in groups": "model=gemma4_31b hardware=h200 kv.hybrid=false "
    "model.max_model_len=32768",
    "two kinds, padded": "model=gemma4_31b hardware=h200 model.shape.full_head_dim=320 "
    "model.max_model_len=32768",
    "an indexer": "model=deepseek_v3_2 hardware=h200 parallelism=tp8",
    "an indexer that guesses": "model=deepseek_v3_2 hardware=b200 parallelism=tp8_pp2 "
    "speculative=mtp kv.dtype=fp8",
    "a draft": "model=qwen2_5_7b hardware=a100_80g speculative=draft",
    "cpu": "+recipe=chat_smollm2",
    "static": "model=gemma3_270m scheduler=static",
    "refused": "model=llama3_70b hardware=l4",
}


def composed(name: str) -> Config:
    return load([*DEPLOYMENTS[name].split(), "calibration=none"]).config


def by_name(config: Config) -> dict[str, Formula]:
    return {formula.name: formula for formula in formulas(plan(config, advise=False))}


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_the_numbers_come_to_the_value(name: str) -> None:
    found = formulas(plan(composed(name), advise=False))
    assert len(found) > 15
    for formula in found:
        value = evaluate(formula.numbers)
        exact = formula.unit in ("bytes", "blocks", "parameters")
        near = {"rel_tol": 0, "abs_tol": 0.5} if exact else {"rel_tol": 2e-4, "abs_tol": 1e-4}
        assert math.isclose(value, formula.value, **near), formula


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_the_values_are_those_of_the_plan(name: str) -> None:
    made = plan(composed(name), advise=False)
    said = made.to_json()
    found = by_name(made.config)
    longest = made.config.model.max_model_len
    assert found["parameters"].value == said["model"]["parameters"]
    for part in ("weights", "activations", "graphs", "runtime", "workspace"):
        if said["memory"][f"{part}_gib"]:
            last = [f for f in formulas(made) if f.name == part and f.unit == "GiB"]
            assert last[0].value == pytest.approx(said["memory"][f"{part}_gib"])
    assert found["a block"].value == said["kv"]["bytes_per_block"]
    assert found["blocks"].value == said["kv"]["num_blocks"]
    assert found["blocks of a request"].value == said["kv"]["blocks_per_request"]
    assert found[f"requests of {longest:,} tokens at once"].value == pytest.approx(
        said["kv"]["max_concurrency"]
    )
    if made.prediction is not None:
        assert found["output at full load"].value == said["latency"]["output_tokens_per_s"]
        first = found.get("time to first token, p95")
        closed = assess(made.config).prediction
        assert closed is not None
        assert (first.value if first else None) == closed.ttft_ms.p95


def test_keys_and_values_of_a_token_are_one_product() -> None:
    token = by_name(composed("dense"))["a token"]
    assert token.numbers == "2 x 32 layers x 8 KV heads x 128 x 2 bytes"
    assert token.value == 131072


def test_a_latent_vector_is_whole_on_every_rank() -> None:
    layer = by_name(composed("latent"))["a token in a layer"]
    assert layer.numbers == "(512 latent + 64 rope) x 2 bytes"
    assert layer.formula.endswith("every rank has it whole")


def test_kinds_of_layers_have_a_formula_each() -> None:
    found = by_name(composed("two kinds of layers"))
    assert found["a token in a layer that slides"].value == 16384
    assert found["a token in a layer that sees everything"].value == 8192
    assert found["a block"].numbers == "10 layers x 32 tokens x 8,192 bytes"
    assert "ceil(32,768 / 32)" in found["blocks of a request"].numbers


def test_an_indexer_s_keys_are_in_a_block() -> None:
    found = by_name(composed("an indexer"))
    assert found["an indexer's key in a layer"].numbers == "128 x 2 bytes"
    assert "61 layers x 16 tokens x 256 bytes of an index" in found["a block"].numbers


def test_more_ranks_than_heads_have_one_each() -> None:
    layer = by_name(composed("more ranks than KV heads"))["a token in a layer"]
    assert "KV heads of 4, over 8 ranks" in layer.formula
    assert layer.numbers.startswith("2 x 1 KV heads")


def test_windows_hold_the_tokens_of_a_step_too() -> None:
    need = by_name(composed("windows"))["blocks of a request"]
    assert "6 groups x (ceil(min(1,024 - 1 + 8,192, 8,192) / 16) + 1)" in need.numbers


def test_a_stage_says_that_the_poorest_decides() -> None:
    assert "stage that has fewest" in by_name(composed("stages"))["blocks"].formula


def test_distinct_experts_are_a_formula_of_models_that_have_some() -> None:
    assert "experts that a layer reads" in by_name(composed("windows and experts"))
    assert "experts that a layer reads" not in by_name(composed("dense"))


def test_what_does_not_fit_has_no_step() -> None:
    assert not any(f.section == "One decode step" for f in by_name(composed("refused")).values())


def test_measured_parts_say_so() -> None:
    constants: dict[str, Any] = {
        "source": "boot.log",
        "weights_ratio": 1.02,
        "activations_ratio": 0.9,
        "runtime_gib": 1.5,
        "graphs_gib": 0.8,
    }
    config = composed("dense")
    tree = {**dict(config), "calibration": {"constants": constants}}
    every = formulas(plan(Config.model_validate(tree), advise=False))
    found = {formula.name: formula for formula in every if formula.unit == "GiB"}
    for name in ("weights", "activations", "graphs", "runtime"):
        assert found[name].standing == "measured"
        assert evaluate(found[name].numbers) == pytest.approx(found[name].value, rel=1e-6)


@pytest.mark.parametrize("width", [80, 140])
def test_the_page_has_every_formula_and_no_long_line(width: int) -> None:
    found = formulas(plan(composed("dense"), advise=False))
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(formulas_page(found))
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= width
    flat = " ".join(text.split())
    for formula in found:
        assert " ".join(formula.numbers.split()) in flat


def test_json_has_them_beside_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    composed = SimpleNamespace(config=tiny_config(), origins={})
    assert main(composed, as_json=True, explain=True) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["verdict"] == "ok"
    assert set(said["explain"][0]) == {
        *("section", "name", "formula", "numbers", "value", "unit", "standing")
    }


@given(st.floats(min_value=1e-9, max_value=1e15))
def test_a_short_number_is_never_a_power_of_ten(number: float) -> None:
    text = short(number)
    assert "e" not in text
    assert math.isclose(float(text), number, rel_tol=1e-5, abs_tol=1e-12)


@pytest.mark.parametrize(("words", "standing"), [("8", "exact"), ("null", "modelled")])
def test_blocks_are_as_sure_as_the_size_of_the_cache(words: str, standing: str) -> None:
    size = f"kv.memory_gib={words}"
    config = load([*DEPLOYMENTS["dense"].split(), "calibration=none", size]).config
    found = by_name(config)
    length = f"{config.model.max_model_len:,}"
    assert found["blocks"].standing == standing
    assert found[f"requests of {length} tokens at once"].standing == standing
