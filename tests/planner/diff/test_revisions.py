"""`servekit diff main HEAD`: configuration as it was, read by git and by nothing else."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from servekit.config.folders import SEARCH_VARIABLE, builtin_folder
from servekit.errors import ConfigError
from servekit.planner.diff.diff import main

RECIPE = """# @package _global_
defaults:
  - override /model: llama3_8b
  - override /hardware: h100
  - _self_
name: {name}
scheduler: {{max_num_seqs: {seats}}}
"""


def git(folder: Path, *words: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    command = ["git", "-C", str(folder), *who, *words]
    subprocess.run(command, check=True, capture_output=True)


def recipe(folder: Path, name: str, seats: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.yaml").write_text(RECIPE.format(name=name, seats=seats))


def commit(folder: Path, tag: str) -> None:
    git(folder, "add", "-A")
    git(folder, "commit", "--allow-empty", "-m", tag)
    git(folder, "tag", tag)


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of our `conf/` with recipes of its own, at one commit, `old`."""
    folder = tmp_path / "repo"
    shutil.copytree(builtin_folder(), folder / "conf", ignore=lambda *_: ["recipe"])
    (folder / "conf" / "recipe").symlink_to("../recipes")
    recipe(folder / "recipes", "chat", 256)
    recipe(folder / "recipes", "code", 64)
    git(tmp_path, "init", "-q", "-b", "main", str(folder))
    commit(folder, "old")
    monkeypatch.chdir(folder)
    return folder


def report(
    capsys: pytest.CaptureFixture[str], *words: str, config_dir: str | None = None
) -> dict[str, Any]:
    main(words, config_dir, as_json=True, markdown=False, fail_on=None)
    read: dict[str, Any] = json.loads(capsys.readouterr().out)
    return read


def statuses(read: dict[str, Any]) -> dict[str, str]:
    return {found["name"]: found["status"] for found in read["pairs"]}


