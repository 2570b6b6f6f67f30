"""The pages of a simulation: verdict first, nothing cut at 80 columns, JSON that is strict."""

import io
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, RenderableType

from servekit.config.compose import load
from servekit.config.schema import Config
from servekit.simulator.pages import compare_page, terminal
from servekit.simulator.pages.metrics import METRICS, number, with_band
from servekit.simulator.pages.reasons import best, reasons
from servekit.simulator.pages.report_json import comparison_json, report_json
from servekit.simulator.pages.sparkline import LEVELS, sparkline
from servekit.simulator.pages.verdict import HEADLINES, advice, of_target, verdict
from servekit.simulator.record import (
    Class,
    Comparison,
    Estimate,
    Report,
    Target,
    Tenant,
)
from tests.simulator.reports import PLAIN, about, comparison, latency, report, target

DOCS = Path(__file__).parents[2] / "docs" / "simulate.md"
NOTHING = Estimate(math.nan, math.nan, math.nan)
LATE = (target("ttft", about(12.0)), target("tpot", about(0.03)))
CLOSE = (target("ttft", about(1.01)),)
COUNTS = {"finished": 5000, "refused": 900, "left": 100, "unfinished": 0}
REFUSING: dict[str, Any] = {
    "counts": COUNTS, "served_per_s": about(6.7), "refused_share": about(0.15),
    "refused_per_s": about(1.2), "left_share": about(0.0125), "left_per_s": about(0.1),
}  # fmt: skip

REPORTS: dict[str, Report] = {
    "meets": PLAIN,
    "served": report(targets=()),
    "unsure": report(targets=CLOSE),
    "too_few": report(targets=(target("ttft", about(0.1), n=20),)),
    "misses": report(targets=LATE),
    "sheds": report(**REFUSING, refused={"slo_unattainable": 900}, retry_after_s=12.3),
    "saturated": report(saturated=True, queue_growth_per_s=about(5.3), targets=LATE),
    "nothing": report(
        counts={"finished": 0, "refused": 10, "left": 0, "unfinished": 0},
        **{f"{name}_share": NOTHING for name in ("goodput", "attained", "hit", "kv_mean")},
        **{name: latency(math.nan) for name in ("ttft", "tpot", "itl", "e2e", "queue")},
        targets=(target("ttft", NOTHING, n=0),),
    ),
}


@pytest.fixture(scope="module")
def config() -> Config:
    return load(["+recipe=chat_llama8b"]).config


def lines(page: RenderableType, width: int) -> list[str]:
    console = Console(width=width, record=True, file=io.StringIO(), highlight=False)
    console.print(page)
    return [line.rstrip() for line in console.export_text().splitlines()]


@pytest.mark.parametrize("width", [80, 100, 140])
@pytest.mark.parametrize("name", REPORTS)
def test_no_line_is_too_long_and_no_cell_is_cut(name: str, width: int, config: Config) -> None:
    shown = lines(terminal.render(REPORTS[name], config, width), width)
    assert max(map(len, shown)) <= width
    assert "…" not in "\n".join(shown)
    assert "nan" not in "\n".join(shown)


@pytest.mark.parametrize("name", REPORTS)
def test_the_verdict_is_the_first_word_of_the_page(name: str, config: Config) -> None:
    first = lines(terminal.render(REPORTS[name], config, 140), 140)[0]
    assert first.startswith(f"{HEADLINES[name]}  {verdict(REPORTS[name]).why[:40]}")


def test_times_of_minutes_still_fit_80_columns_without_a_cell_cut(config: Config) -> None:
    slow = report(**{name: latency(876.5) for name in ("ttft", "tpot", "itl", "e2e", "queue")})
    shown = lines(terminal.render(slow, config, 80), 80)
    row = next(line for line in shown if "time to first token  " in line)
    assert "876,500" in row
    assert "…" not in "\n".join(shown)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (Estimate(0.9, 0.85, 0.99), "meets"),
        (Estimate(1.2, 1.01, 1.3), "misses"),
        (Estimate(0.9, 0.8, 1.1), "unsure"),
        (Estimate(0.9, math.nan, math.nan), "too_few"),
    ],
)
def test_a_target_is_met_when_the_whole_interval_is_within(value: Estimate, said: str) -> None:
    assert of_target(target("ttft", value)) == said


