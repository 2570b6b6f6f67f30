"""Planned and measured stand side by side with the error of the plan."""

from servekit.planner.compare import Comparison, beside
from servekit.planner.plan import plan
from tests.conftest import tiny_config


def test_each_line_gives_both_and_the_error() -> None:
    assert Comparison("weights", "bytes", 3 << 30, 2 << 30).line == (
        "weights: planned 3.000 GiB, measured 2.000 GiB (+50.00 %)"
    )
    assert Comparison("kv_capacity", "tokens", 900, 1000).line == (
        "kv_capacity: planned 900 tokens, measured 1,000 tokens (-10.00 %)"
    )


def test_a_plan_that_came_true_has_no_error() -> None:
    made = plan(tiny_config())
    lines = beside(
        made,
        weights_bytes=made.ledger.weights.bytes,
        num_blocks=made.kv.num_blocks,
        capacity_tokens=made.kv.capacity_tokens,
        kv_bytes=made.kv.bytes,
    )
    assert [line.name for line in lines] == ["weights", "kv", "kv_blocks", "kv_capacity"]
    assert {line.to_json()["error_percent"] for line in lines} == {0.0}
