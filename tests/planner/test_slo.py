"""Targets against predictions."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servekit.config.compose import load
from servekit.planner import slo as slo_module
from servekit.planner.cost import cost
from servekit.planner.prediction.predict import predict
from servekit.planner.prediction.prediction import Bounds, Latencies
from servekit.planner.slo import SloLine, judge
from servekit.spec.kv import kv_layout
from servekit.spec.memory import ledger
from tests.conftest import tiny_config
from tests.planner.fakes import GPU_RECIPES, FakeStep, fake_prediction


def line(price: float | None = None, made: dict[str, Any] | None = None, **slo: Any) -> SloLine:
    config = tiny_config(slo=slo, hardware={"usd_per_hour": price})
    prediction = fake_prediction(**(made or {}))
    (found,) = judge(config, prediction, cost(config, prediction))
    return found


@pytest.mark.parametrize(
    ("target", "verdict"),
    [
        (110.0, "meets"),
        (109.0, "unsure"),
        (100.0, "unsure"),
        (90.0, "unsure"),
        (89.0, "misses"),
        (50.0, "misses"),
        (49.0, "impossible"),
    ],
)
def test_a_first_token_at_100_give_or_take_10_and_never_below_50(
    target: float, verdict: str
) -> None:
    found = line(ttft_ms=target)
    assert (found.name, found.predicted, found.verdict) == ("ttft_ms", 100, verdict)
    assert found.band == pytest.approx(10)


@pytest.mark.parametrize(
    ("target", "verdict"),
    [(9.0, "meets"), (9.5, "unsure"), (11.0, "unsure"), (11.1, "misses")],
)
def test_more_goodput_than_is_promised_is_good(target: float, verdict: str) -> None:
    assert line(goodput_per_s=target).verdict == verdict


@pytest.mark.parametrize(("ceiling", "verdict"), [(1.2, "meets"), (1.0, "unsure"), (0.8, "misses")])
def test_tokens_that_cost_one_dollar_a_million(ceiling: float, verdict: str) -> None:
    assert line(price=3.6, usd_per_million_output_tokens=ceiling).verdict == verdict


def test_no_target_gives_no_line() -> None:
    config, prediction = tiny_config(), fake_prediction()
    assert judge(config, prediction, cost(config, prediction)) == ()


def test_targets_are_judged_in_the_order_of_the_configuration() -> None:
    config = tiny_config(
        slo={
            "ttft_ms": 1.0,
            "tpot_ms": 1.0,
            "goodput_per_s": 1.0,
            "usd_per_million_output_tokens": 1.0,
        }
    )
    prediction = fake_prediction()
    names = [found.name for found in judge(config, prediction, cost(config, prediction))]
    assert names == ["ttft_ms", "tpot_ms", "goodput_per_s", "usd_per_million_output_tokens"]


def test_a_queue_without_end_misses_and_says_both_rates() -> None:
    endless = {
        "at_slo": Latencies(ttft_ms=None, tpot_ms=20.0),
        "utilization": 2.0,
        "capacity_per_s": 0.5,
    }
    found = line(made=endless, ttft_ms=60.0)
    assert (found.verdict, found.predicted, found.band) == ("misses", None, None)
    assert "requests come at 1/s and 0.5/s can be served" in found.why


def test_a_queue_that_may_have_an_end_within_the_band_is_unsure() -> None:
    endless = {"at_slo": Latencies(ttft_ms=None, tpot_ms=20.0), "utilization": 1.05}
    assert line(made=endless, ttft_ms=60.0).verdict == "unsure"


def test_a_cache_without_a_request_misses() -> None:
    nothing = {"at_slo": Latencies(ttft_ms=None, tpot_ms=None), "utilization": None}
    found = line(made=nothing, tpot_ms=60.0)
    assert found.verdict == "misses"
    assert "holds no request" in found.why


def test_a_ceiling_of_cost_without_a_price_is_unsure_and_asks_for_it() -> None:
    found = line(price=None, usd_per_million_output_tokens=1.0)
    assert found.verdict == "unsure"
    assert "hardware.usd_per_hour" in found.why


def test_goodput_is_impossible_with_a_target_that_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slo_module, "roofline", lambda config: FakeStep())
    config = tiny_config(slo={"tpot_ms": 1.0, "goodput_per_s": 1.0})
    prediction = fake_prediction()
    tpot, goodput = judge(config, prediction, cost(config, prediction))
    assert (tpot.verdict, goodput.verdict) == ("impossible", "impossible")
    assert goodput.why == "tpot_ms cannot be met at any rate"


def test_the_impossible_is_told_by_what_must_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slo_module, "roofline", lambda config: FakeStep(base=0.1, cached=0.0001))
    found = line(tpot_ms=4.0)
    assert found.why == (
        "reading 2.00 GB of weights and 0.40 GB of keys and values at 20 GB/s takes 5 ms a token "
        "on ideal hardware, more than 4 ms"
    )


def test_the_impossible_is_told_for_all_tokens_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    roof = FakeStep(base=0.1, tokens_per_step=2.5)
    monkeypatch.setattr(slo_module, "roofline", lambda config: roof)
    assert "GB/s for 2.50 tokens takes 5 ms a token on ideal" in line(tpot_ms=4.0).why


def test_the_impossible_is_told_by_what_must_be_computed() -> None:
    found = line(ttft_ms=40.0, made={"bounds": Bounds(50.0, 5.0, 200.0, 150.0)})
    assert found.why == (
        "computing 150 tokens of a p95 prompt at the full rate of test takes 50 ms on ideal "
        "hardware, more than 40 ms"
    )


def test_fifty_milliseconds_a_token_are_impossible_for_an_8b_model_on_an_l4() -> None:
    config = load(["+recipe=chat_llama8b", "hardware=l4"]).config
    prediction = predict(config, kv_layout(config, 4 * 2**30)[0])
    verdicts = {found.name: found for found in judge(config, prediction, cost(config, prediction))}
    assert verdicts["tpot_ms"].verdict == "impossible"
    assert "15.01 GB of weights" in verdicts["tpot_ms"].why
    assert "300 GB/s" in verdicts["tpot_ms"].why


@pytest.mark.parametrize("recipe", GPU_RECIPES)
def test_a_recipe_meets_its_own_targets(recipe: str) -> None:
    config = load([f"+recipe={recipe}", "calibration=none"]).config
    prediction = predict(config, ledger(config).layout)
    lines = judge(config, prediction, cost(config, prediction))
    assert [(found.name, found.verdict) for found in lines if found.verdict != "meets"] == []
    assert lines


@given(st.floats(1, 1e4), st.floats(1, 1e4))
def test_a_looser_target_is_never_judged_worse(one: float, other: float) -> None:
    order = ["impossible", "misses", "unsure", "meets"]
    tight, loose = (order.index(line(ttft_ms=target).verdict) for target in sorted((one, other)))
    assert tight <= loose
