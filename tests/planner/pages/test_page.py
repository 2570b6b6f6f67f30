"""The page reads well at 80 and 140 columns, without colour, verdict first."""

import io
import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from servekit.config.compose import load
from servekit.config.schema import Config
from servekit.planner.pages.bars import FILLS, cells, memory_bar, sizes
from servekit.planner.pages.page import main, render
from servekit.planner.plan import plan
from servekit.spec.memory import ledger
from tests.conftest import tiny_config

WORDS = {
    "ok": "model=llama3_8b hardware=h100 slo=chat workload=chat",
    "does_not_fit": "model=llama3_70b hardware=h100",
    "misses_slo": "model=llama3_70b hardware=h100 parallelism=tp4 slo=chat slo.tpot_ms=14",
    "impossible": "model=llama3_70b hardware=h100 parallelism=tp4 slo=chat slo.tpot_ms=5",
    "experts": "model=deepseek_v3 hardware=h200 parallelism=tp8_pp2 quantization=fp8_block "
    "slo=chat",
    "cpu": "+recipe=chat_smollm2",
    "priceless": "model=llama3_8b hardware=h100 hardware.usd_per_hour=null",
    "overloaded": "model=llama3_8b hardware=l4 model.max_model_len=2048 workload.request_rate=900",
}


def composed(name: str) -> Config:
    return load([*WORDS[name].split(), "calibration=none"]).config


def page(config: Config, width: int) -> list[str]:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(render(plan(config), width))
    return [line.rstrip() for line in console.export_text().splitlines()]


def part(lines: list[str], title: str) -> list[str]:
    """The lines of a section, to the next empty one at the margin."""
    start = next(place for place, line in enumerate(lines) if line.startswith(title))
    ends = [place for place in range(start + 1, len(lines)) if lines[place][:1].strip()]
    return lines[start : ends[0] if ends else len(lines)]


@pytest.mark.parametrize("width", [80, 100, 140])
@pytest.mark.parametrize("name", WORDS)
def test_no_line_is_too_long_and_no_cell_is_cut(name: str, width: int) -> None:
    lines = page(composed(name), width)
    assert max(map(len, lines)) <= width
    assert "…" not in "\n".join(lines)


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("ok", "FITS  73."),
        ("does_not_fit", "DOES NOT FIT  weights, activations and runtime take"),
        ("misses_slo", "MISSES SLO  time per output token: p95 is"),
        ("impossible", "IMPOSSIBLE  time per output token: reading 3"),
        ("experts", "FITS  13"),
        ("cpu", "FITS  "),
    ],
)
def test_the_verdict_comes_first_with_the_sentence_why(name: str, start: str) -> None:
    assert page(composed(name), 140)[0].startswith(start)


def test_what_the_band_does_not_decide_is_unsure_and_says_why() -> None:
    config = load(["model=llama3_8b", "hardware=l4", "model.max_model_len=8192", "slo=chat"]).config
    near = plan(config, advise=False)
    assert near.prediction is not None
    predicted = near.prediction.at_slo.tpot_ms
    assert predicted is not None
    tree = {**dict(config), "slo": {**dict(config.slo), "ttft_ms": None, "tpot_ms": predicted}}
    assert page(Config.model_validate(tree), 140)[0].startswith(
        "UNSURE  time per output token: p95 is"
    )


def test_the_subject_is_the_second_line() -> None:
    assert page(composed("experts"), 140)[1] == (
        "default: deepseek-v3, 671 B parameters in fp8_block, on 16 x H200 141 GB"
    )


def test_a_pipeline_says_which_stage_is_the_worst() -> None:
    text = "\n".join(page(composed("experts"), 140))
    assert "Memory of one device, pipeline stage 1 of 0-1: the worst" in text


def test_the_memory_table_sums_to_the_device() -> None:
    rows = [line.split() for line in part(page(composed("ok"), 140), "Memory")[4:] if line]
    values = {row[-len(row) + (row[0] in FILLS.values())]: row for row in rows}
    gib = {name: float(row[1 + (row[0] in FILLS.values())]) for name, row in values.items()}
    device = gib.pop("device")
    assert sum(gib.values()) == pytest.approx(device, abs=0.05)


def test_every_component_has_its_standing_and_its_band() -> None:
    lines = part(page(composed("ok"), 140), "Memory")
    weights = next(line for line in lines if "weights" in line).split()
    assert weights == [
        "█",
        "weights",
        "14.99",
        "19",
        "0.07",
        "exact",
        *["parameters", "in", "bfloat16"],
    ]


def test_capacity_is_said_at_two_eight_and_all_thousand_tokens() -> None:
    lines = part(page(composed("ok"), 80), "KV cache")
    heads, values = lines[-3].split(), lines[-2].split()
    assert heads == ["requests", "of", "2,048", "8,192", "131,072", "tokens"]
    assert len(values) == 5


