"""What may not be launched is refused, with what was asked, what there is, what to do."""

import pytest

from servekit.errors import DoesNotFit, HardwareMissing, NotBuilt
from servekit.planner.gate import check
from servekit.planner.plan import plan
from servekit.spec.hardware import Device
from tests.conftest import tiny_config
from tests.spec import shapes

H100 = Device(kind="cuda", name="NVIDIA H100 80GB HBM3", memory_gib=79.65)


def test_what_fits_on_a_cpu_starts_anywhere() -> None:
    config = tiny_config()
    check(plan(config), config, devices=[])


def test_what_does_not_fit_is_refused_with_ledger_and_advice() -> None:
    config = tiny_config(kv={"capacity_tokens": None, "memory_gib": 4.0})
    with pytest.raises(DoesNotFit) as refused:
        check(plan(config), config, devices=[])
    message = refused.value.message
    assert message.startswith("tiny does not fit test: kv.memory_gib asks for 4.00 GiB")
    assert "weights 0.00 + activations 0.00 + runtime 0.60 + kv 4.00" in message
    assert message.endswith("try kv.memory_gib=3.22")
    assert refused.value.exit_code == 2


def test_what_no_single_change_mends_says_so() -> None:
    config = tiny_config(hardware={"memory_gib": 0.5})
    with pytest.raises(DoesNotFit, match="no single change makes it fit: take larger hardware"):
        check(plan(config), config, devices=[])


def test_a_gpu_deployment_starts_beside_that_gpu() -> None:
    config = shapes.deployment(shapes.LLAMA_8B, "h100")
    check(plan(config), config, devices=[H100])


def test_a_gpu_deployment_without_a_gpu_says_where_to_run_it() -> None:
    config = shapes.deployment(shapes.LLAMA_8B, "h100")
    with pytest.raises(
        HardwareMissing,
        match=r"wants 1 x h100 \(79\.2 GiB\); this machine has no GPU\. Run it there, or plan it "
        r"here with: servekit plan \.\.\.; on this machine: hardware=cpu",
    ):
        check(plan(config), config, devices=[])


def test_another_gpu_is_named() -> None:
    config = shapes.deployment(shapes.LLAMA_8B, "a100_80g")
    with pytest.raises(HardwareMissing, match=r"has NVIDIA H100 80GB HBM3 \(79\.7 GiB\)\. Run"):
        check(plan(config), config, devices=[H100])


def test_several_devices_are_planned_but_not_run() -> None:
    config = shapes.deployment(shapes.LLAMA_70B, "h100", parallelism={"tensor": 4})
    assert plan(config).verdict == "ok"
    with pytest.raises(NotBuilt, match=r"tensor=4: this release plans several devices"):
        check(plan(config), config, devices=[H100] * 4)
