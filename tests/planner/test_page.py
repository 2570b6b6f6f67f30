"""The page reads well at 80 and 140 columns, without colour, verdict first."""

import json
from types import SimpleNamespace

import pytest
from rich.console import Console

from servekit.config.schema import Config
from servekit.planner.page import main, render
from servekit.planner.plan import plan
from tests.conftest import tiny_config
from tests.spec import shapes


def page(config: Config, width: int) -> list[str]:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(render(plan(config)))
    return console.export_text().splitlines()


@pytest.mark.parametrize("width", [80, 140])
def test_the_verdict_comes_first_and_no_line_is_too_long(width: int) -> None:
    lines = page(shapes.deployment(shapes.LLAMA_8B, "h100"), width)
    assert lines[0] == "FITS  tiny"
    assert max(len(line) for line in lines) <= width


def test_a_refusal_names_the_problem_before_the_numbers_and_ends_with_advice() -> None:
    lines = page(shapes.deployment(shapes.LLAMA_70B, "h100"), 100)
    assert lines[0] == "DOES NOT FIT  tiny"
    assert lines[2].startswith("weights, activations and runtime take")
    assert "parallelism.tensor=2" in lines[-2]
    advice = page(shapes.deployment(shapes.LLAMA_70B, "h100"), 140)[-1]
    assert advice.rstrip().endswith("; this release only plans it")


def test_the_bar_shows_where_the_device_ends() -> None:
    bar = page(shapes.deployment(shapes.LLAMA_70B, "h100"), 100)[5]
    assert 0 < bar.index("┃") < len(bar.rstrip()) - 1
    fitting = page(shapes.deployment(shapes.LLAMA_8B, "h100"), 100)[4]
    assert "┃" not in fitting
    assert len(fitting.strip()) == 68


def test_warnings_are_on_the_page() -> None:
    text = "\n".join(page(tiny_config(kv={"capacity_tokens": 128}), 140))
    assert "! kv.capacity_tokens holds 128 tokens" in text


def test_json_is_the_plan_and_the_exit_code_its_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(SimpleNamespace(config=tiny_config()), as_json=True) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "ok"
    refused = shapes.deployment(shapes.LLAMA_70B, "h100")
    assert main(SimpleNamespace(config=refused), as_json=True) == 2
    assert json.loads(capsys.readouterr().out)["verdict"] == "does_not_fit"


def test_the_page_has_the_same_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(SimpleNamespace(config=tiny_config()), as_json=False) == 0
    assert "FITS" in capsys.readouterr().out
