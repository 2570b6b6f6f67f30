"""The report on a change, as a comment of a pull request and as a page of the terminal."""

import io

import pytest
from rich.console import Console

from servekit.planner.diff.difference import Leaf, Pair
from servekit.planner.diff.markdown import markdown
from servekit.planner.diff.page import page
from servekit.planner.diff.report import Report
from servekit.planner.diff.text import changed, number, percent
from tests.planner.diff_pairs import BASE, change, made, pair

CHAT = made(
    change("kv_gib", 52.0, 52.0),
    change("capacity_tokens", 1000.0, 2000.0, unit="tokens", by={"kv.dtype": 1000}),
    change("tpot_p95_ms", 10.0, 12.0, better="lower", unit="ms", band=1.5, by={"kv.dtype": 2}),
    change("goodput_per_s", 5.0, 5.5, unit="requests/s", band=0.8, by={"kv.dtype": 0.5}),
    change("usd_per_hour", None, None, unit="USD/h"),
    notes=("kv.dtype bfloat16 -> fp8: fewer bits",),
    idle=("server.port",),
)

GOLDEN = """\
## servekit diff: `main` → `HEAD`

1 of 2 deployments changed.

**Refused by policy**

- `chat`: `tpot>5%`, tpot_p95_ms is 20.0% worse

### chat: ok, as before

| changed | from → to | written in |
|---|---|---|
| `kv.dtype` | `bfloat16 → fp8` | a.yaml:3 |

| | before | after | change | band | |
|---|--:|--:|--:|--:|---|
| capacity, tokens | 1,000 | 2,000 | +100% | exact | better |
| TPOT p95, ms | 10 | 12 | +20% | ±15% | **worse** |
| goodput, requests/s | 5 | 5.50 | +10% | ±16% | within band |

All of it comes from `kv.dtype`.

No effect on the plan: `server.port`.

**Take care**

- kv.dtype bfloat16 -> fp8: fewer bits

<details><summary>1 deployment unchanged</summary>

- `code`: ok

</details>
"""


def report(*pairs: Pair, broken: dict[str, tuple[tuple[str, str], ...]] | None = None) -> Report:
    return Report("main", "HEAD", pairs, broken or {})


def printed(found: Report, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(page(found))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_comment_is_the_same_to_the_byte() -> None:
    same = made(name="code", leaves=())
    found = report(CHAT, same, broken={"chat": (("tpot>5%", "tpot_p95_ms is 20.0% worse"),)})
    assert markdown(found) == GOLDEN == markdown(found)


def test_several_causes_have_a_line_each() -> None:
    both = made(
        change("capacity_tokens", 100.0, 160.0, by={"kv.dtype": 80, "model.max_model_len": -20})
    )
    text = markdown(report(both))
    assert "| `kv.dtype` | capacity +80% |" in text
    assert "| `model.max_model_len` | capacity -20% |" in text
    assert "All of it" not in text


def test_nothing_that_changed_is_said_in_a_sentence() -> None:
    assert "Nothing that is deployed changes." in markdown(report(made(leaves=())))


def test_words_of_a_configuration_cannot_break_the_comment() -> None:
    odd = made(
        leaves=(Leaf("model.name", "a", "x|y`z\n# title", "f", None),),
        notes=("model.name <img> [a](b)",),
    )
    text = markdown(report(odd))
    assert "x\\|y'z" in text
    assert "\n# title" not in text
    assert "- model.name &lt;img> \\[a\\](b)" in text


def test_an_invalid_side_shows_its_problems() -> None:
    wrong = pair(BASE, "kv.nothing=1")
    assert "### pair: ok → not valid" in markdown(report(wrong))
    assert "- not valid at kv.nothing=1:" in markdown(report(wrong))
    assert "kv.nothing: no such key (set to 1)" in printed(report(wrong))


@pytest.mark.parametrize("width", [80, 140])
def test_the_page_fits_its_width(width: int) -> None:
    words = f"{BASE} hardware=l4 kv.dtype=fp8 scheduler.max_num_seqs=64 server.port=9000"
    lines = printed(report(pair(BASE, words)), width).splitlines()
    assert max(map(len, lines)) <= width
    assert not any("…" in line for line in lines)


def test_the_page_folds_what_is_the_same() -> None:
    text = printed(report(CHAT))
    assert "The same: KV cache." in text
    assert "KV cache, GiB" not in text


def test_a_removed_deployment_has_no_numbers() -> None:
    text = printed(report(made(change("kv_gib", 1.0, None), after=None, leaves=())))
    assert "removed, was ok" in text
    assert "KV cache" not in text


def test_many_keys_of_one_option_are_counted() -> None:
    keys = ("kind", "memory_gib", "name", "threads")
    leaves = tuple(Leaf(f"hardware.{key}", "a", "b", "h.yaml:1", "hardware") for key in keys)
    assert changed(made(leaves=leaves)) == [("hardware (4 keys)", "a -> b", "h.yaml")]


def test_a_value_that_a_rule_gave_says_so() -> None:
    leaf = Leaf("scheduler.max_num_seqs", 1, 2, "derived: a long sentence", None)
    assert changed(made(leaves=(leaf,))) == [("scheduler.max_num_seqs", "1 -> 2", "by a rule")]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0.0, "0"),
        (0.1234, "0.123"),
        (0.001234, "0.0012"),
        (8.726, "8.73"),
        (123.45, "123.5"),
        (425472.0, "425,472"),
        (1234.5, "1,234"),
    ],
)
def test_numbers_have_the_digits_that_count(value: float | None, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [(5, 100, "+5.0%"), (-50, 100, "-50%"), (2000, 100, "+2,000%"), (3, 0, "+3"), (-3, None, "-3")],
)
def test_a_share_is_of_what_there_was(part: float, whole: float | None, text: str) -> None:
    assert percent(part, whole) == text