@pytest.mark.parametrize(
    ("n", "late", "said"),
    [
        *((58, 0, "too_few"), (59, 0, "meets")),
        *((0, 0, "too_few"), (1, 0, "too_few"), (1, 1, "too_few")),
        *((2, 2, "misses"), (20, 3, "too_few"), (20, 4, "misses")),
    ],
)
def test_of_a_handful_only_a_miss_that_is_no_chance_is_told(n: int, late: int, said: str) -> None:
    assert of_target(target("ttft", about(0.5), n, late)) == said
    assert of_target(target("ttft", NOTHING, n, late)) == said.replace("meets", "too_few")


def test_how_many_requests_would_tell_is_said() -> None:
    one = report(targets=(target("ttft", about(0.5), n=1),))
    assert verdict(one).why == (
        "time to first token: 1 request counts, and to tell a p95 takes 59: more --requests or "
        "--seeds would"
    )


def test_a_growing_queue_is_the_verdict_even_where_targets_are_still_met() -> None:
    growing = report(
        saturated=True, queue_growth_per_s=about(2.49), offered_per_s=about(10.46),
        served_per_s=about(7.95),
    )  # fmt: skip
    assert verdict(growing).word == "saturated"
    assert verdict(growing).why == (
        "10.5 requests/s come, 8.0 are served and 2.5 stay: the queue grows"
    )


def test_what_comes_is_served_refused_or_stays_and_the_numbers_add_up() -> None:
    filling = report(
        **REFUSING | {"served_per_s": about(21.7), "offered_per_s": about(30.1)},
        saturated=True, queue_growth_per_s=about(1.53),
    )  # fmt: skip
    assert verdict(filling).why == (
        "30.1 requests/s come, 21.7 are served, 1.2 (15.0 %) are refused, 0.1 leave and 7.1 stay: "
        "1.5 in the queue, which grows, 5.6 with a seat"
    )


def test_a_full_system_that_refuses_and_keeps_its_promise_is_not_called_saturated() -> None:
    shedding = report(**REFUSING, saturated=True)
    assert verdict(shedding).word == "sheds"
    assert verdict(shedding).why == "15.0 % of requests are refused; the others meet the targets"
    near = report(**REFUSING, saturated=True, targets=CLOSE)
    assert verdict(near).why.endswith("whether the others meet the targets is not sure")
    late = report(**REFUSING, saturated=True, targets=LATE)
    assert verdict(late).why == (
        "8.00 requests/s come, 6.70 are served, 1.20 (15.0 %) are refused and 0.10 leave"
    )


def test_static_batching_that_saturates_is_told_of_its_empty_seats() -> None:
    static = load(["+recipe=chat_llama8b", "scheduler=static"]).config
    said = advice(report(saturated=True, idle_seat_share=about(0.6)), static)
    assert said[0].startswith("60.0 % of seats are empty while others wait")
    assert "scheduler=continuous" in said[0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"running": about(1020.0)}, "scheduler.max_num_seqs=2048"),
        ({"kv_mean_share": about(0.97)}, "kv.dtype=fp8"),
        ({"kv_max_share": 1.0}, "kv.dtype=fp8"),
        ({}, "parallelism.data=2"),
        ({"step_s": about(0.048), "kv_mean_share": about(0.97)}, "parallelism.data=2"),
        ({"step_s": about(0.048)}, "48.0 ms of the 50 that it may"),
    ],
)
def test_the_advice_to_a_saturated_system_is_about_what_is_short(
    changes: dict[str, Any], words: str, config: Config
) -> None:
    said = advice(report(saturated=True, **changes), config)
    assert words in said[0]
    assert said[1].startswith("slo.admission=enforce")


