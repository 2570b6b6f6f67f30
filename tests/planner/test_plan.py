"""A plan says whether it fits, what it serves, what it costs, and what would mend it."""

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from servekit.config.compose import load
from servekit.planner.plan import Plan, plan
from servekit.spec.model import parameters
from tests.conftest import tiny_config, tiny_shape
from tests.planner.refused import UNFIT, too_much
from tests.spec import shapes

MISSING = too_much("model=llama3_8b hardware=h100", "slo.tpot_ms", 0.7)
TOO_LONG = shapes.deployment(shapes.LLAMA_8B, "l4", model={"max_model_len": 131072})


def planned(words: str, *, advise: bool = False) -> Plan:
    return plan(load(words.split()).config, advise=advise)


def closed(words: str) -> Plan:
    return plan(load(words.split()).config, advise=False, simulate=False)


def test_concurrency_is_stated_for_usual_lengths_up_to_the_models_own() -> None:
    longer = shapes.deployment(shapes.LLAMA_8B, "h100", model={"max_model_len": 16384})
    assert list(plan(longer).concurrency) == [2048, 8192, 16384]
    assert list(plan(tiny_config()).concurrency) == [256]


def test_a_plan_survives_the_way_to_another_process() -> None:
    made = plan(TOO_LONG)
    assert made.advice
    assert pickle.loads(pickle.dumps(made)) == made


@pytest.mark.parametrize(
    ("words", "verdict", "exit_code"),
    [
        ("+recipe=chat_llama8b slo=none", "ok", 0),
        ("+recipe=chat_llama8b slo=none hardware=l4 model.max_model_len=131072", "does_not_fit", 2),
        (MISSING, "misses_slo", 2),
        (f"{MISSING} slo.enforce=warn", "misses_slo", 0),
        ("model=llama3_8b hardware=h100 slo.tpot_ms=1", "impossible", 2),
        ("model=llama3_8b hardware=h100 slo.tpot_ms=1 slo.enforce=warn", "impossible", 0),
        ("model=qwen3_0_6b hardware=t4 slo.enforce=warn", "impossible", 2),
        (too_much("model=llama3_8b hardware=h100", "slo.tpot_ms", 1.0), "unsure", 0),
    ],
)
def test_a_verdict_has_its_exit_code(words: str, verdict: str, exit_code: int) -> None:
    made = planned(words)
    assert (made.verdict, made.exit_code) == (verdict, exit_code)


def test_memory_decides_before_targets_do() -> None:
    made = planned("model=llama3_70b hardware=h100 slo.tpot_ms=1")
    assert made.verdict == "does_not_fit"
    assert made.prediction is None
    assert made.slo == ()


def test_memory_within_its_band_is_unsure_and_says_so() -> None:
    fitting = plan(shapes.deployment(shapes.LLAMA_8B, "h100"))
    free = (fitting.ledger.unused_bytes + fitting.kv.bytes) / 2**30
    made = plan(
        shapes.deployment(
            shapes.LLAMA_8B, "h100", kv={"memory_fraction": None, "memory_gib": free - 0.01}
        )
    )
    assert (made.verdict, made.exit_code, made.problem) == ("unsure", 0, None)
    assert any(line.startswith("it may start or not: ") for line in made.warnings)
    assert all(item.effect["verdict"] == "ok" for item in made.advice)


def test_the_gravest_target_is_the_problem() -> None:
    late = too_much("model=llama3_8b hardware=a100_80g", "slo.ttft_ms", 0.8)
    made = planned(f"{late} slo.tpot_ms=1")
    assert [line.verdict for line in made.slo] == ["misses", "impossible"]
    assert made.problem == made.slo[1].why


def test_a_search_can_be_left_out() -> None:
    assert plan(TOO_LONG, advise=False).advice == ()
    assert plan(TOO_LONG).advice


def test_a_named_pool_warns_of_the_longest_request_it_serves() -> None:
    made = plan(tiny_config(kv={"capacity_tokens": 128}))
    assert made.verdict == "ok"
    assert (
        "kv.capacity_tokens holds 128 tokens: that is the longest request served, not the 256 of "
        "model.max_model_len"
    ) in made.warnings


