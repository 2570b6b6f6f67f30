"""Words, files and streams that nobody means: refused in a sentence, or planned without a crash."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from servekit.cli import main
from servekit.config import site
from servekit.config.compose import load
from servekit.config.hf import read_config
from servekit.config.problems import InvalidConfig
from servekit.errors import ConfigError
from servekit.planner.plan import plan
from servekit.planner.startup.boot_lines import read_log
from servekit.planner.startup.measured import constants, measured

RECIPE = "+recipe=chat_llama8b"


@pytest.mark.parametrize(
    "word",
    [
        "hardware.memory_gib=1e308",
        "hardware.memory_gib=1e30",
        "kv.memory_gib=1e308",
        "hardware.link_gb_s=5e-324",
        "hardware.bandwidth_gb_s=1e-308",
        "model.shape.layers=1000000000",
        "model.shape.mtp_layers=1000000000",
        "speculative.tokens=1000000000",
        "workload.prompt_cv=1e300",
        "hardware.name=1",
        "hardware.name=[]",
        "parallelism.tensor=[1]",
        "model.quantized={}",
        "kv=" + "{a:" * 600 + "1" + "}" * 600,
        "kv.dtype=" + "[" * 600 + "]" * 600,
        "a." * 600 + "b=1",
        "x" * 300 + "=1",
    ],
)
def test_a_word_beyond_what_exists_is_refused(word: str) -> None:
    with pytest.raises(InvalidConfig):
        load([RECIPE, word])


def test_a_number_too_large_is_told_where_numbers_end() -> None:
    with pytest.raises(InvalidConfig, match=r"at least 1, or .*null; no number is above 10\^12"):
        load([RECIPE, "kv.capacity_tokens=10000000000000"])


@pytest.mark.parametrize(
    "word",
    ["hardware.memory_gib=1e9", "hardware.bandwidth_gb_s=1e-12", "workload.request_rate=1e12"],
)
def test_a_number_at_its_end_makes_strict_json(word: str) -> None:
    json.dumps(plan(load([RECIPE, word]).config).to_json(), allow_nan=False)


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("# GPU blocks: ,", "num_blocks"),
        ("# GPU blocks: " + "9" * 400, "num_blocks"),
        ("Maximum concurrency for , tokens per request: ...x", "concurrency"),
        ("Maximum concurrency for 8192 tokens per request: 1.2.3x", "concurrency"),
        ("tensor_parallel_size=" + "9" * 400, "tensor"),
    ],
)
def test_digits_that_are_no_number_are_not_read(tmp_path: Path, line: str, name: str) -> None:
    log = tmp_path / "boot.log"
    log.write_text(f"Model loading took , GiB\nAvailable KV cache memory: {'9' * 400} GiB\n{line}")
    found = read_log(log)
    assert (found.ranks, name in found.engine) == ({}, False)


def test_a_log_of_negative_graphs_gives_none(tmp_path: Path) -> None:
    log = tmp_path / "boot.log"
    log.write_text(
        "Model loading took 14.99 GiB\nGraph capturing finished in 3 secs, took -0.5 GiB"
    )
    config = load([RECIPE]).config
    learnt = constants(config, measured(read_log(log), config), "boot.log", same_steps=True)
    assert learnt.graphs_gib == 0


def test_what_is_no_plain_file_is_refused_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/zero")):
        with pytest.raises(ConfigError, match="Not a plain file"):
            read_config(str(path))
        with pytest.raises(ConfigError, match="Not a plain file"):
            read_log(path)


@pytest.mark.parametrize("path", ["x" * 300, "~nobody-of-that-name/config.json"])
def test_a_path_that_cannot_be_is_refused(path: str) -> None:
    with pytest.raises(ConfigError):
        read_config(path)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "", "[]", "{}", '{"m none": {"weights_ratio": NaN}}', '{"m none": 1}']
)
def test_a_damaged_site_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("SERVEKIT_SITE", str(tmp_path))
    file = site.file_for("H100 80 GB", 1, 1)
    file.write_text(text)
    with pytest.raises(ConfigError, match=file.name):
        site.constants_for("H100 80 GB", 1, 1, model="m none")


def test_a_log_may_be_called_auto(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVEKIT_SITE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    Path("auto").write_text("Model loading took 14.99 GiB\n")
    assert main(["plan", "--from-log", "auto", RECIPE]) == 0
    learnt = load([RECIPE]).config.calibration.constants
    assert learnt is not None
    assert learnt.source == "auto"


@pytest.mark.parametrize("name", ["lost", "self"])
def test_a_link_that_leads_nowhere_is_no_recipe(tmp_path: Path, name: str) -> None:
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / f"{name}.yaml").symlink_to("self.yaml")
    with pytest.raises(InvalidConfig, match=f"recipe has no '{name}'"):
        load([f"+recipe={name}"], str(tmp_path))


def test_a_recipe_that_refers_to_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "loop.yaml").write_text("# @package _global_\nname: &a [*a]\n")
    with pytest.raises(InvalidConfig, match="refers to itself"):
        load(["+recipe=loop"], str(tmp_path))


@pytest.mark.parametrize(("words", "code"), [("--version", 1), ("plan --json", 1)])
def test_a_full_disk_is_a_sentence(words: str, code: int) -> None:
    run = "import sys; from servekit.cli import main; sys.exit(main())"
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", run, *words.split()], stdout=full, stderr=subprocess.PIPE
        )
    assert done.returncode == code
    assert done.stderr == b"servekit: the output cannot be written: No space left on device\n"