def test_every_recipe_is_compared_through_the_link(
    repo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe(repo / "recipes", "chat", 512)
    commit(repo, "new")
    read = report(capsys, "old", "new")
    assert statuses(read) == {"chat": "changed", "code": "unchanged"}
    (leaf,) = read["pairs"][0]["changed"]
    assert (leaf["before"], leaf["after"], leaf["origin"]) == (256, 512, "recipes/chat.yaml:7")


def test_the_working_tree_is_not_read_and_not_touched(
    repo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe(repo / "recipes", "chat", 512)
    assert set(statuses(report(capsys, "old", "HEAD")).values()) == {"unchanged"}
    assert "512" in (repo / "recipes" / "chat.yaml").read_text()


def test_an_option_of_conf_changes_the_recipes_that_choose_it(
    repo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = repo / "conf" / "kv" / "paged.yaml"
    file.write_text(file.read_text().replace("block_size: 16", "block_size: 32"))
    commit(repo, "new")
    read = report(capsys, "old", "new")
    assert set(statuses(read).values()) == {"changed"}
    assert read["pairs"][0]["changed"][0]["cause"] == "kv.block_size"
    assert read["pairs"][0]["changed"][0]["origin"].startswith("conf/kv/paged.yaml:")


def test_recipes_come_and_go(repo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    git(repo, "mv", "recipes/code.yaml", "recipes/rag.yaml")
    commit(repo, "new")
    read = report(capsys, "old", "new")
    assert statuses(read) == {"chat": "unchanged", "code": "removed", "rag": "added"}
    assert read["exit_code"] == 0


def test_named_recipes_are_compared_alone(repo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert list(statuses(report(capsys, "old", "HEAD", "code"))) == ["code"]


def test_a_recipe_that_is_nowhere_is_refused(repo: Path) -> None:
    with pytest.raises(ConfigError, match="no revision has a recipe 'cod'; did you mean code"):
        main(["old", "HEAD", "cod"], None, as_json=True, markdown=False, fail_on=None)


def test_a_recipe_that_is_no_longer_valid_is_told_and_the_rest_goes_on(
    repo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (repo / "recipes" / "chat.yaml").open("a") as file:
        file.write("kv: {blocksize: 3}\n")
    commit(repo, "new")
    read = report(capsys, "old", "new")
    assert statuses(read) == {"chat": "invalid", "code": "unchanged"}
    (problem,) = read["pairs"][0]["problems"]["after"]
    assert "did you mean kv.block_size" in problem
    assert "from recipes/chat.yaml:8" in problem
    assert read["exit_code"] == 2


def test_it_works_from_a_subdirectory(
    repo: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repo / "conf" / "kv")
    assert set(statuses(report(capsys, "old", "HEAD"))) == {"chat", "code"}


def test_nothing_is_left_behind(
    repo: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    text = json.dumps(report(capsys, "old", "HEAD"))
    assert os.listdir(tmp_path / "scratch") == []
    assert str(tmp_path) not in text


def test_a_folder_of_a_repository_is_read_from_its_revisions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ours stays as installed; only its own recipes are compared."""
    top = tmp_path / "theirs"
    recipe(top / "serving" / "recipe", "mine", 32)
    git(tmp_path, "init", "-q", "-b", "main", str(top))
    commit(top, "old")
    recipe(top / "serving" / "recipe", "mine", 64)
    commit(top, "new")
    read = report(capsys, "old", "new", config_dir=str(top / "serving"))
    assert statuses(read) == {"mine": "changed"}
    assert read["pairs"][0]["changed"][0]["origin"] == "serving/recipe/mine.yaml:7"


def test_a_folder_that_one_revision_lacks_has_no_recipes_there(
    repo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe(repo / "mine" / "recipe", "extra", 32)
    commit(repo, "new")
    read = report(capsys, "old", "new", config_dir="mine")
    assert statuses(read) == {"extra": "added"}


def test_preferred_folders_still_come_first(
    repo: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kv = tmp_path / "preferred" / "kv"
    kv.mkdir(parents=True)
    text = (repo / "conf" / "kv" / "paged.yaml").read_text()
    (kv / "paged.yaml").write_text(text)
    monkeypatch.setenv(SEARCH_VARIABLE, str(kv.parent))
    file = repo / "conf" / "kv" / "paged.yaml"
    file.write_text(text.replace("block_size: 16", "block_size: 32"))
    commit(repo, "new")
    assert set(statuses(report(capsys, "old", "new")).values()) == {"unchanged"}


@pytest.mark.parametrize("name", ["nowhere", "HEAD:conf", "main..HEAD"])
def test_what_is_no_commit_is_refused(repo: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"is neither a revision of .* nor words"):
        main(["old", name], None, as_json=True, markdown=False, fail_on=None)


def test_a_revision_is_never_an_option_of_git(repo: Path) -> None:
    with pytest.raises(ConfigError, match=r"--output.* is neither a revision nor a flag"):
        main(["old", "--output"], None, as_json=True, markdown=False, fail_on=None)
    assert not (repo / "output").exists()


def test_outside_a_repository_revisions_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="is not in a git repository"):
        main(["main", "HEAD"], None, as_json=True, markdown=False, fail_on=None)


def test_a_repository_without_our_configuration_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(tmp_path, "init", "-q", "-b", "main", str(tmp_path))
    commit(tmp_path, "old")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"no conf/config.yaml at old; --config-dir names"):
        main(["old", "HEAD"], None, as_json=True, markdown=False, fail_on=None)


def test_a_link_out_of_the_repository_is_not_followed(repo: Path, tmp_path: Path) -> None:
    (repo / "conf" / "kv" / "secret.yaml").symlink_to(tmp_path / "secret.yaml")
    commit(repo, "new")
    with pytest.raises(ConfigError, match="cannot be read"):
        main(["old", "new"], None, as_json=True, markdown=False, fail_on=None)


def test_the_top_of_a_repository_may_be_the_folder(
    repo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe(repo / "recipe", "own", 64)
    commit(repo, "new")
    assert statuses(report(capsys, "old", "new", config_dir=".")) == {"own": "added"}


def test_a_file_is_no_folder_of_recipes(repo: Path) -> None:
    (repo / "note").write_text("x")
    commit(repo, "new")
    with pytest.raises(ConfigError, match="note is no folder at new"):
        main(["new", "new"], "note", as_json=True, markdown=False, fail_on=None)
