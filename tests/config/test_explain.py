"""`servekit explain`: goldens of what is printed."""

import json
from pathlib import Path

import pytest

from servekit.config.explain import main
from servekit.config.schema import TelemetryConfig
from servekit.config.serving import ServerConfig
from servekit.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def test_a_key_has_value_meaning_unit_limits_and_history(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["scheduler.max_num_seqs", "+recipe=chat_smollm2"], None, False) == 0
    assert capsys.readouterr().out == (
        "scheduler.max_num_seqs = 64\n"
        "  meaning   requests that run at once\n"
        "  unit      requests\n"
        '  allowed   a whole number, at least 1, or "auto"\n'
        "  origin    from recipes/chat_smollm2.yaml:10\n"
        "  replaced  auto from conf/scheduler/continuous.yaml:6\n"
    )


def test_a_derived_key_names_its_rule(capsys: pytest.CaptureFixture[str]) -> None:
    main(["kv.dtype", "model.dtype=float32"], None, False)
    out = capsys.readouterr().out
    assert (
        '  allowed   one of bfloat16, float16, float32, fp8, int8, int4, nvfp4, or "auto"\n' in out
    )
    assert "  origin    derived: the same as model.dtype=float32\n" in out
    assert "  replaced  auto from conf/kv/paged.yaml:3\n" in out


def test_a_group_is_a_line_for_each_of_its_keys(capsys: pytest.CaptureFixture[str]) -> None:
    main(["server", "server.port=9000"], None, False)
    lines = capsys.readouterr().out.splitlines()
    keys = [f"server.{name}" for name in ServerConfig.model_fields]
    assert [line.split(" = ")[0] for line in lines] == keys
    assert lines[1].split()[2:] == ["9000", "the", "command", "line", "(server.port=9000)"]


def test_json_of_a_key_is_an_object_and_of_a_group_a_list(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main(["kv.memory_gib", "+recipe=chat_smollm2"], None, True)
    entry = json.loads(capsys.readouterr().out)
    assert entry["value"] == 1.0
    assert entry["unit"] == "GiB"
    assert entry["origin"] == {"kind": "file", "where": "recipes/chat_smollm2.yaml:11"}
    assert entry["replaced"] == [{"value": None, "kind": "file", "where": "conf/kv/paged.yaml:5"}]
    main(["telemetry"], None, True)
    keys = [entry["key"] for entry in json.loads(capsys.readouterr().out)]
    assert keys == [f"telemetry.{name}" for name in TelemetryConfig.model_fields]


def test_without_a_key_everything_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    main(["+recipe=chat_llama8b"], None, False)
    out = capsys.readouterr().out
    assert out.startswith("name = chat_llama8b ")
    assert "telemetry.exporter" in out


def test_the_key_may_stand_behind_the_words(capsys: pytest.CaptureFixture[str]) -> None:
    main(["+recipe=chat_smollm2", "kv.block_size"], None, False)
    assert capsys.readouterr().out.startswith("kv.block_size = ")


def test_two_keys_are_refused() -> None:
    with pytest.raises(ConfigError, match="takes one key or group, and kv and server are several"):
        main(["kv", "server"], None, False)


def test_a_misspelt_key_is_answered_with_its_name() -> None:
    with pytest.raises(ConfigError, match=r"did you mean scheduler\.max_num_seqs\?") as caught:
        main(["scheduler.max_num_sqs"], None, False)
    assert caught.value.exit_code == 2


def test_a_key_of_a_group_that_is_null_says_which() -> None:
    with pytest.raises(ConfigError, match=r"^calibration\.constants is null here, so there is no"):
        main(["calibration.constants.runtime_gib", "calibration=none"], None, False)


def test_a_key_of_another_kind_is_told_apart_from_one_that_does_not_exist() -> None:
    with pytest.raises(ConfigError, match=r"but not for the kind of model\.shape\.rope"):
        main(["model.shape.rope.factor"], None, False)
