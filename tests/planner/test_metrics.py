"""A plan in comparable numbers: always the same names, with a band and a direction."""

from dataclasses import replace

from servekit.planner.metrics import LABELS, metrics
from servekit.planner.plan import plan
from tests.conftest import tiny_config

UNFIT = {"memory_gib": 0.001}


def test_every_metric_is_there_in_the_order_of_a_report() -> None:
    assert list(metrics(plan(tiny_config()))) == list(LABELS)


def test_memory_is_that_of_the_plan() -> None:
    made = plan(tiny_config())
    found = metrics(made)
    assert found["capacity_tokens"].value == made.kv.capacity_tokens == 1024
    assert found["max_concurrency"].value == made.max_concurrency == 4.0
    assert found["weights_gib"].value == made.to_json()["memory"]["weights_gib"]
    assert found["kv_gib"].value == made.to_json()["memory"]["kv_gib"]


def test_a_cache_of_a_given_size_is_exact_and_a_share_of_the_rest_is_not() -> None:
    given = metrics(plan(tiny_config()))
    share = {"capacity_tokens": None, "memory_fraction": 0.5}
    left = metrics(plan(tiny_config(kv=share)))
    assert given["kv_gib"].band == given["capacity_tokens"].band == 0
    assert left["kv_gib"].band > 0
    assert left["capacity_tokens"].band > 0


def test_speed_has_the_band_of_the_prediction() -> None:
    made = plan(tiny_config())
    assert made.prediction is not None
    tpot = metrics(made)["tpot_p50_ms"]
    assert tpot.value == made.prediction.tpot_ms.p50
    assert tpot.value is not None
    assert tpot.band == tpot.value * made.prediction.band > 0


def test_what_does_not_fit_has_no_speed_and_no_cost() -> None:
    made = plan(tiny_config(hardware=UNFIT), advise=False)
    assert made.prediction is None
    found = metrics(made)
    assert {found[name].value for name in found if found[name].family == "speed"} == {None}
    assert all(metric.band == 0 for metric in found.values() if metric.family == "speed")


def test_a_price_is_input_and_has_no_band() -> None:
    made = plan(tiny_config())
    priced = replace(made, cost=replace(made.cost, usd_per_hour=3.0))
    assert metrics(made)["usd_per_hour"].value is None
    assert (metrics(priced)["usd_per_hour"].value, metrics(priced)["usd_per_hour"].band) == (3.0, 0)
