"""The price of tokens."""

import pytest

from servekit.planner.cost import Cost, cost
from tests.conftest import tiny_config
from tests.planner.fakes import fake_prediction

PRICED = tiny_config(hardware={"usd_per_hour": 3.6}, parallelism={"data": 2})


def test_every_device_is_paid_for() -> None:
    assert cost(PRICED, fake_prediction()).usd_per_hour == 7.2


def test_a_million_tokens_cost_the_hours_that_they_take() -> None:
    # 7.2 USD an hour are 0.002 a second, and a million tokens take 1,000 s
    found = cost(PRICED, fake_prediction(output_tokens_per_s=1000.0))
    assert found.usd_per_million_output_tokens == pytest.approx(2.0)


def test_tokens_at_goodput_cost_more_by_what_is_left_idle() -> None:
    found = cost(PRICED, fake_prediction(capacity_per_s=20.0, goodput_per_s=5.0))
    assert found.at_goodput == pytest.approx(4 * 2.0)


def test_without_goodput_no_token_has_a_price() -> None:
    assert cost(PRICED, fake_prediction(goodput_per_s=0.0)).at_goodput is None


def test_without_a_price_nothing_costs_anything_known() -> None:
    assert cost(tiny_config(), fake_prediction()) == Cost(None, None, None)


def test_what_does_not_fit_costs_its_devices_all_the_same() -> None:
    assert cost(PRICED, None) == Cost(7.2, None, None)


def test_what_serves_nothing_has_no_price_a_token() -> None:
    nothing = fake_prediction(output_tokens_per_s=0.0, capacity_per_s=0.0, goodput_per_s=0.0)
    assert cost(PRICED, nothing) == Cost(7.2, None, None)