def test_latency_stands_beside_its_targets() -> None:
    lines = part(page(composed("ok"), 80), "Latency")
    assert lines[0] == "Latency at 1 request/s of 1,155 tokens in and 211 out, on average"
    assert lines[1].split() == ["ms", "p50", "p95", "p99", "±", "p95", "target", "verdict"]
    assert lines[2].split()[-4:] == ["15", "%", "1,000", "meets"]
    assert len(lines[4].split()) == 7


def test_another_percentile_has_a_column_of_its_own() -> None:
    config = composed("ok")
    tree = {**dict(config), "slo": {**dict(config.slo), "percentile": 90}}
    head = part(page(Config.model_validate(tree), 80), "Latency")[1]
    assert head.split() == ["ms", "p50", "p95", "p99", "p90", "±", "p90", "target", "verdict"]


def test_a_queue_that_only_grows_has_no_end() -> None:
    lines = part(page(composed("overloaded"), 80), "Latency")
    assert lines[2].split()[4:7] == ["∞", "∞", "∞"]


def test_targets_of_goodput_and_cost_stand_beside_theirs() -> None:
    targets = ["slo.goodput_per_s=1", "slo.usd_per_million_output_tokens=0.01"]
    config = load([*WORDS["ok"].split(), *targets]).config
    lines = part(page(config, 140), "Throughput")
    assert lines[2].endswith("requests/s within the targets; target 1: meets")
    assert lines[4].endswith("at goodput; target 0.01: misses")


def test_without_a_price_nothing_is_said_of_cost() -> None:
    lines = part(page(composed("priceless"), 80), "Throughput")
    assert not any("USD" in line for line in lines)


def test_a_refusal_ends_with_words_to_paste_and_what_they_do() -> None:
    lines = part(page(composed("does_not_fit"), 140), "What would mend it")
    first = plan(composed("does_not_fit")).advice[0]
    assert lines[1].startswith(f"  + {' '.join(first.overrides)}: 0.00 -> ")
    assert "full-length requests at once" in lines[1]


def test_what_does_not_fit_has_neither_latency_nor_capacity() -> None:
    text = "\n".join(page(composed("does_not_fit"), 140))
    assert "Latency" not in text
    assert "no room for it; a token takes 327,680 bytes" in text


def test_warnings_are_on_the_page() -> None:
    text = "\n".join(page(tiny_config(kv={"capacity_tokens": 128}), 140))
    assert "! kv.capacity_tokens holds 128 tokens" in text


@pytest.mark.parametrize("width", [78, 138])
def test_the_bar_is_as_long_as_there_is_room_up_to_a_hundred(width: int) -> None:
    assert len(memory_bar(ledger(composed("ok")), width)) == min(width, 100)
    assert len(memory_bar(ledger(composed("does_not_fit")), width)) == min(width, 100)


def test_a_stroke_shows_where_the_device_ends() -> None:
    over = memory_bar(ledger(composed("does_not_fit")), 78).plain
    book = ledger(composed("does_not_fit"))
    share = book.total_bytes / book.used_bytes
    assert over.index("┃") == pytest.approx(78 * share, abs=1.5)
    assert "┃" not in memory_bar(ledger(composed("ok")), 78).plain


def test_the_bar_shows_something_of_everything_there_is() -> None:
    book = ledger(composed("ok"))
    bar = memory_bar(book, 78).plain
    assert set(bar) == {FILLS[name] for name in sizes(book)}


def test_every_component_has_a_glyph_of_its_own() -> None:
    assert set(FILLS) == {*ledger(tiny_config()).components, "unused"}
    assert len(set(FILLS.values())) == len(FILLS)


@given(
    st.dictionaries(st.sampled_from(sorted(FILLS)), st.integers(1, 10**12), min_size=1),
    st.integers(20, 200),
)
def test_cells_fill_the_room_and_leave_nobody_out(parts: dict[str, int], room: int) -> None:
    found = cells(parts, sum(parts.values()), room)
    assert sum(found.values()) == room
    assert all(count >= 1 for count in found.values())


def test_without_colours_no_escape_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    main(made(tiny_config()), as_json=False)
    assert "\x1b" not in capsys.readouterr().out


def made(config: Config) -> Any:
    return SimpleNamespace(config=config, origins={})


def test_json_is_the_plan_and_the_exit_code_its_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(made(tiny_config()), as_json=True) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "ok"
    assert main(made(composed("does_not_fit")), as_json=True) == 2
    assert json.loads(capsys.readouterr().out)["verdict"] == "does_not_fit"


def test_the_page_has_the_same_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(made(tiny_config()), as_json=False) == 0
    assert main(made(composed("impossible")), as_json=False) == 2
    assert "FITS" in capsys.readouterr().out
