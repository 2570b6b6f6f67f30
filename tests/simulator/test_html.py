"""The page of figures: one file, no network, nothing from outside that is not escaped."""

import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from servekit.config.compose import load
from servekit.config.schema import Config
from servekit.errors import ServekitError
from servekit.simulator.columns import Gaps, Seats, SeatState
from servekit.simulator.pages.figures import curve, distributions, ended, ticks, values
from servekit.simulator.pages.html import page, write
from servekit.simulator.pages.timeline import (
    MOST_CELLS,
    readable,
    shaded,
    timeline,
    together,
    window_empty_share,
)
from tests.simulator.reports import PLAIN, comparison, report, run

EVIL = '</script><img src=x onerror=alert(1)>"&\u2028'


@pytest.fixture(scope="module")
def config() -> Config:
    return load(["+recipe=chat_llama8b"]).config


@pytest.fixture(scope="module")
def whole(config: Config) -> str:
    both = comparison(config)
    return page(list(zip(both.names, both.runs, both.reports, strict=True)), both)


class Elements(HTMLParser):
    """Start tags with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def figures(text: str) -> list[dict[str, Any]]:
    found = re.search(r'<script type="application/json" id="figures">(.*?)</script>', text, re.S)
    assert found is not None
    made = json.loads(found[1])
    assert isinstance(made, list)
    return made


def test_the_page_fetches_nothing(whole: str) -> None:
    """No element names another file, and the page's own policy forbids the rest."""
    elements = Elements(whole).found
    assert not [(tag, attrs) for tag, attrs in elements if {"src", "href"} & set(attrs)]
    policy = next(attrs["content"] for tag, attrs in elements if attrs.get("http-equiv"))
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert "http" not in policy


def test_each_figure_has_its_place_and_plotly_is_inside(whole: str) -> None:
    places = [attrs["id"] for tag, attrs in Elements(whole).found if attrs.get("class") == "figure"]
    assert places == [f"figure-{place}" for place in range(len(figures(whole)))]
    assert len(places) == 6
    assert "plotly.js v" in whole


def test_what_comes_from_outside_is_escaped_everywhere(config: Config) -> None:
    """Names of options, of the deployment and of a trace are words that somebody wrote."""
    load_of = config.workload.model_copy(update={"trace": EVIL})
    named = config.model_copy(update={"name": EVIL, "workload": load_of})
    both = comparison(named)
    both = replace(
        both, key=EVIL, names=(EVIL, "b"), reports=tuple(report(name=EVIL) for _ in range(2))
    )
    shown = list(zip(both.names, both.runs, both.reports, strict=True))
    for text in (page(shown, both), page(shown[:1])):
        assert not [tag for tag, _ in Elements(text).found if tag == "img"]
        names = {trace.get("name", "") for figure in figures(text) for trace in figure["data"]}
        assert not any("<" in name for name in names)
        assert "\u2028" not in text.split('id="figures">')[1]


def test_a_report_of_nothing_still_makes_a_page(config: Config) -> None:
    empty = replace(run(config, static=False), served=[], seats=Seats())
    empty.copies[0].gaps = Gaps()
    text = page([("x", empty, report(series=replace(PLAIN.series, at=(), running=())))])
    assert "NaN" not in json.dumps(figures(text))


def test_a_file_that_cannot_be_written_is_an_error_that_names_it(
    config: Config, tmp_path: Path
) -> None:
    with pytest.raises(ServekitError, match=r"no/such/page\.html cannot be written"):
        write(tmp_path / "no/such/page.html", [("x", run(config, static=True), PLAIN)])


def test_a_cell_of_the_timeline_is_the_state_of_that_seat_in_that_step(config: Config) -> None:
    made = run(config, static=True)
    figure = timeline(made)
    picture, hover = figure["data"][0], figure["hover"]
    for step, states in enumerate(made.seats.states):
        shown = [SeatState.DECODE if row[step] == 5 else row[step] for row in picture["z"]]
        assert shown == states
        assert [row[step] for row in hover["requests"]] == made.seats.requests[step]
    assert len(picture["x"]) == len(made.seats.at) + 1
    assert figure["data"][1]["y"] == list(made.copies[0].steps.waiting)


def test_seats_beyond_those_written_down_are_empty(config: Config) -> None:
    made = run(config, static=True)
    made.seats.states[0], made.seats.requests[0] = [SeatState.PREFILL], [0]
    made.seats.tokens[0] = [100]
    figure = timeline(made)
    assert [row[0] for row in figure["data"][0]["z"]] == [1, 0, 0, 0, 0, 0, 0, 0]
    assert [row[0] for row in figure["hover"]["requests"]] == [0, *[-1] * 7]


