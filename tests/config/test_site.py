"""Constants of a site are kept by hardware, parallelism and model, and found again by a plan."""

from pathlib import Path
from typing import Any

import pytest

from servekit.config import site
from servekit.config.compose import load
from servekit.errors import ConfigError

CARD = ("H100 80 GB", 2, 1)
WORDS = ["model=llama3_8b", "hardware=h100"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(site.VARIABLE, str(tmp_path / "site"))
    return tmp_path / "site"


def constants(**changes: Any) -> dict[str, Any]:
    return {
        "source": "boot.log",
        "weights_ratio": 1.01,
        "activations_ratio": 0.9,
        "runtime_gib": 1.5,
        "graphs_gib": 0.8,
    } | changes


def test_what_was_stored_is_found_again(folder: Path) -> None:
    file = site.store(constants(), *CARD, model="a none")
    assert file == folder / "h100_80_gb_tp2_pp1.json"
    assert site.constants_for(*CARD, model="a none") == constants()


def test_nothing_is_found_where_nothing_was_stored() -> None:
    assert site.constants_for(*CARD, model="a none") is None


def test_another_parallelism_has_constants_of_its_own() -> None:
    site.store(constants(), *CARD, model="a none")
    assert site.constants_for("H100 80 GB", 4, 1, model="a none") is None
    assert site.constants_for("H100 80 GB", 2, 2, model="a none") is None


def test_another_model_gets_what_carries_over_of_the_newest_log() -> None:
    site.store(constants(runtime_gib=2.0), *CARD, model="a none")
    site.store(constants(runtime_gib=3.0), *CARD, model="b none")
    site.store(constants(runtime_gib=4.0), *CARD, model="a none")
    assert site.constants_for(*CARD, model="c none") == constants(
        weights_ratio=None, graphs_gib=None, runtime_gib=4.0
    )
    assert site.constants_for(*CARD, model="b none") == constants(runtime_gib=3.0)


def test_another_weight_format_is_another_model() -> None:
    assert site.model_key("a", "none") != site.model_key("a", "fp8")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"a": 1}', "\x00"])
def test_a_file_that_is_not_ours_is_named(text: str) -> None:
    file = site.store(constants(), *CARD, model="a none")
    file.write_text(text)
    with pytest.raises(ConfigError, match=f"{file}.*remove it"):
        site.constants_for(*CARD, model="a none")


def test_a_folder_that_cannot_be_written_is_named(folder: Path) -> None:
    folder.write_text("in the way")
    with pytest.raises(ConfigError, match=r"cannot be written.*SERVEKIT_SITE"):
        site.store(constants(), *CARD, model="a none")


def test_a_plan_of_the_same_words_takes_them_and_calibration_none_does_not() -> None:
    site.store(constants(), "H100 80 GB", 1, 1, model=site.model_key("llama-3.1-8b", "none"))
    found = load(WORDS).config.calibration.constants
    assert found is not None
    assert found.model_dump() == constants()
    assert load([*WORDS, "calibration=none"]).config.calibration.constants is None


def test_a_plan_of_another_format_takes_what_carries_over() -> None:
    site.store(constants(), "H100 80 GB", 1, 1, model=site.model_key("llama-3.1-8b", "none"))
    found = load([*WORDS, "quantization=fp8"]).config.calibration.constants
    assert found is not None
    assert (found.weights_ratio, found.runtime_gib) == (None, 1.5)


def test_constants_of_an_unknown_key_are_a_problem_of_the_configuration() -> None:
    site.store(constants(speed=2), "H100 80 GB", 1, 1, model=site.model_key("llama-3.1-8b", "none"))
    with pytest.raises(ConfigError, match="speed"):
        load(WORDS)
