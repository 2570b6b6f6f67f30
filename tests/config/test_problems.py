"""What a wrong configuration is answered with: everything, once, with places and a way out."""

import pickle
from pathlib import Path

import pytest

from servekit.config.compose import load
from servekit.config.describe import all_keys, nearest_key
from servekit.config.origins import leaves
from servekit.config.problems import InvalidConfig

GLOBAL = "# @package _global_\n"


def refusal(*words: str, config_dir: str | None = None) -> InvalidConfig:
    with pytest.raises(InvalidConfig) as caught:
        load(words, config_dir)
    return caught.value


def recipe(folder: Path, text: str, header: str = GLOBAL) -> str:
    (folder / "recipe").mkdir(exist_ok=True)
    (folder / "recipe" / "own.yaml").write_text(header + text)
    return str(folder)


def test_every_misspelt_key_is_answered_with_its_true_name_all_at_once() -> None:
    keys = [key for key, _ in leaves(load([]).config.model_dump())]
    error = refusal(*(f"+{key}x=1" for key in keys))
    assert len(error.problems) == len(keys)
    by_path = {problem.path: problem for problem in error.problems}
    for key in keys:
        problem = by_path[f"{key}x"]
        assert f"did you mean {key}?" in problem.message
        assert problem.where == (f"the command line (+{key}x=1)",)


@pytest.mark.parametrize("key", [key for key in all_keys() if "." in key and "rope" not in key])
def test_a_misspelt_group_is_recognised_by_what_is_in_it(key: str) -> None:
    parts = key.split(".")
    for depth in range(len(parts) - 1):
        wrong = ".".join([*parts[:depth], parts[depth] + "x", *parts[depth + 1 :]])
        assert nearest_key(wrong) == key


@pytest.mark.parametrize("group", ["model", "scheduler", "kv", "hardware", "server"])
def test_a_misspelt_group_in_a_recipe_is_one_problem(tmp_path: Path, group: str) -> None:
    folder = recipe(tmp_path, f"{group}x:\n  a: 1\n  b: 2\n")
    (problem,) = refusal("+recipe=own", config_dir=folder).problems
    assert f"did you mean {group}?" in problem.message
    assert problem.where == (f"{tmp_path}/recipe/own.yaml:3", f"{tmp_path}/recipe/own.yaml:4")


def test_a_key_far_from_any_other_is_answered_with_those_there_are() -> None:
    (problem,) = refusal("server.zzzzz=1").problems
    assert "there are server.host, server.port" in problem.message


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("scheduler.max_num_seqs=abc", "'abc' is not allowed; it must be a whole number"),
        ("scheduler.max_num_seqs=2.0", "2.0 is not allowed; it must be a whole number, at least 1"),
        ("scheduler.max_num_seqs=true", "true is not allowed"),
        ("scheduler.max_num_seqs=0", "0 is not allowed"),
        ("scheduler.max_num_seqs=null", "null is not allowed"),
        ("kv.block_size=1025", "at most 1024"),
        ("kv.prefix_caching=1", "1 is not allowed; it must be true or false"),
        ("kv.prefix_caching=yes", "'yes' is not allowed"),
        ("kv.memory_fraction=1.5", "more than 0, at most 1, or null"),
        ("kv.memory_gib=inf", "inf is not allowed"),
        ("model.dtype=fp8", "it must be one of bfloat16, float16, float32"),
        ("model.name=7", "7 is not allowed; it must be text"),
        ("model.source=nowhere", "'nowhere' is not allowed; it must be hf:org/name@revision, hf:"),
        ("model.sha256=abc", "it must be 64 hexadecimal digits in lower case, or null"),
        ("server.port=[1]", "[1] is not allowed"),
        ("server.host={a: 1}", "it must be text"),
        ("hardware.device_names=[a,1]", "it must be a list, each text"),
        ("model.shape.rope.kind=spiral", "one of default, linear, llama3, yarn"),
        ("kv=null", "kv has no 'null'"),
        ("kv.block_size=auto", "auto is not allowed here"),
        ("server.host=auto", "auto is not allowed here"),
        ("name=${nothing.here}", "leads nowhere"),
        ("~server.port", "nothing sets it; it must be a whole number, at least 0, at most 65535"),
        ("~server.prt", "nothing to take away"),
        ("+foo=1", "no such key (set to 1)"),
        ("+recepi=chat_smolm2", "did you mean +recipe=chat_smollm2?"),
        ("+recipe=chat_smolm2", "did you mean chat_smollm2?"),
        ("recipe=chat_smollm2", "write +recipe=chat_smollm2"),
        ("model=lama3_8b", "did you mean llama3_8b?"),
        ("+model=llama3_8b", "write model=llama3_8b"),
        ("model=[llama3_8b,qwen3_8b]", "model takes one choice"),
        ("modle/x=1", "did you mean model?"),
        ("kv.block_size=16,32", "several values need -m"),
        ("hydra.verbose=true", "Hydra's own settings are fixed"),
        ("hardware.usd=3", "did you mean hardware.usd_per_hour?"),
        ("chat_smollm2", "did you mean +recipe=chat_smollm2?"),
        ("llama3_8b", "did you mean model=llama3_8b?"),
        ("=3", "is not understood"),
        ("a b", "a word is key=value, group=option or +recipe=name"),
        ("kv.block_size=[1", "is not understood"),
    ],
)
def test_one_wrong_word_is_one_problem(word: str, says: str) -> None:
    error = refusal(word)
    assert len(error.problems) == 1
    assert says in str(error)
    assert word in str(error) or word.startswith("~")