def test_fewer_blocks_than_running_requests_are_a_warning() -> None:
    made = plan(tiny_config(kv={"capacity_tokens": 64}, model={"max_model_len": 64}))
    assert any("4 blocks, fewer than the 8 requests" in line for line in made.warnings)


def test_what_this_release_does_not_run_is_one_warning() -> None:
    made = plan(shapes.deployment(shapes.LLAMA_8B, "h100", parallelism={"tensor": 2}))
    assert made.warnings[0] == (
        "this release plans and does not run: 2 devices, where it runs on one"
    )


def test_sliding_window_layers_that_are_stored_whole_are_a_warning() -> None:
    shape = tiny_shape(sliding_window=32, full_attention_layers=(2,))
    made = plan(tiny_config(model={"shape": shape}))
    assert any(line.startswith("2 of 3 layers look back 32 tokens") for line in made.warnings)


def test_long_steps_that_cost_windowed_layers_their_capacity_are_a_warning() -> None:
    words = "model=gemma3_27b hardware=h200 model.max_model_len=8192"
    (line,) = [line for line in planned(words).warnings if "window and one step" in line]
    assert "with scheduler.max_num_batched_tokens=2048 instead of 8192" in line
    short = planned(f"{words} scheduler.max_num_batched_tokens=2048")
    assert not [line for line in short.warnings if "window and one step" in line]


def test_a_sampler_that_is_the_peak_of_a_step_is_a_warning() -> None:
    words = "model=llama3_8b hardware=h100 model.max_model_len=8192 scheduler.max_num_seqs"
    many, few = planned(f"{words}=2048"), planned(f"{words}=64")
    assert any(line.startswith("sampling is the peak of a step: 2048") for line in many.warnings)
    assert not any(line.startswith("sampling is the peak") for line in few.warnings)


def test_more_traffic_than_can_be_served_is_a_warning() -> None:
    made = planned("model=llama3_8b hardware=h100 workload.request_rate=500")
    assert any("the queue grows without end" in line for line in made.warnings)


def test_where_closed_forms_promise_too_much_a_warning_says_so() -> None:
    near = closed("+recipe=rag_qwen3_8b workload.request_rate=0.8")
    assert any("the wait for room in it may be several times" in line for line in near.warnings)
    burst_words = "+recipe=chat_llama8b workload.request_rate=20 workload.arrival_cv=3"
    bursts = closed(burst_words)
    assert any("in bursts: times may be half as much again" in line for line in bursts.warnings)
    assert not any("these bounds say" in line for line in closed("+recipe=chat_llama8b").warnings)
    simulated = planned(burst_words)
    assert simulated.prediction is not None
    assert simulated.prediction.sampled is not None
    assert not any("these bounds say" in line for line in simulated.warnings)


def test_planning_loads_no_torch() -> None:
    code = (
        "import sys, servekit.planner.pages.page, servekit.planner.gate\n"
        "import servekit.planner.catalogue.models\n"
        "print([name for name in ('torch', 'hydra', 'transformers') if name in sys.modules])"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert child.stdout.strip() == "[]"


@pytest.mark.parametrize("words", UNFIT[::8])
def test_the_command_refuses_what_does_not_fit(words: str) -> None:
    code = "import sys; from servekit.cli import main; sys.exit(main())"
    line = [sys.executable, "-c", code, "plan", *words.split(), "--json"]
    child = subprocess.run(line, capture_output=True, text=True, check=False)
    assert child.returncode == 2
    assert json.loads(child.stdout)["verdict"] == "does_not_fit"


def test_weights_are_those_of_the_files_where_they_are_at_hand(tmp_path: Path) -> None:
    extra = 1_000_000
    shape = tiny_shape()
    header = {
        "a": {"dtype": "F32", "shape": [parameters(shape).total], "data_offsets": [0, 0]},
        "tower": {"dtype": "F32", "shape": [extra], "data_offsets": [0, 0]},
    }
    text = json.dumps(header).encode()
    (tmp_path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)
    planned = plan(tiny_config()).ledger.weights
    found = plan(tiny_config(model={"source": f"file:{tmp_path}"})).ledger.weights
    assert found.bytes == planned.bytes + 4 * extra
    assert found.note == "from the headers of the files"
