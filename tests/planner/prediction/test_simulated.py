"""Times of a plan are those of a short run of the scheduler, where there is one."""

import json
from dataclasses import replace
from typing import Any

import pytest

from servekit.config.schema import Config
from servekit.errors import ConfigError, NotBuilt
from servekit.planner.outcome import assess, judged
from servekit.planner.plan import plan
from servekit.planner.prediction import sample as sample_module
from servekit.planner.prediction.prediction import Prediction
from servekit.planner.prediction.sample import SEED, sample
from servekit.planner.prediction.simulated import (
    BUDGET_S,
    COUNTS,
    affordable,
    cost_s,
    seconds_of_run,
    simulated,
)
from servekit.simulator.measure import measure
from servekit.simulator.run import simulate
from tests.conftest import tiny_config, tiny_shape
from tests.planner.fakes import fake_prediction

BUSY = {"request_rate": 16.0}
"""Half of what the tiny model serves."""


def busy(**groups: dict[str, Any]) -> Config:
    return tiny_config(**{**groups, "workload": {**BUSY, **groups.get("workload", {})}})


def predicted(config: Config) -> Prediction:
    made = plan(config, advise=False).prediction
    assert made is not None
    return made


def test_times_are_those_of_the_same_run_by_the_simulator() -> None:
    config = busy()
    found = predicted(config)
    assert found.sampled is not None
    seen = measure(simulate(config, requests=found.sampled.requests, seed=SEED)).samples
    assert found.ttft_ms.p95 == seen["ttft.p95"].whole * 1000
    assert found.tpot_ms.p50 == seen["tpot.p50"].whole * 1000
    assert found.itl_ms.p99 == seen["itl.p99"].whole * 1000
    assert found.at_slo.ttft_ms == found.ttft_ms.p95


def test_rates_are_closed_forms_all_the_same() -> None:
    config = busy(slo={"ttft_ms": 50.0})
    closed, found = assess(config).prediction, predicted(config)
    assert closed is not None
    for name in ("capacity_per_s", "goodput_per_s", "output_tokens_per_s", "bounds", "utilization"):
        assert getattr(found, name) == getattr(closed, name)
    assert found.ttft_ms != closed.ttft_ms
    assert "not simulated" in closed.method
    assert found.method.startswith("times simulated")


def test_the_same_configuration_has_the_same_json_to_the_byte() -> None:
    first = json.dumps(plan(busy()).to_json())
    sample_module._sample.cache_clear()
    assert json.dumps(plan(busy()).to_json()) == first


def test_what_no_run_looks_at_is_not_simulated_again() -> None:
    one = sample(busy(), 100)
    assert sample(busy(server={"port": 1234}), 100) is one
    assert sample(busy(scheduler={"max_num_seqs": 4}), 100) is not one


@pytest.mark.parametrize(
    "groups",
    [
        {"scheduler": {"policy": "static"}},
        {"scheduler": {"order": "shortest_prefill", "reserve": "predicted"}},
        {"parallelism": {"pipeline": 3}},
        {"parallelism": {"data": 2}},
        {"speculative": {"method": "ngram", "tokens": 3, "acceptance": 0.6}},
        {"workload": {"arrivals": "bursts", "burst_size": 4}},
        {"workload": {"arrivals": "closed", "concurrency": 4}},
        {"workload": {"turns": 3.0, "prompt_tokens": 170, "output_tokens": 20, "think_s": 0.1}},
        {"workload": {"trace": "azure_code"}},
        {"workload": {"batch_share": 1.0}},
        {"workload": {"output_tokens": 1, "output_cv": 0.0}},
        {
            "model": {"shape": tiny_shape(sliding_window=32, full_attention_layers=(2,))},
            "kv": {"hybrid": True},
        },
    ],
    ids=str,
)
def test_every_kind_of_deployment_and_traffic_is_simulated(groups: dict[str, Any]) -> None:
    found = predicted(busy(**groups))
    assert found.sampled is not None
    for times in (found.ttft_ms, found.tpot_ms, found.itl_ms):
        assert None not in (times.p50, times.p95, times.p99)
        assert 0 <= (times.p50 or 0) <= (times.p95 or 0) <= (times.p99 or 0)


def test_a_run_takes_no_more_than_there_is_time_for() -> None:
    config = tiny_config()
    for steps in (0.1, 1.0, 3.0, 10.0, 20.0):
        made = fake_prediction(steps_per_request=steps)
        count = affordable(config, made)
        assert count in COUNTS
        assert seconds_of_run(config, made) == cost_s(config, made, count) <= BUDGET_S


def test_more_steps_are_fewer_requests_and_at_last_none() -> None:
    config = tiny_config()
    counts = [
        affordable(config, fake_prediction(steps_per_request=steps))
        for steps in (0.1, 1.0, 5.0, 20.0, 60.0)
    ]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > counts[-1] == 0


