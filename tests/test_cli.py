"""Verbs, flags and exit codes."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from servekit import __version__
from servekit.cli import VERB_VALUES, VERBS, main, parse
from servekit.errors import ConfigError

ROOT = Path(__file__).resolve().parents[1]
TOO_LARGE = ["model=llama3_70b", "hardware=l4"]


def child(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; from servekit.cli import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", code, *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, **environment},
    )


def test_the_verb_and_the_flags_are_taken_off_the_words() -> None:
    line = parse(["plan", "--json", "+recipe=x", "--config-dir", "mine", "a=1", "-m"])
    assert (line.verb, line.words) == ("plan", ["+recipe=x", "a=1"])
    assert line.as_json
    assert line.sweep
    assert line.config_dir == "mine"


def test_without_a_verb_the_words_are_served() -> None:
    line = parse(["+recipe=x"])
    assert (line.verb, line.words) == (None, ["+recipe=x"])


def test_flags_of_hydra_keep_their_values() -> None:
    line = parse(["plan", "--cfg", "job", "-p", "kv", "a=1", "--info", "--resolve"])
    assert line.hydra == ["--cfg", "job", "-p", "kv", "--info", "--resolve"]
    assert line.words == ["a=1"]


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("paln", "there is no command 'paln'; did you mean plan?"),
        ("--jsn", "there is no flag --jsn; did you mean --json?"),
        ("--config-dir", "--config-dir needs a folder after it"),
        ("--hydra-help", "there is no flag --hydra-help"),
        ("--cfg", "--cfg needs one of job, hydra, all after it"),
        ("--cfg foo", "--cfg needs one of job, hydra, all after it, not foo"),
        ("--info=foo", "--info needs one of all, config, defaults, defaults-tree"),
        ("-p", "-p needs a group, such as kv, after it"),
        ("-p kv", "-p goes with --cfg job"),
        ("--resolve=1", "--resolve takes no value, here '1'"),
        ("-sc", "-sc needs one of install=SHELL, uninstall=SHELL, query=SHELL after it"),
        ("-sc foo=bar", "here it has foo=bar"),
    ],
)
def test_what_does_not_exist_is_answered_with_what_does(word: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(word.split())
    assert says in str(caught.value)


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"]])
def test_help_has_verbs_recipes_and_groups(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 0
    out = capsys.readouterr().out
    for word in (*VERBS, "chat_smollm2", "A small chat model", "hardware", "rtx4090", "Examples"):
        assert word in out


@pytest.mark.parametrize("verb", list(VERBS))
def test_help_of_a_verb_is_of_that_verb(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"servekit {verb}: {VERBS[verb].phrase}\n")
    own = {flag for flag, (of, _) in VERB_VALUES.items() if of == verb}
    assert [flag for flag in own if flag not in out] == []
    assert [flag for flag in set(VERB_VALUES) - own if f" {flag} " in out] == []
    assert ("chat_smollm2" in out) == VERBS[verb].composes


def test_help_names_every_flag_that_takes_a_value(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--help"])
    out = capsys.readouterr().out
    assert [flag for flag in VERB_VALUES if flag not in out] == []


def test_help_lists_the_recipes_of_the_user(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "own.yaml").write_text("# @package _global_\n# Mine alone.\nname: own\n")
    main(["--help", "--config-dir", str(tmp_path)])
    assert re.search(r"^  own +Mine alone\.$", capsys.readouterr().out, re.MULTILINE)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"servekit {__version__}\n"


def test_version_and_help_are_json_if_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"version": __version__}
    assert main(["--help", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert set(shown["verbs"]) == set(VERBS)
    assert "chat_smollm2" in shown["recipes"]
    assert "rtx4090" in shown["groups"]["hardware"]


def test_a_plan_that_fits_exits_with_0_and_is_json_if_asked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["plan", "+recipe=chat_llama8b", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "ok"


def test_a_plan_that_does_not_fit_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *TOO_LARGE]) == 2


def test_a_wrong_word_exits_with_2_and_is_told_on_standard_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["plan", "schedular.max_num_seqs=4"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "did you mean scheduler.max_num_seqs?" in captured.err


def test_an_error_is_json_on_standard_output_if_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "kv.blok_size", "--json"]) == 2
    captured = capsys.readouterr()
    error = json.loads(captured.out)["error"]
    assert error["code"] == "invalid_config"
    assert "kv.block_size" in error["message"]


def test_a_sweep_plans_every_combination(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "-m", "kv.block_size=16,32", "+recipe=chat_smollm2"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert out.startswith("+recipe=chat_smollm2\n")
    assert [line.split()[:2] for line in out.splitlines()[3:5]] == [["16", "ok"], ["32", "ok"]]


def test_a_sweep_is_one_json_array_that_names_the_words(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["plan", "-m", "--json", "kv.block_size=16,32", "+recipe=chat_smollm2"]) == 0
    each = json.loads(capsys.readouterr().out)
    assert [item["words"][0] for item in each] == ["kv.block_size=16", "kv.block_size=32"]
    assert [item["plan"]["kv"]["block_size"] for item in each] == [16, 32]


def test_a_sweep_exits_with_the_worst_of_its_plans(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "-m", "hardware=h100,l4", "model=llama3_8b", "kv.memory_gib=10"]) == 2


@pytest.mark.parametrize("verb", ["serve", "explain", "models"])
def test_only_plan_sweeps(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "-m", "kv.block_size=16,32"]) == 2
    assert "-m" in capsys.readouterr().err


def test_serve_refuses_hardware_that_is_not_here_with_2() -> None:
    done = child("+recipe=chat_llama8b", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("servekit: ")


def test_cfg_shows_the_composed_yaml_behind_a_verb() -> None:
    done = child("plan", "--cfg", "job", "-p", "kv", "+recipe=chat_smollm2", "kv.block_size=32")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:2] == ["# @package kv", "block_size: 32"]


def test_cfg_shows_a_value_that_the_schema_refuses() -> None:
    done = child("--cfg", "job", "kv.block_size=abc")
    assert (done.returncode, "block_size: abc" in done.stdout) == (0, True)


def test_cfg_of_a_word_that_does_not_exist_exits_with_2() -> None:
    done = child("--cfg", "job", "kv.blok_size=1")
    assert (done.returncode, "did you mean kv.block_size?" in done.stderr) == (2, True)


def test_info_shows_the_search_path_with_the_folders_of_the_user(tmp_path: Path) -> None:
    first, last = tmp_path / "first", tmp_path / "last"
    first.mkdir()
    last.mkdir()
    done = child("--info", "searchpath", "--config-dir", str(last), SERVEKIT_CONFIG_PATH=str(first))
    assert done.returncode == 0, done.stderr
    places = [done.stdout.index(str(folder)) for folder in (first, ROOT / "conf", last)]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("line", "offers"),
    [
        ("servekit plan +recipe=chat_s", "+recipe=chat_smollm2"),
        ("servekit scheduler.max_num_se", "scheduler.max_num_seqs="),
        ("servekit explain kv.block", "kv.block_size="),
        ("servekit pl", "plan"),
        ("servekit ", "explain"),
    ],
)
def test_completion_works_before_and_behind_verbs(line: str, offers: str) -> None:
    done = child("-sc", "query=bash", COMP_LINE=line, COMP_POINT=str(len(line)))
    assert done.returncode == 0, done.stderr
    assert offers in done.stdout.split()


def test_the_completion_script_has_no_verbs_in_it() -> None:
    done = child("-sc", "install=bash")
    assert done.stdout.startswith("export ")


@pytest.mark.parametrize(
    ("words", "absent"),
    [
        (["--help"], {"torch", "hydra", "omegaconf", "pydantic", "rich"}),
        (["models"], {"torch", "hydra", "transformers"}),
        (["plan", "+recipe=chat_smollm2"], {"torch", "transformers", "litestar", "zmq"}),
        (["explain", "kv"], {"torch", "transformers", "litestar", "zmq"}),
    ],
)
def test_a_verb_imports_only_what_it_needs(words: list[str], absent: set[str]) -> None:
    code = (
        "import sys\nfrom servekit.cli import main\n"
        f"code = main({words!r})\n"
        f"print(code, sorted({absent!r} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stderr.strip() == "0 []"


def test_a_run_leaves_no_files(tmp_path: Path) -> None:
    code = "from servekit.cli import main; main(['plan', '-m', 'kv.block_size=16,32'])"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, cwd=tmp_path)
    assert list(tmp_path.iterdir()) == []