def test_a_deployment_that_does_not_fit_is_told_of_it(config: Config) -> None:
    large = load(["+recipe=chat_llama8b", "kv.capacity_tokens=800000"]).config
    (said,) = advice(PLAIN, large)
    assert said.startswith("this deployment does not fit: kv.capacity_tokens asks for 97.66 GiB")
    both = comparison(config)
    runs = (both.runs[0], replace(both.runs[1], config=large))
    assert reasons(replace(both, runs=runs))[0] == f"continuous: {said}"


def test_host_memory_that_was_not_used_is_told_with_what_it_would_have_cost() -> None:
    def said(*words: str, **changes: Any) -> str:
        return " ".join(advice(report(**changes), load(["+recipe=chat_llama8b", *words]).config))

    assert said("kv.offload_gib=8") == (
        "kv.offload_gib=8 was not used, and would not have paid: to copy the 800 tokens that a "
        "preempted request had on average to the host and back takes 10.5 ms, to compute them "
        "again in steps with others 9.57"
    )
    assert said("kv.offload_gib=0.01").startswith(
        "kv.offload_gib=0.01 was not used: it has room for 5 blocks, the 800 tokens"
    )
    assert said("kv.offload_gib=8", swaps=1) == ""
    assert said("kv.offload_gib=8", preemptions=0) == ""
    assert said() == ""
    assert "left in the prefix cache" in said("kv.offload_gib=8", preempted_tokens=50_000.0)


def test_advice_names_words_that_compose(config: Config) -> None:
    """Every key=value in an advice is one that the configuration takes."""
    bad = report(
        saturated=True, preempted_share=about(0.05), running=about(1020.0),
        targets=(LATE[0], replaced_tpot()),
    )  # fmt: skip
    greedy = load(["+recipe=chat_llama8b", "scheduler.reserve=greedy"]).config
    said = [*advice(bad, config), *advice(bad, greedy), *advice(report(targets=LATE), config)]
    words = {word.rstrip(",:;") for line in said for word in re.findall(r"[\w.]+=\S+", line)}
    assert len(words) >= 4
    for word in words:
        load(["+recipe=chat_llama8b", word])


def replaced_tpot() -> Target:
    return LATE[1]._replace(value=about(0.2))


def test_requests_that_were_shortened_are_told(config: Config) -> None:
    shown = "\n".join(lines(terminal.render(report(cut=17), config, 140), 140))
    assert "17 were longer than model.max_model_len and were cut to it" in shown
    assert "cut" not in "\n".join(lines(terminal.render(PLAIN, config, 140), 140))


def test_refusals_are_compared_where_there_are_some(config: Config) -> None:
    both = comparison(config)
    refusing = replace(both, reports=(report(refused_share=about(0.2)), both.reports[1]))
    shown = [lines(compare_page.render(each, config, 120), 120) for each in (both, refusing)]
    rows = [[line for line in page if "refused, share of all" in line] for page in shown]
    assert rows[0] == []
    assert "20.0" in rows[1][0].split()


def test_nothing_is_advised_to_what_is_well(config: Config) -> None:
    assert advice(PLAIN, config) == []
    assert "What to try" not in "\n".join(lines(terminal.render(PLAIN, config, 100), 100))


def test_what_meets_a_target_is_told_where_the_table_has_another_number(config: Config) -> None:
    """Of class batch, for whom no target is, the table has the latencies too."""
    shown = " ".join(lines(terminal.render(report(targets=LATE), config, 100), 100))
    assert "targets are for class interactive: its time to first token p95 12,000 ms" in shown
    same = (target("ttft", PLAIN.ttft.p95),)
    shown = " ".join(lines(terminal.render(report(targets=same), config, 100), 100))
    assert "class interactive" not in shown


def test_tenants_have_a_table_where_there_are_several(config: Config) -> None:
    pair = tuple(Tenant(name, 1.0, 800.0, 9000.0, 0.2, 3000) for name in ("alice", ""))
    shown = "\n".join(lines(terminal.render(report(tenants=pair), config, 80), 80))
    assert "alice" in shown
    full = report(tenants=pair, saturated=True, fairness=about(1.2))
    assert "most over least served" in "\n".join(lines(terminal.render(full, config, 80), 80))
    assert "most over least served" not in shown
    assert "(none)" in shown
    assert "Tenants" not in "\n".join(lines(terminal.render(PLAIN, config, 80), 80))


