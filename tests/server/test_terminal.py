"""What start-up says."""

import json
import shlex

import pytest
from rich.console import Console

from servekit.server.lifecycle import Phase
from servekit.server.terminal import Bars, Lines, amount, curl_line, reachable


@pytest.mark.parametrize(
    ("phase", "expected"),
    [
        (Phase("fetch", 0.0, done=12_000_000, total=98_000_000), "12 of 98 MB"),
        (Phase("fetch", 0.0, done=12_000_000), "12 MB"),
        (Phase("warmup", 0.0, done=3, total=7), "3 of 7"),
        (Phase("start", 0.0), ""),
    ],
)
def test_an_amount_has_its_unit(phase: Phase, expected: str) -> None:
    assert amount(phase) == expected


def test_lines_say_the_beginning_and_the_end_of_a_phase_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines, phase = Lines(), Phase("load", started=0.0, done=5_000_000, total=10_000_000)
    lines.show([phase])
    lines.show([phase])
    phase.ended, phase.done = 2.0, 10_000_000
    lines.show([phase])
    lines.show([phase])
    said = capsys.readouterr().err.splitlines()
    assert said == ["load running 5 of 10 MB", "load done in 2.0 s 10 of 10 MB"]


def test_bars_show_every_phase_and_survive_being_closed() -> None:
    console = Console(force_terminal=True, width=100, record=True)
    bars = Bars(console)
    bars.show([Phase("fetch", 0.0, ended=1.0), Phase("load", 0.0, done=5_000_000, total=9_000_000)])
    bars.close()
    bars.say("ready [here] " + "long " * 40 + "line")
    text = console.export_text()
    assert "fetch" in text
    assert "5 of 9 MB" in text
    assert f"ready [here] {'long ' * 40}line\n" in text, "a line to paste is not broken"


def test_the_line_to_paste_is_one_shell_command_with_json_in_it() -> None:
    words = shlex.split(curl_line("http://127.0.0.1:1", "it's", chat=True, keyed=False))
    assert words[:3] == ["curl", "-N", "http://127.0.0.1:1/v1/chat/completions"]
    assert json.loads(words[-1])["model"] == "it's"


@pytest.mark.parametrize(
    ("listens", "asked"),
    [
        ("https://0.0.0.0:8000", "https://127.0.0.1:8000"),
        ("http://[::]:80", "http://[::1]:80"),
        ("http://10.0.0.0:8000", "http://10.0.0.0:8000"),
    ],
)
def test_the_line_to_paste_names_an_address_that_a_client_can_use(listens: str, asked: str) -> None:
    assert reachable(listens) == asked


def test_a_certificate_of_another_address_is_taken() -> None:
    words = shlex.split(curl_line("https://a", "m", chat=True, keyed=False, unnamed=True))
    assert words[:3] == ["curl", "-N", "-k"]


def test_a_model_without_a_chat_template_is_asked_to_complete() -> None:
    words = shlex.split(curl_line("http://127.0.0.1:1", "base", chat=False, keyed=True))
    assert words[2] == "http://127.0.0.1:1/v1/completions"
    assert words[3:5] == ["-H", "authorization: Bearer $KEY"]
    assert "prompt" in json.loads(words[-1])
