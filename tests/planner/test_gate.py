"""What may not be launched is refused, with what was asked, what there is, what to do."""

import pytest

from servekit.config.compose import load
from servekit.errors import DoesNotFit, HardwareMissing, Impossible, MissesSlo, NotBuilt
from servekit.planner.gate import check
from servekit.planner.plan import plan
from servekit.spec.hardware import Device
from tests.conftest import tiny_config, tiny_shape
from tests.planner.refused import too_much
from tests.spec import shapes

MISSING = too_much("model=llama3_8b hardware=h100", "slo.tpot_ms", 0.7)
H100 = Device(kind="cuda", name="NVIDIA H100 80GB HBM3", memory_gib=79.65)


def composed_check(words: str) -> None:
    composed = load(words.split())
    made = plan(composed.config, origins=composed.origins)
    check(made, devices=[H100])


def test_what_fits_on_a_cpu_starts_anywhere() -> None:
    config = tiny_config()
    check(plan(config), devices=[])


def test_what_does_not_fit_is_refused_with_ledger_and_advice() -> None:
    config = tiny_config(kv={"capacity_tokens": None, "memory_gib": 4.0})
    with pytest.raises(DoesNotFit) as refused:
        check(plan(config), devices=[])
    message = refused.value.message
    assert message.startswith("tiny does not fit test: kv.memory_gib asks for 4.00 GiB")
    assert "weights 0.00 + activations 0.00 + workspace 0.00 + graphs 0.00" in message
    assert "; try kv.memory_gib=3." in message
    assert refused.value.exit_code == 2


def test_what_nothing_mends_says_so() -> None:
    with pytest.raises(MissesSlo, match="nothing that was tried mends it: take larger hardware"):
        composed_check("+recipe=chat_llama8b slo.ttft_ms=1")


def test_advice_that_this_release_only_plans_is_given_as_that() -> None:
    with pytest.raises(DoesNotFit, match=r"parallelism\.tensor=16 would, but this release only"):
        composed_check("model=deepseek_v3 hardware=h100")


def test_a_missed_target_is_refused_with_target_prediction_and_both_ways_out() -> None:
    with pytest.raises(MissesSlo) as refused:
        composed_check(MISSING)
    message = refused.value.message
    assert message.startswith("default misses what it promises on H100 80 GB: slo.tpot_ms=")
    assert ": p95 is " in message
    assert message.endswith(", or slo.enforce=warn to serve it")
    assert (refused.value.code, refused.value.exit_code) == ("misses_slo", 2)


def test_a_missed_target_that_only_warns_is_launched() -> None:
    composed_check(f"{MISSING} slo.enforce=warn")


def test_an_unsure_plan_is_launched() -> None:
    composed = load(too_much("model=llama3_8b hardware=h100", "slo.tpot_ms", 1.0).split())
    made = plan(composed.config)
    assert made.verdict == "unsure"
    check(made, devices=[H100])


def test_what_the_hardware_does_not_compute_is_refused_with_what_it_does() -> None:
    with pytest.raises(Impossible, match=r"has no bfloat16 in hardware; use model\.dtype=float16"):
        composed_check("model=qwen3_0_6b hardware=t4 slo.enforce=warn")


def test_a_gpu_deployment_starts_beside_that_gpu() -> None:
    composed_check("model=llama3_8b hardware=h100")


def test_a_gpu_deployment_without_a_gpu_says_where_to_run_it() -> None:
    config = shapes.deployment(shapes.LLAMA_8B, "h100")
    with pytest.raises(
        HardwareMissing,
        match=r"wants 1 x h100 \(79\.2 GiB\); this machine has no GPU\. Run it there, or plan it "
        r"here with: servekit plan \.\.\.; on this machine: hardware=cpu",
    ):
        check(plan(config), devices=[])


def test_another_gpu_is_named() -> None:
    config = shapes.deployment(shapes.LLAMA_8B, "a100_80g")
    with pytest.raises(HardwareMissing, match=r"has NVIDIA H100 80GB HBM3 \(79\.7 GiB\)\. Run"):
        check(plan(config), devices=[H100])


def test_several_devices_are_planned_but_not_run() -> None:
    with pytest.raises(NotBuilt, match="planned but not run by this release: 4 devices, where it"):
        composed_check("model=llama3_70b hardware=h100 parallelism=tp4")


def test_all_that_is_not_run_is_one_message() -> None:
    shape = tiny_shape(sliding_window=32, full_attention_layers=(2,), gated_mlp=False)
    config = tiny_config(
        model={"shape": shape}, kv={"hybrid": True, "dtype": "int4", "capacity_tokens": 2048}
    )
    with pytest.raises(NotBuilt) as refused:
        check(plan(config), devices=[])
    assert refused.value.message == (
        "tiny is planned but not run by this release: kv.dtype=int4, where it stores bfloat16, "
        "float16, float32, fp8, int8; an MLP without a gate"
    )