@pytest.mark.parametrize("running", [1.0, 30.0, 90.0, 280.0, 700.0])
def test_a_run_lasts_until_those_who_came_first_have_long_left(running: float) -> None:
    count = affordable(tiny_config(), fake_prediction(steps_per_request=0.1, running=running))
    assert count >= 2 * running or not count
    assert bool(count) == (running <= 280)


def test_of_a_trace_no_more_run_than_there_are(tmp_path: Any) -> None:
    found = {}
    for count in (130, 60):
        rows = [f"{index / 10},{50},{3}" for index in range(count)]
        file = tmp_path / f"{count}.csv"
        file.write_text("\n".join(["arrived_at,num_prefill_tokens,num_decode_tokens", *rows]))
        found[count] = predicted(tiny_config(workload={"trace": str(file)}))
    assert found[130].requests_per_s == pytest.approx(10)
    assert found[130].sampled is not None
    assert found[130].sampled.requests == 100
    assert found[60].method.endswith("the trace has 60 requests, and a run takes 100")


def test_what_is_too_long_to_simulate_keeps_closed_forms_and_says_so() -> None:
    slow = {"workload": {"request_rate": 0.01}, "kv": {"capacity_tokens": 1024}}
    found = predicted(tiny_config(**slow))
    assert found.sampled is None
    assert found.method.endswith("not simulated: a run of 100 requests is too long for a plan")


def test_more_traffic_than_can_be_served_is_not_simulated() -> None:
    made = fake_prediction(stable=False)
    assert simulated(tiny_config(), made) is made
    assert seconds_of_run(tiny_config(), made) == 0


def test_what_is_not_scheduled_keeps_closed_forms_and_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(config: Config, requests: int) -> None:
        raise NotBuilt("states are not scheduled")

    monkeypatch.setattr(sample_module, "sample", refuse)
    made = assess(busy()).prediction
    assert made is not None
    found = simulated(busy(), made)
    assert found.sampled is None
    assert found.method.endswith("not simulated: states are not scheduled")


def test_a_queue_that_only_grew_is_unsure_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    times = replace(sample(busy(), 100), is_endless=True)
    monkeypatch.setattr(sample_module, "sample", lambda config, requests: times)
    made = plan(busy(slo={"ttft_ms": 500.0}), advise=False)
    assert made.prediction is not None
    assert made.prediction.ttft_ms.p50 is None
    assert made.verdict == "unsure"
    assert any("in a simulation of" in line for line in made.warnings)
    assert "the queue only grew in a simulation" in made.slo[0].why


def test_a_target_that_chance_decides_is_unsure() -> None:
    found = plan(busy(), advise=False).prediction
    assert found is not None
    assert found.sampled is not None
    assert found.ttft_ms.p95 is not None
    chance = found.sampled.at_slo.ttft_ms
    assert chance
    only_model = found.band * found.ttft_ms.p95
    target = found.ttft_ms.p95 + only_model * 1.01
    (line,) = plan(busy(slo={"ttft_ms": target}), advise=False).slo
    assert line.band == pytest.approx((only_model**2 + chance**2) ** 0.5)
    assert line.verdict == "unsure"


def test_json_says_which_run_and_how_far_chance_moves_it() -> None:
    found = plan(busy(), advise=False).to_json()["latency"]
    run = found["simulated"]
    assert set(run) == {"requests", "simulated_s", "cut_requests", "chance"}
    model = 0.5 * found["ttft_ms"]["p95"]  # a CPU's
    chance = run["chance"]["ttft_ms"]["p95"]
    assert found["bands"]["ttft_ms"]["p95"] == pytest.approx((model**2 + chance**2) ** 0.5)
    assert found["bands"]["capacity_per_s"] == pytest.approx(0.5 * found["capacity_per_s"])


@pytest.mark.parametrize("concurrency", [1, 4, 30])
def test_clients_that_wait_never_ask_for_too_much(concurrency: int) -> None:
    config = tiny_config(
        workload={"arrivals": "closed", "concurrency": concurrency, "request_rate": 1e6}
    )
    closed = assess(config).prediction
    assert closed is not None
    assert closed.stable
    assert closed.utilization is not None
    assert closed.utilization <= 1
    assert closed.requests_per_s == pytest.approx(closed.utilization * closed.capacity_per_s)
    assert closed.ttft_ms.p95 is not None
    times = predicted(config).ttft_ms.p50
    assert times is not None
    assert closed.ttft_ms.p50 == pytest.approx(times, rel=1.0)


def test_a_trace_that_cannot_be_read_is_refused_before_anything_is_planned() -> None:
    config = tiny_config(workload={"trace": "/nowhere/trace.csv"})
    with pytest.raises(ConfigError, match=r"/nowhere/trace\.csv"):
        plan(config)


def test_what_the_hardware_refuses_is_not_simulated() -> None:
    refused = assess(busy(hardware={"bf16": False}, kv={"dtype": "bfloat16"}))
    assert refused.refusals
    assert judged(refused) is refused
