"""Words become one configuration; each leaf knows where it came from."""

import os
import pickle
from pathlib import Path

import pytest

from servekit.config.compose import jobs, load
from servekit.config.origins import leaves
from servekit.config.problems import InvalidConfig
from servekit.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
GLOBAL = "# @package _global_\n"


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    (tmp_path / "recipe").mkdir()
    return tmp_path


def test_no_words_make_the_default_deployment() -> None:
    config = load([]).config
    assert config.model.name == "smollm2-135m"
    assert config.hardware.kind == "cpu"


def test_a_word_beats_a_recipe_beats_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    composed = load(["+recipe=chat_smollm2", "scheduler.max_num_seqs=7"])
    origin = composed.origins["scheduler.max_num_seqs"]
    assert composed.config.scheduler.max_num_seqs == 7
    assert origin.where == "the command line (scheduler.max_num_seqs=7)"
    assert origin.replaced is not None
    assert origin.replaced.where == "recipes/chat_smollm2.yaml:10"
    assert origin.replaced.replaced is not None
    assert origin.replaced.replaced.where == "conf/scheduler/continuous.yaml:6"
    assert [origin.value, origin.replaced.value, origin.replaced.replaced.value] == [7, 64, "auto"]


def test_every_leaf_has_an_origin() -> None:
    composed = load(["+recipe=chat_llama8b"])
    for key, _ in leaves(composed.config.model_dump()):
        assert key in composed.origins, key


def test_a_mapping_given_as_one_word_is_the_origin_of_all_its_leaves() -> None:
    composed = load(["scheduler={max_num_seqs: 3, max_num_batched_tokens: 30}"])
    for key in ("scheduler.max_num_seqs", "scheduler.max_num_batched_tokens"):
        assert composed.origins[key].kind == "word"
    assert composed.origins["scheduler.policy"].kind == "file"


def test_a_value_may_refer_to_another() -> None:
    assert load(["name=${model.name}-here"]).config.name == "smollm2-135m-here"


def test_a_composed_configuration_can_be_pickled() -> None:
    composed = load(["kv.block_size=32"])
    again = pickle.loads(pickle.dumps(composed))
    assert again.config == composed.config
    assert dict(again.origins) == dict(composed.origins)


def test_a_word_replaces_the_size_of_the_kv_cache_that_a_recipe_gives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    composed = load(["+recipe=chat_smollm2", "kv.capacity_tokens=4096"])
    kv = composed.config.kv
    assert (kv.capacity_tokens, kv.memory_gib, kv.memory_fraction) == (4096, None, None)
    origin = composed.origins["kv.memory_gib"]
    assert origin.where == (
        "replaced by kv.capacity_tokens from the command line (kv.capacity_tokens=4096)"
    )
    assert origin.replaced is not None
    assert origin.replaced.where == "recipes/chat_smollm2.yaml:11"


def test_two_sizes_on_the_command_line_contradict_each_other() -> None:
    with pytest.raises(InvalidConfig, match="both say how large") as caught:
        load(["kv.capacity_tokens=4096", "kv.memory_gib=2"])
    assert "(kv.capacity_tokens=4096)" in str(caught.value)
    assert "(kv.memory_gib=2)" in str(caught.value)


def test_two_sizes_in_one_recipe_contradict_each_other(mine: Path) -> None:
    (mine / "recipe" / "two.yaml").write_text(
        GLOBAL + "kv:\n  memory_gib: 1.0\n  capacity_tokens: 5\n"
    )
    with pytest.raises(InvalidConfig) as caught:
        load(["+recipe=two"], str(mine))
    assert f"{mine}/recipe/two.yaml:3: kv.memory_gib=1.0" in str(caught.value)
    assert f"{mine}/recipe/two.yaml:4: kv.capacity_tokens=5" in str(caught.value)


def test_a_null_word_gives_the_size_back_to_the_layer_below() -> None:
    kv = load(["+recipe=chat_smollm2", "kv.memory_gib=null"]).config.kv
    assert (kv.memory_gib, kv.memory_fraction) == (None, 0.2)


def test_a_recipe_of_the_user_may_build_on_one_of_ours(mine: Path) -> None:
    (mine / "recipe" / "own.yaml").write_text(
        GLOBAL + "defaults: [chat_smollm2, _self_]\nname: own\nkv: {capacity_tokens: 640}\n"
    )
    config = load(["+recipe=own"], str(mine)).config
    assert config.name == "own"
    assert config.scheduler.max_num_seqs == 64
    assert (config.kv.capacity_tokens, config.kv.memory_gib) == (640, None)


def test_config_dir_adds_a_group_option(mine: Path) -> None:
    (mine / "server").mkdir()
    (mine / "server" / "odd.yaml").write_text("defaults: [local, _self_]\nhost: 127.0.0.9\n")
    assert load(["server=odd"], str(mine)).config.server.host == "127.0.0.9"


def test_config_dir_does_not_replace_what_is_built_in(mine: Path) -> None:
    (mine / "kv").mkdir()
    (mine / "kv" / "paged.yaml").write_text("block_size: 999\n")
    assert load([], str(mine)).config.kv.block_size == 16


def test_the_search_path_variable_replaces_what_is_built_in(
    mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (mine / "parallelism").mkdir()
    (mine / "parallelism" / "single.yaml").write_text(
        "tensor: 3\npipeline: 1\ndata: 1\nexpert: 1\n"
    )
    monkeypatch.setenv("SERVEKIT_CONFIG_PATH", f"{mine}{os.pathsep}")
    composed = load([])
    assert composed.config.parallelism.tensor == 3
    assert composed.origins["parallelism.tensor"].where == f"{mine}/parallelism/single.yaml:1"


def test_a_config_dir_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--config-dir names .* not a folder"):
        load([], str(tmp_path / "none"))


def test_recipes_stack_and_the_later_wins() -> None:
    config = load(["+recipe=[chat_llama8b,batch_llama8b]"]).config
    assert config.name == "batch_llama8b"
    assert config.server.host == "0.0.0.0"


def test_a_sweep_is_every_combination_in_order() -> None:
    words = ["kv.block_size=16,32", "+recipe=chat_smollm2", "scheduler=static,continuous"]
    assert jobs(words)[:2] == [
        ["kv.block_size=16", "+recipe=chat_smollm2", "scheduler=static"],
        ["kv.block_size=16", "+recipe=chat_smollm2", "scheduler=continuous"],
    ]
    assert len(jobs(words)) == 4


def test_a_sweep_may_range_over_all_recipes() -> None:
    assert ["+recipe=chat_smollm2"] in jobs(["+recipe=glob(*)"])