def test_all_kinds_of_problems_are_reported_at_once() -> None:
    error = refusal(
        "schedular.max_num_seqs=4",
        "scheduler.max_num_batched_tokens=many",
        "kv.block_size=0",
        "model.max_model_len=9000",
    )
    kinds = sorted(problem.kind for problem in error.problems)
    assert kinds == ["rule", "unknown", "value", "value"]
    assert "the configuration has 4 errors" in str(error)


def test_a_choice_that_does_not_exist_hides_no_other_wrong_word() -> None:
    error = refusal("model=lama3_8b", "kv.blok_size=1", "server.port=x")
    assert {problem.path for problem in error.problems} == {
        "model=lama3_8b",
        "kv.blok_size",
        "server.port",
    }


def test_a_contradiction_names_the_places_of_both_keys() -> None:
    (problem,) = refusal("+recipe=chat_smollm2", "scheduler.max_num_seqs=600").problems
    assert problem.kind == "rule"
    assert any("recipes/chat_smollm2.yaml:10" in place for place in problem.where)
    assert any("(scheduler.max_num_seqs=600)" in place for place in problem.where)


def test_a_place_that_is_a_word_does_not_repeat_it() -> None:
    (problem,) = refusal("kv.memory_gib=1", "kv.capacity_tokens=64").problems
    assert problem.where[:2] == (
        "the command line (kv.memory_gib=1)",
        "the command line (kv.capacity_tokens=64)",
    )


def test_a_contradiction_across_groups_is_found() -> None:
    (problem,) = refusal("parallelism.tensor=2").problems
    assert "parallelism.tensor=2 does not divide 9 heads" in problem.message


def test_a_contradiction_is_found_behind_wrong_values_elsewhere() -> None:
    error = refusal("parallelism.tensor=2", "server.port=x", "+foo=1")
    assert sorted(problem.kind for problem in error.problems) == ["rule", "unknown", "value"]


def test_a_contradiction_with_a_wrong_value_waits_until_that_is_mended() -> None:
    error = refusal("+recipe=chat_smollm2", "scheduler.max_num_seqs=x", "scheduler.policy=y")
    assert {problem.kind for problem in error.problems} == {"value"}


def test_a_wrong_value_is_not_reported_again_where_it_is_copied() -> None:
    error = refusal("model.dtype=fp8")
    assert [problem.path for problem in error.problems] == ["model.dtype"]


def test_a_key_of_another_kind_of_rope_is_named_as_such() -> None:
    (problem,) = refusal("+model.shape.rope.factor=2").problems
    assert "belongs to kind linear and llama3 and yarn only" in problem.message


