"""`servekit diff` of words: what changed, what it does, because of what, and when it is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from servekit.errors import ConfigError
from servekit.planner.diff.diff import are_words, main
from servekit.planner.diff.difference import band_of
from servekit.planner.metrics import LABELS, Family, Metric
from tests.planner.diff_pairs import BASE, pair

FP8 = f"{BASE} kv.dtype=fp8"
RUN: dict[str, Any] = {"as_json": True, "markdown": False, "fail_on": None}


def report(capsys: pytest.CaptureFixture[str], *words: str, **given: Any) -> dict[str, Any]:
    code = main(words, None, **{**RUN, **given})
    read: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert read["exit_code"] == code
    return read


def of(family: Family, value: float, band: float) -> Metric:
    return Metric("m", value, band, unit="", better="higher", family=family)


@pytest.mark.parametrize(
    "argument", ["", " ", "a=1", "+recipe=a", "+recipe=a kv.dtype=fp8", "~kv", "a '+b=c'"]
)
def test_an_argument_with_a_key_in_it_is_words(argument: str) -> None:
    assert are_words(argument)


@pytest.mark.parametrize("argument", ["main", "HEAD~1", "v1.0", "c++", "HEAD@{1 day ago}", "a/b"])
def test_anything_else_is_a_revision(argument: str) -> None:
    assert not are_words(argument)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "diff takes two lists of words"),
        ((BASE,), "diff takes two lists of words"),
        ((BASE, "main"), "are words and a revision"),
        ((BASE, FP8, "chat"), "after two lists of words comes nothing, here 'chat'"),
        ((BASE, f"{BASE} model.name='a"), "a quote that is not closed"),
    ],
)
def test_arguments_that_are_not_two_sides_are_refused(words: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        main(words, None, **RUN)


def test_two_formats_at_once_are_refused() -> None:
    with pytest.raises(ConfigError, match="--json and --markdown"):
        main([BASE, FP8], None, as_json=True, markdown=True, fail_on=None)


def test_a_policy_that_does_not_exist_is_refused_before_anything_is_compared() -> None:
    with pytest.raises(ConfigError, match="no policy 'bogus'"):
        main(["nowhere", "never"], None, as_json=False, markdown=False, fail_on="bogus")


def test_json_has_the_keys_that_scripts_rely_on(capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = report(capsys, BASE, FP8)["pairs"]
    assert found["name"] == "chat_llama8b"
    (leaf,) = found["changed"]
    assert leaf == {
        "key": "kv.dtype",
        "before": "bfloat16",
        "after": "fp8",
        "origin": "the command line (kv.dtype=fp8)",
        "cause": "kv.dtype",
    }
    assert set(found["verdict"]) == {"before", "after", "because"}
    assert list(found["metrics"]) == list(LABELS)
    keys = {"before", "after", "delta", "band", "significant", "unit", "better", "by"}
    assert all(set(metric) == keys for metric in found["metrics"].values())
    (note,) = found["notes"]
    assert note.startswith("kv.dtype bfloat16 -> fp8")
    assert found["failed"] == []


def test_half_the_bytes_of_a_token_double_the_capacity(
    capsys: pytest.CaptureFixture[str],
) -> None:
    (found,) = report(capsys, BASE, FP8)["pairs"]
    capacity = found["metrics"]["capacity_tokens"]
    assert capacity["after"] == pytest.approx(2 * capacity["before"], rel=1e-3)
    assert capacity["by"] == {"kv.dtype": capacity["delta"]}
    assert capacity["significant"]


def test_times_of_more_traffic_than_can_be_served_are_not_compared(
    capsys: pytest.CaptureFixture[str],
) -> None:
    flood = " workload.request_rate=500"
    (found,) = report(capsys, BASE + flood, FP8 + flood)["pairs"]
    assert found["metrics"]["tpot_p50_ms"]["before"] is None
    assert found["metrics"]["tpot_p50_ms"]["after"] is None
    assert found["metrics"]["output_tokens_per_s"]["delta"] > 0


def test_shares_of_several_leaves_sum_to_the_change(capsys: pytest.CaptureFixture[str]) -> None:
    after = f"{FP8} model.max_model_len=8192 scheduler.max_num_seqs=64 hardware=a100_80g"
    (found,) = report(capsys, BASE, after)["pairs"]
    for name, metric in found["metrics"].items():
        if metric["delta"] is not None:
            total = sum(metric["by"].values())
            assert total == pytest.approx(metric["delta"], rel=1e-9, abs=1e-9), name
    assert set(found["metrics"]["max_concurrency"]["by"]) == {
        *("hardware", "kv.dtype", "model.max_model_len", "scheduler.max_num_seqs")
    }


def test_what_moves_no_number_is_listed_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = report(capsys, BASE, f"{FP8} server.port=9000")["pairs"]
    assert found["no_effect"] == ["server.port"]


def test_words_that_mean_the_same_are_unchanged(capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = report(capsys, BASE, f"{BASE} kv.dtype=bfloat16")["pairs"]
    assert (found["status"], found["changed"]) == ("unchanged", [])
    assert all(metric["delta"] in (0, None) for metric in found["metrics"].values())


def test_no_words_at_all_are_the_default_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = report(capsys, "", "kv.block_size=32")["pairs"]
    assert [leaf["key"] for leaf in found["changed"]] == ["kv.block_size"]


def test_words_are_split_as_a_shell_splits_them(capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = report(capsys, BASE, f"{BASE} 'model.name=\"a b\"'")["pairs"]
    assert [leaf["after"] for leaf in found["changed"]] == ["a b"]


def test_a_deployment_that_no_longer_fits_says_because_of_what() -> None:
    found = pair(BASE, f"{BASE} hardware=l4 server.port=9000")
    unfit = pair(BASE, f"{BASE} kv.memory_gib=200 server.port=9000")
    assert found.because != ("server.port",)
    assert unfit.verdicts == ("ok", "does_not_fit")
    assert unfit.because == ("kv.memory_gib",)
    assert unfit.change("ttft_p50_ms").after is None
    assert unfit.change("ttft_p50_ms").significant


def test_an_invalid_side_is_reported_and_exits_with_two(
    capsys: pytest.CaptureFixture[str],
) -> None:
    read = report(capsys, BASE, "kv.memory_gibi=1")
    (found,) = read["pairs"]
    assert read["exit_code"] == 2
    assert found["status"] == "invalid"
    assert found["verdict"]["after"] == "invalid"
    assert "did you mean kv.memory_gib" in found["problems"]["after"][0]
    assert found["metrics"] == {}


def test_a_broken_policy_exits_with_two_and_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    words = [BASE, f"{BASE} kv.memory_gib=10"]
    read = report(capsys, *words, fail_on="does_not_fit,capacity>10%")
    (failed,) = read["pairs"][0]["failed"]
    assert (read["exit_code"], failed["policy"]) == (2, "capacity>10%")
    assert failed["reason"].startswith("capacity_tokens is ")
    assert report(capsys, *words, fail_on="does_not_fit")["exit_code"] == 0
    assert report(capsys, *words)["exit_code"] == 0


def test_a_folder_of_options_counts_on_both_sides(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kv").mkdir()
    (tmp_path / "kv" / "mine.yaml").write_text("defaults: [paged]\nblock_size: 32\n")
    main(["kv=mine", "kv=mine kv.block_size=64"], str(tmp_path), **RUN)
    (found,) = json.loads(capsys.readouterr().out)["pairs"]
    assert (found["changed"][0]["before"], found["changed"][0]["after"]) == (32, 64)


def test_one_model_on_both_sides_errs_alike() -> None:
    band = band_of(of("speed", 100, 15), of("speed", 120, 18), ["scheduler.max_num_seqs"])
    assert band == pytest.approx(0.15 * 20)


@pytest.mark.parametrize("key", ["hardware.bandwidth_gb_s", "quantization.weights"])
def test_two_models_err_apart(key: str) -> None:
    band = band_of(of("speed", 100, 15), of("speed", 120, 18), [key])
    assert band == pytest.approx((15**2 + 18**2) ** 0.5)


@pytest.mark.parametrize("key", ["hardware.usd_per_hour", "hardware.name", "model.max_model_len"])
def test_a_key_that_chooses_no_model_leaves_the_error_common(key: str) -> None:
    assert band_of(of("speed", 100, 15), of("speed", 120, 18), [key]) == pytest.approx(3)


def test_a_modelled_difference_below_what_a_model_resolves_is_none() -> None:
    assert band_of(of("speed", 100, 15), of("speed", 101, 15), []) == pytest.approx(2.02)


def test_an_exact_difference_is_only_rounded() -> None:
    assert band_of(of("memory", 1000, 0), of("memory", 1010, 0), ["hardware.name"]) == 1.01
