"""The words and flags of `servekit simulate`."""

import json
from pathlib import Path

import pytest

from servekit.cli import main, parse
from servekit.config.compose import load
from servekit.errors import ConfigError
from servekit.simulator.simulate import REQUESTS, alternatives, requests_for, take_files

FAST = ["simulate", "+recipe=chat_llama8b", "--requests", "40", "--seeds=1"]


def test_a_report_in_json_says_how_many_it_is_of(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*FAST, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["requests"]["finished"] == 40


def test_a_page_begins_with_a_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(FAST) == 0
    assert "requests/s" in capsys.readouterr().out


def test_two_schedulers_are_compared_on_one_page(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    words = [*FAST, "--compare", "scheduler=static,continuous", "--html", str(page), "--json"]
    assert main(words) == 0
    said = json.loads(capsys.readouterr().out)
    assert [option["name"] for option in said["options"]] == ["static", "continuous"]
    assert page.read_text().lower().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--requests", "0"], "whole number of at least 1"),
        (["--seeds", "many"], "whole number of at least 1"),
        (["--compare", "scheduler=static"], "two values or more"),
        (["--compare", "static,continuous"], "two values or more"),
        (["--compare", "scheduler=static,static"], "twice"),
        (["--compare", "scheduler=static,none_such"], "none_such"),
        (["--html", "/none/such/page.html"], "no folder"),
        (["calibration=/none/such.jsonl"], "no file"),
        (["workload=none.csv"], "no file"),
        (["workload=none_such"], "none_such"),
        (["-m"], "--compare"),
    ],
)
def test_what_is_not_understood_is_an_error_of_configuration(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", "+recipe=chat_llama8b", *words]) == 2
    assert said in capsys.readouterr().err


def test_the_flags_are_of_this_verb_alone() -> None:
    with pytest.raises(ConfigError, match="servekit simulate"):
        parse(["plan", "--seeds", "2"])


def test_a_word_of_what_is_compared_gives_way_to_the_options() -> None:
    key, options = alternatives(
        "scheduler=static,continuous",
        ["+recipe=chat_llama8b", "scheduler=fair"],
        lambda words: load(words, None).config,
    )
    assert key == "scheduler"
    assert [config.scheduler.policy for _, config in options] == ["static", "continuous"]


def test_files_are_taken_for_a_step_log_and_a_trace(tmp_path: Path) -> None:
    trace = tmp_path / "it's a trace.csv"
    trace.write_text("")
    words, step_time = take_files([f"workload={trace}", "scheduler=fair", "calibration=none"])
    assert step_time is None
    assert words[1:] == ["scheduler=fair", "calibration=none"]
    config = load(["+recipe=chat_llama8b", words[0]], None).config
    assert config.workload.trace == str(trace)


def test_a_run_is_as_long_as_its_answers_allow() -> None:
    chat = load(["+recipe=chat_llama8b"], None).config
    longer = load(["+recipe=chat_llama8b", "workload.output_tokens=1000"], None).config
    assert REQUESTS[0] <= requests_for(longer) < requests_for(chat) <= REQUESTS[1]