def test_a_wrong_type_in_a_recipe_is_found_by_line(tmp_path: Path) -> None:
    folder = recipe(tmp_path, "kv:\n  dtype: float32\n  block_size: big\n")
    (problem,) = refusal("+recipe=own", config_dir=folder).problems
    assert problem.path == "kv.block_size"
    assert problem.where == (f"{tmp_path}/recipe/own.yaml:4",)


def test_a_recipe_that_overrides_with_an_unknown_option_is_found_by_line(tmp_path: Path) -> None:
    folder = recipe(tmp_path, "defaults:\n  - override /model: lama3_8b\n")
    (problem,) = refusal("+recipe=own", config_dir=folder).problems
    assert "did you mean llama3_8b?" in problem.message
    assert problem.where == (f"{tmp_path}/recipe/own.yaml:3",)


def test_a_recipe_that_overrides_an_unknown_group_is_answered_with_its_name(
    tmp_path: Path,
) -> None:
    folder = recipe(tmp_path, "defaults:\n  - override /modell: llama3_8b\n")
    (problem,) = refusal("+recipe=own", config_dir=folder).problems
    assert "did you mean model?" in problem.message
    assert problem.where == (f"{tmp_path}/recipe/own.yaml",)


@pytest.mark.parametrize("text", ["kv: {a: 1\nb: [\n", "kv: 1\nkv: 2\n"])
def test_a_recipe_that_is_not_yaml_is_named_with_the_line(tmp_path: Path, text: str) -> None:
    folder = recipe(tmp_path, text)
    error = refusal("+recipe=own", config_dir=folder)
    assert "own.yaml: is not YAML" in str(error)
    assert f"{tmp_path}/recipe/own.yaml:3" in str(error)


def test_a_recipe_without_its_package_line_is_told_so(tmp_path: Path) -> None:
    folder = recipe(tmp_path, "kv: {memory_gib: 1.0}\nname: own\n", header="")
    (problem,) = refusal("+recipe=own", config_dir=folder).problems
    assert "the first line of a recipe must be '# @package _global_'" in problem.message


def test_an_option_that_lacks_keys_is_told_how_to_take_them_from_another(tmp_path: Path) -> None:
    option = tmp_path / "slo" / "own.yaml"
    option.parent.mkdir()
    option.write_text("ttft_ms: 500\n")
    assert "begins with defaults: [NAME, _self_]" in str(
        refusal("slo=own", config_dir=str(tmp_path))
    )
    option.write_text("defaults: [chat, _self_]\nttft_ms: 500\n")
    slo = load(["slo=own"], config_dir=str(tmp_path)).config.slo
    assert (slo.ttft_ms, slo.tpot_ms) == (500, 50)


def test_an_invalid_configuration_exits_with_2_and_survives_pickling() -> None:
    error = refusal("+foo=1")
    again = pickle.loads(pickle.dumps(error))
    assert error.exit_code == 2
    assert str(again) == str(error)
    assert again.problems == error.problems


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("hardware=a100", "a100_40g"),
        ("hardware=h100_80g", "h100"),
        ("hardware=H100_SXM", "h100"),
        ("hardware=rtx_4090", "rtx4090"),
        ("model=mistral_small", "mistral_small_24b"),
        ("kv=fp8", "paged_fp8"),
        ("quantization=awq", "int4_g128"),
        ("quantization=int4", "int4_g128"),
        ("quantization=bf16", "none"),
        ("quantization.weights=gptq", "gptq_g128"),
        ("kv.dtype=fp8_e4m3", "fp8"),
        ("model.dtype=bf16", "bfloat16"),
        ("kv.gpu_memory_utilization=0.9", "kv.memory_fraction"),
        ("parallelism.tensor_parallel_size=2", "parallelism.tensor"),
    ],
)
def test_a_word_of_another_engine_is_answered_with_ours(word: str, meant: str) -> None:
    (problem,) = refusal(word).problems
    assert f"did you mean {meant}?" in problem.message


def test_only_the_heads_that_do_not_divide_are_named() -> None:
    words = ["model=qwen3_14b", "hardware=h100", "model.max_model_len=8192"]
    (problem,) = refusal(*words, "parallelism.tensor=5").problems
    assert problem.message == "parallelism.tensor=5 does not divide 8 KV heads"
