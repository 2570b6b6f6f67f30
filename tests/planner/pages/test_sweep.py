"""Many plans are one table that fits the terminal, and what is wrong stands below it."""

import json
from collections.abc import Sequence
from functools import cache

import pytest
from rich.console import Console

from servekit.config.compose import Composed, load
from servekit.planner.pages.sweep import Row, main, render, rows

MODEL = "model=llama3_8b"
JOBS = [
    [MODEL, f"hardware={card}", f"kv.dtype={dtype}", f"model.max_model_len={length}"]
    for card in ("l4", "a100_80g", "h100")
    for dtype in ("auto", "fp8")
    for length in (8192, 131072, 999999)
]


def compose(words: Sequence[str]) -> Composed:
    return load([*words, "calibration=none"])


@cache
def found() -> tuple[Row, ...]:
    return tuple(rows(JOBS, compose, advise=False))


def page(table: Sequence[Row], width: int) -> list[str]:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(render(list(table), width))
    return [line.rstrip() for line in console.export_text().splitlines()]


@pytest.mark.parametrize("width", [80, 100, 140])
def test_every_combination_is_one_line_whatever_the_width(width: int) -> None:
    lines = page(found(), width)
    assert max(map(len, lines)) <= width
    table = lines[2 : 2 + 1 + len(JOBS)]
    assert all(line.startswith(("l4 ", "a100_80g ", "h100 ")) for line in table[1:])
    assert "…" not in "\n".join(table)


def test_words_that_all_share_are_the_title_and_the_others_are_columns() -> None:
    lines = page(found(), 140)
    assert lines[0] == MODEL
    assert lines[2].split()[:4] == ["hardware", "kv.dtype", "max_model_len", "verdict"]


def test_a_wide_terminal_has_every_column_and_a_narrow_one_those_that_matter() -> None:
    assert page(found(), 140)[2].endswith("$/Mtok")
    assert "weights GiB" in page(found(), 140)[2]
    narrow = page(found(), 80)[2]
    assert "$/Mtok" in narrow
    assert "at once" in narrow
    assert "weights" not in narrow
    assert "a wider terminal also has weights GiB" in " ".join(page(found(), 80))
    assert "wider" not in " ".join(page(found(), 140))


def test_numbers_end_in_one_column() -> None:
    lines = page(found(), 140)[2:21]
    end = lines[0].index("at once") + len("at once")
    values = [line[end - 7 : end] for line in lines[1:]]
    assert all(not value.strip() or value[-1].isdigit() for value in values)


def test_a_combination_that_does_not_compose_is_a_row_and_stops_no_other() -> None:
    verdicts = [row.verdict for row in found()]
    assert verdicts.count("invalid") == 6
    assert verdicts.count("ok") == 10
    assert verdicts.count("does_not_fit") == 2


def test_a_reason_is_given_once_with_the_words_that_bring_it() -> None:
    text = "\n".join(page(found(), 140))
    assert text.count("more than this model's 131072 positions") == 1
    assert "\nmodel.max_model_len=999999\n  the configuration has an error" in text
    assert "\nhardware=l4 kv.dtype=fp8 model.max_model_len=131072\n  the KV cache holds" in text


def test_the_exit_code_is_the_worst(capsys: pytest.CaptureFixture[str]) -> None:
    good = [[MODEL, "hardware=h100", "kv.dtype=fp8"], [MODEL, "hardware=h100", "kv.dtype=auto"]]
    assert main(good, compose, as_json=False) == 0
    assert main([*good, [MODEL, "hardware=nope"]], compose, as_json=False) == 2
    assert "hardware has no 'nope'" in capsys.readouterr().out


def test_json_is_an_array_of_words_with_a_plan_or_an_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    jobs = [[MODEL, "hardware=h100"], [MODEL, "hardware=nope"]]
    assert main(jobs, compose, as_json=True) == 2
    first, second = json.loads(capsys.readouterr().out)
    assert first["words"] == jobs[0]
    assert first["plan"]["verdict"] == "ok"
    assert second["words"] == jobs[1]
    assert "nope" in second["error"]


def test_a_sweep_of_one_is_a_table_of_one() -> None:
    (row,) = rows([[MODEL, "hardware=h100"]], compose, advise=False)
    lines = page([row], 80)
    assert lines[0] == f"{MODEL} hardware=h100"
    assert lines[3].startswith("ok ")


def test_recipes_are_labels_too() -> None:
    table = list(rows([["+recipe=chat_smollm2"], ["+recipe=chat_llama8b"]], compose, advise=False))
    assert [line.split()[0] for line in page(table, 100)[:3]] == [
        *("recipe", "chat_smollm2", "chat_llama8b")
    ]