def several(count: int) -> Report:
    return report(
        classes=tuple(
            Class(priority, name, 3000, 2900, 99, 1, latency(0.002), latency(0.031))
            for priority in range(count)
            for name in ("interactive", "batch")
        )
    )


@pytest.mark.parametrize("width", [80, 140])
def test_classes_have_a_table_where_there_are_several(width: int, config: Config) -> None:
    shown = lines(terminal.render(several(2), config, width), width)
    first = next(place for place, line in enumerate(shown) if line.startswith("Classes"))
    assert shown[first + 1].split()[:6] == [
        *("priority", "class", "requests", "finished", "refused", "left")
    ]
    assert shown[first + 3].split()[:6] == ["0", "batch", "3,000", "2,900", "99", "1"]
    assert ("queue p50" in shown[first + 1]) == (width == 140)
    assert max(map(len, shown)) <= width
    assert "Classes" not in "\n".join(lines(terminal.render(PLAIN, config, width), width))


def test_of_many_classes_the_page_has_the_first_and_json_has_all(config: Config) -> None:
    shown = "\n".join(lines(terminal.render(several(20), config, 120), 120))
    assert "28 more in --json" in shown
    found = report_json(several(20), config)["classes"]
    assert [one["priority"] for one in found] == [place // 2 for place in range(40)]
    assert found[1]["ttft_ms"]["p95"]["value"] == pytest.approx(93.0)


@given(st.lists(st.floats(0, 1e9), max_size=300), st.integers(1, 120))
def test_a_sparkline_has_room_and_its_peak_is_the_highest_block(
    values: list[float], width: int
) -> None:
    drawn = sparkline(values, width)
    assert len(drawn) == min(width, len(values))
    assert set(drawn) <= set(LEVELS)
    if len(values) <= width and max(values, default=0) > 0:
        assert drawn[values.index(max(values))] == LEVELS[-1]


def test_a_sparkline_leaves_a_gap_where_there_is_no_number() -> None:
    assert sparkline([1.0, math.nan, 1.0], 3) == "▇ ▇"


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=-1e12, max_value=1e12))
def test_a_number_is_never_written_as_a_power_and_keeps_three_digits(value: float) -> None:
    text = number(value)
    assert "e" not in text
    read = float(text.replace(",", ""))
    assert read == pytest.approx(value, rel=0.006, abs=0.006)


def test_an_interval_has_as_many_digits_as_its_number() -> None:
    assert with_band(Estimate(10.9, 10.36, 11.44)) == ("10.9", "±0.5")
    assert with_band(Estimate(10.9, math.nan, math.nan)) == ("10.9", "")


@pytest.mark.parametrize("width", [80, 140])
def test_a_comparison_fits_and_says_why_static_gives_less(width: int, config: Config) -> None:
    shown = lines(compare_page.render(comparison(config), config, width), width)
    text = "\n".join(shown)
    assert max(map(len, shown)) <= width
    assert "…" not in text
    assert "continuous gives 2.50 times the output of static" in " ".join(text.split())
    assert (
        "static leaves 60.0 % of its seats empty while others wait for its batch to end"
        in " ".join(text.split())
    )


def test_what_is_clearly_best_is_marked_and_what_is_alike_is_not(config: Config) -> None:
    shown = lines(compare_page.render(comparison(config), config, 140), 140)
    output = next(line for line in shown if line.strip().startswith("output "))
    running = next(line for line in shown if "requests running" in line)
    assert re.search(r"★\s1,000\s+\+150\s±17\s%", output)
    assert "★" not in running
    assert "≈" in running


def many(config: Config, count: int) -> Comparison:
    both = comparison(config)
    return replace(
        both,
        names=tuple(f"of_{place}" for place in range(count)),
        reports=tuple(both.reports[place > 0] for place in range(count)),
        differences=tuple(both.differences[place > 0] for place in range(count)),
        highest={key: "of_1" for key, name in both.highest.items() if name == "continuous"},
        lowest={key: "of_1" for key, name in both.lowest.items() if name == "continuous"},
        runs=tuple(both.runs[place > 0] for place in range(count)),
    )


