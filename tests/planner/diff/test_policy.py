"""A policy says what may not happen; a pair that breaks it says why."""

from typing import Any

import pytest

from servekit.errors import ConfigError
from servekit.planner.diff.difference import Change
from servekit.planner.diff.policy import failures, policies
from tests.planner.diff_pairs import BASE, change, made, pair

COST = "usd_per_million_output_tokens"


def broken(text: str | None, *changes: Change, **given: Any) -> list[str]:
    listed = None if text is None else policies(text)
    return [reason for _, reason in failures(listed, made(*changes, **given))]


def test_an_unknown_policy_is_one_error_that_lists_them() -> None:
    with pytest.raises(ConfigError, match=r"no policy 'costs>10%'; there are does_not_fit, .*N%"):
        policies("slo, costs>10%")


@pytest.mark.parametrize("text", ["cost", "cost>10", "slo>10%", "", "slo,,any", "cost>-1%"])
def test_a_limit_needs_its_percentage_and_a_state_has_none(text: str) -> None:
    with pytest.raises(ConfigError, match="--fail-on has no policy"):
        policies(text)


@pytest.mark.parametrize(
    ("text", "before", "after", "fails"),
    [
        ("cost>10%", 1.0, 1.1, False),
        ("cost>10%", 1.0, 1.11, True),
        ("cost>10%", 1.0, 0.5, False),
        ("cost>0.5%", 1.0, 1.01, True),
        ("cost>10%", None, 5.0, False),
        ("cost>10%", 1.0, None, True),
    ],
)
def test_cost_may_rise_to_its_limit(
    text: str, before: float | None, after: float | None, fails: bool
) -> None:
    assert bool(broken(text, change(COST, before, after, better="lower"))) == fails


@pytest.mark.parametrize(("after", "fails"), [(90.0, False), (89.0, True), (200.0, False)])
def test_capacity_may_drop_to_its_limit(after: float, fails: bool) -> None:
    assert bool(broken("capacity>10%", change("capacity_tokens", 100.0, after))) == fails


def test_the_reason_says_how_much() -> None:
    (reason,) = broken("tpot>5%", change("tpot_p95_ms", 10.0, 12.0, better="lower"))
    assert reason == "tpot_p95_ms is 20.0% worse"


def test_worse_is_more_than_the_band() -> None:
    assert not broken("worse", change("goodput_per_s", 10.0, 9.0, band=1.5))
    (reason,) = broken("worse", change("goodput_per_s", 10.0, 8.0, band=1.5))
    assert reason == "worse by more than the band: goodput_per_s"


def test_what_does_not_fit_fails_with_the_sentence_of_the_planner() -> None:
    unfit = pair(BASE, f"{BASE} hardware=l4 model.max_model_len=131072")
    ((policy, reason),) = failures(policies("does_not_fit"), unfit)
    assert policy == "does_not_fit"
    assert unfit.after is not None
    assert unfit.after.plan is not None
    assert reason == unfit.after.plan.ledger.problem


def test_a_missed_target_fails_slo_though_nothing_changed() -> None:
    missed = pair(f"{BASE} slo.tpot_ms=0.5", f"{BASE} slo.tpot_ms=0.5")
    assert missed.status == "unchanged"
    assert [reason for _, reason in failures(policies("slo"), missed)] == ["it misses tpot_ms"]
    assert [name for name, _ in failures(policies("impossible,any"), missed)] == [
        "impossible",
        "any",
    ]


def test_a_fine_pair_breaks_nothing() -> None:
    fine = pair(BASE, f"{BASE} server.port=9000")
    every = "does_not_fit,impossible,slo,invalid,worse,any,cost>0%,capacity>0%,ttft>0%,goodput>0%"
    assert list(failures(policies(every), fine)) == []


def test_what_is_not_valid_after_fails_always() -> None:
    wrong = pair(BASE, "kv.nothing=1")
    for given in (None, policies("slo"), policies("invalid")):
        assert [name for name, _ in failures(given, wrong)] == ["invalid"]


def test_what_was_not_valid_before_fails_unless_policies_leave_it_out() -> None:
    mended = pair("kv.nothing=1", BASE)
    assert [name for name, _ in failures(None, mended)] == ["invalid"]
    assert list(failures(policies("slo"), mended)) == []
