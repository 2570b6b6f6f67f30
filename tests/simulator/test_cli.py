"""The words and flags of `servekit simulate`."""

import io
import json
from pathlib import Path

import pytest

from servekit.cli import main, parse
from servekit.config.compose import load
from servekit.errors import ConfigError
from servekit.simulator.progress import AFTER_S, Progress, progress
from servekit.simulator.run import simulate
from servekit.simulator.simulate import REQUESTS, requests_for
from servekit.simulator.words import alternatives, check_page, split, take_files

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
        (["--compare", "workload.tenants={a:1,{b:1}"], "lacks a }"),
        (["--compare", "workload=none.csv,azure_conv"], "no file none.csv"),
        (["--requests", "9" * 26], "at most"),
        (["--requests", "9" * 5000], "9999...: it is 10,000,000 at most"),
        (["--seeds", "1001"], "1,000 at most"),
        (["--html", "/none/such/page.html"], "no folder"),
        (["--html", "/"], "it is a folder"),
        (["--html", "/proc/page.html"], "cannot be written"),
        (["--html", "a" * 300], "cannot be written"),
        (["--html", "a\0b"], "cannot be written"),
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
    assert [one.config.scheduler.policy for one in options] == ["static", "continuous"]


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        ("a,b , c", ["a", "b", "c"]),
        ("{a:1,b:1},{a:1}", ["{a:1,b:1}", "{a:1}"]),
        ("[1,{x: [2,3]}],4", ["[1,{x: [2,3]}]", "4"]),
        ("'a,b',\"c,{d\"", ["'a,b'", '"c,{d"']),
        (r"'it\'s, that',b", [r"'it\'s, that'", "b"]),
        ("a)b,c", ["a)b", "c"]),
        ("", [""]),
    ],
)
def test_options_end_at_commas_outside_of_braces_and_quotes(values: str, parts: list[str]) -> None:
    assert split(values, "") == parts


def test_options_may_have_commas_in_them(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*FAST, "--json", "--compare", "workload.tenants={a:1,b:1},{a:1}"]
    assert main(words) == 0
    said = json.loads(capsys.readouterr().out)
    assert [option["name"] for option in said["options"]] == ["{a:1,b:1}", "{a:1}"]
    assert [len(option["report"]["tenants"]) for option in said["options"]] == [2, 1]


def test_traces_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    traces = []
    for name, count in (("one", 30), ("two", 50)):
        rows = [{"arrival_s": at, "input_tokens": 9, "output_tokens": 9} for at in range(count)]
        traces.append(tmp_path / f"{name}.jsonl")
        traces[-1].write_text("\n".join(map(json.dumps, rows)))
    words = ["simulate", "+recipe=chat_llama8b", "--seeds=1", f"workload={traces[1]}"]
    compared = ["--compare", f"workload={traces[0]},{traces[1]}"]
    assert main([*words, *compared, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [option["name"] for option in said["options"]] == list(map(str, traces))
    counts = [option["report"]["requests"]["finished"] for option in said["options"]]
    assert counts == [30, 30]
    assert main([*words, *compared, "--requests=40"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "simulated, not measured: 30 to 40 requests through each" in shown
    assert "Latency of workloads that differ" in shown


def step_log(path: Path, seconds: float) -> Path:
    steps = [
        {"decodes": size, "context": 100.0, "prefill": [], "seconds": seconds * (1 + size / 8)}
        for size in range(1, 50)
    ]
    steps += [
        {"decodes": size, "context": 90.0, "prefill": [[50 * size, 0]], "seconds": 9 * seconds}
        for size in range(1, 21)
    ]
    path.write_text("\n".join(map(json.dumps, steps)))
    return path


def test_step_logs_are_compared_each_with_its_own_times(tmp_path: Path) -> None:
    slow, fast = step_log(tmp_path / "slow.jsonl", 0.02), step_log(tmp_path / "fast.jsonl", 0.001)
    _, options = alternatives(
        f"calibration={slow},{fast}",
        ["+recipe=chat_llama8b", f"calibration={slow}"],
        lambda words: load(words, None).config,
    )
    took = [option.step_time.seconds(8, 100.0) for option in options if option.step_time]
    assert took[0] == pytest.approx(20 * took[1], rel=0.1)
    _, others = alternatives(
        "scheduler=static,continuous",
        ["+recipe=chat_llama8b", f"calibration={slow}"],
        lambda words: load(words, None).config,
    )
    assert all(option.step_time is not None for option in others)


def test_a_page_is_tried_before_the_run_and_leaves_nothing(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    check_page(str(page))
    assert not page.exists()
    page.write_text("what was there")
    check_page(str(page))
    assert page.read_text() == "what was there"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_long_run_says_on_a_terminal_how_far_it_is_and_takes_it_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    terminal = Terminal()
    with progress(1000, terminal) as ended:
        assert ended is not None
        ended()
        assert terminal.getvalue() == ""
        clock[0] = AFTER_S + 1
        ended()
        assert terminal.getvalue() == "\r2 of 1,000 requests, about 1,996 s left"
    assert terminal.getvalue().endswith("\r" + " " * 39 + "\r")


def test_nothing_is_said_where_stderr_is_no_terminal() -> None:
    with progress(1000, io.StringIO()) as ended:
        assert ended is None


def test_each_request_is_told_once() -> None:
    counter = Progress(60, Terminal())
    config = load(["+recipe=chat_llama8b", "workload.arrivals=closed"], None).config
    simulate(config, requests=60, seed=1, ended=counter)
    assert counter.done == 60


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