def test_more_options_than_there_is_room_for_are_in_several_tables(config: Config) -> None:
    shown = lines(compare_page.render(many(config, 7), config, 80), 80)
    heads = [line.split() for line in shown if re.fullmatch(r"( +of_\d)+", line)]
    assert len(heads) > 1
    assert all(names[0] == "of_0" for names in heads)
    assert "…" not in "\n".join(shown)
    assert {name for names in heads for name in names} == {f"of_{place}" for place in range(7)}


def test_a_long_name_is_folded_and_its_numbers_are_whole(config: Config) -> None:
    names = ("a_name_of_forty_letters_" + "x" * 16, "y" * 40)
    long = replace(comparison(config), names=names, highest={"output_tokens_per_s": "y" * 40})
    shown = "\n".join(lines(compare_page.render(long, config, 80), 80))
    assert "…" not in shown
    assert "★\N{NO-BREAK SPACE}1,000" in shown


def test_the_best_has_most_or_least_as_is_better(config: Config) -> None:
    both = replace(many(config, 3), highest={"waiting": "of_1"}, lowest={"waiting": "of_2"})
    assert best(both, "waiting", "higher") == "of_1"
    assert best(both, "waiting", "lower") == "of_2"
    assert best(both, "waiting", "neither") is None
    assert best(both, "running", "higher") is None


def test_empty_seats_are_no_reason_where_batching_is_continuous(config: Config) -> None:
    """With a thousand seats most are empty while prompts wait for time."""
    both = comparison(config)
    continuous = replace(both, runs=(both.runs[1], both.runs[1]))
    assert not [said for said in reasons(continuous) if "empty" in said]


def test_options_that_all_keep_up_are_said_to_need_more_load(config: Config) -> None:
    both = comparison(config)
    alike = replace(both, reports=(PLAIN, PLAIN))
    (said,) = reasons(alike)
    assert "all keep up" in said
    assert "workload.request_rate" in said


@pytest.mark.parametrize("name", REPORTS)
def test_json_is_strict_and_agrees_with_the_page(name: str, config: Config) -> None:
    found = json.loads(json.dumps(report_json(REPORTS[name], config), allow_nan=False))
    assert found["verdict"] == name
    assert sum(found["requests"][end] for end in COUNTS) == sum(REPORTS[name].counts.values())
    if name != "nothing":
        assert found["latency"]["ttft_ms"]["p95"]["value"] == pytest.approx(93.0)


def test_json_of_a_comparison_has_each_report_and_what_differs(config: Config) -> None:
    found = json.loads(json.dumps(comparison_json(comparison(config), config), allow_nan=False))
    first, second = found["options"]
    assert (first["name"], first["differences"]) == ("static", {})
    change = second["differences"]["ttft.p95"]
    assert change["unit"] == "ms"
    assert change["difference"]["value"] == pytest.approx(93.0 - 2700.0)
    assert found["best"]["output_tokens_per_s"] == "continuous"


def keys(value: Any) -> set[str]:
    """All names of an object and of those inside, but for names that are data."""
    if isinstance(value, list):
        return set().union(*map(keys, value)) if value else set()
    if not isinstance(value, dict):
        return set()
    data = {"miss_shares", "refused_by_code", "differences", "best"}
    inner = [keys(part) for name, part in value.items() if name not in data]
    return set(value).union(*inner)


def test_every_key_of_the_json_is_documented(config: Config) -> None:
    text = DOCS.read_text(encoding="utf-8")
    everything = report(tenants=(Tenant("a", 1.0, 1.0, 1.0, 1.0, 1),))
    found = keys(report_json(everything, config)) | keys(
        comparison_json(comparison(config), config)
    )
    missing = {name for name in found if f"`{name}`" not in text and f"`{name}[]`" not in text}
    assert not missing
    assert {m.key for m in METRICS if f"`{m.key}`" not in text and "." not in m.key} == set()