def test_one_answer_is_told_from_the_next_of_the_same_seat() -> None:
    prompt, answer = SeatState.PREFILL, SeatState.DECODE
    states = [[prompt, answer, prompt, answer, answer, prompt, answer]]
    owners = [[4, 4, 6, 6, 6, 8, 8]]
    (row,) = shaded([[int(state) for state in states[0]]], owners)
    assert row == [1, 2, 1, 5, 5, 1, 2]


def test_static_batching_leaves_more_of_the_picture_empty(config: Config) -> None:
    static, continuous = (run(config, static=is_static) for is_static in (True, False))
    assert window_empty_share(static) > 0.5 > 0.2 > window_empty_share(continuous)
    assert math.isnan(window_empty_share(replace(static, seats=Seats())))


def test_a_thousand_seats_are_shown_over_fewer_steps() -> None:
    seats = Seats(at=[0.0] * 400, states=[[SeatState.DECODE] * 1000] * 400)
    assert readable(seats) * 1000 <= MOST_CELLS + 60 * 1000
    assert readable(seats) >= 60
    assert readable(Seats(at=[0.0] * 400, states=[[SeatState.DECODE] * 16] * 400)) == 400


def test_pictures_beside_each_other_end_at_the_same_time(config: Config) -> None:
    runs = [run(config, static=is_static) for is_static in (True, False)]
    last = together(runs)
    assert last == pytest.approx(runs[1].seats.at[-1])
    for made in runs:
        buttons = timeline(made, last=last)["layout"]["updatemenus"][0]["buttons"]
        assert buttons[1]["args"][1]["xaxis.range"] == [0, last]


def test_a_distribution_is_the_share_that_is_at_most_so_long() -> None:
    x, y = curve([(10.0, 90), (30.0, 9), (100.0, 1)])
    assert x == sorted(x)
    assert max(value for value, share in zip(x, y, strict=True) if share <= 90) == 10
    assert (x[-1], y[-1]) == (100.0, 100.0)
    assert curve([]) == ([], [])


def test_gaps_count_as_often_as_they_were_seen_and_the_warm_up_does_not(config: Config) -> None:
    made = run(config, static=False)
    found = values(made, PLAIN, "itl")
    assert sum(count for _, count in found) == sum(made.copies[0].steps.decodes)
    late = values(made, report(warm_up_s=made.seconds + 1), "itl")
    assert late == []


def test_pauses_after_the_last_arrival_are_in_no_number_and_in_no_picture(config: Config) -> None:
    """Nobody comes any more, so batches get smaller and pauses shorter."""
    made = run(config, static=False)
    last = made.seconds / 2
    made.served[-1] = made.served[-1]._replace(at=last)
    gaps = made.copies[0].gaps
    seen = sum(count for at, count in zip(gaps.at, gaps.count, strict=True) if at < last)
    assert sum(count for _, count in values(made, PLAIN, "itl")) == seen


def test_a_logarithmic_axis_has_its_numbers_in_full() -> None:
    assert ticks([30.0, 90.0])["ticktext"] == ["10", "20", "50", "100", "200", "500"]
    assert ticks([0.5, 2e6])["ticktext"][-2:] == ["1,000,000", "10,000,000"]
    assert ticks([]) == {}


def test_targets_are_drawn_where_they_are_set(config: Config) -> None:
    both = comparison(config)
    shown = list(zip(both.names, both.runs, both.reports, strict=True))
    texts = [note["text"] for note in distributions(shown)["layout"]["annotations"]]
    assert texts == ["target 1000 ms at p95", "target 50 ms at p95"]
    bare = [("x", both.runs[0], report(targets=()))]
    assert distributions(bare)["layout"]["annotations"] == []


def test_requests_end_in_time_late_or_not_at_all(config: Config) -> None:
    made = run(config, static=True)
    made.served[0] = made.served[0]._replace(end="refused", first_token_at=None)
    counts = ended(made, 0.0)
    assert counts["refused"] == 1
    assert counts["late"] == sum((each.ttft_s or 0) > 1.0 for each in made.served)
    assert sum(counts.values()) == len(made.served)


def test_nobody_waits_for_class_batch_so_it_is_never_late(config: Config) -> None:
    made = run(config, static=True)
    made.served = [one._replace(slo_class="batch") for one in made.served]
    assert ended(made, 0.0)["in time"] == len(made.served)


def test_who_came_while_it_warmed_up_is_not_among_those_who_ended(config: Config) -> None:
    made = run(config, static=True)
    made.served = [one._replace(at=float(place)) for place, one in enumerate(made.served)]
    assert sum(ended(made, 20.0).values()) == len(made.served) - 20
