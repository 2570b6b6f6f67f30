"""What is in conf/ and recipes/: everything composes, and the surface is counted."""

import tomllib
from functools import cache
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from jinja2 import Environment
from omegaconf import OmegaConf

from servekit.config.compose import Composed, load
from servekit.config.describe import field_at, walk
from servekit.config.folders import builtin_folder, groups, options
from servekit.config.origins import leaves

CONF = builtin_folder()
RECIPES = options("recipe", [CONF])
CHOICES = [
    (group, option)
    for group in groups([CONF])
    if group != "recipe"
    for option in options(group, [CONF])
    if option != "from_config"
]


@cache
def loaded(*words: str) -> Composed:
    return load(words)


def test_the_recipes_that_the_documentation_names_are_there() -> None:
    assert {"chat_smollm2", "chat_gemma3_270m", "chat_llama8b", "rag_qwen3_8b"} <= {*RECIPES}
    assert "batch_llama8b" in RECIPES


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_composes_and_carries_its_own_name(recipe: str) -> None:
    assert loaded(f"+recipe={recipe}").config.name == recipe


@pytest.mark.parametrize(("group", "option"), CHOICES)
def test_every_option_of_every_group_composes(group: str, option: str) -> None:
    # the default model has 9 heads, no experts, and no layers that guess further tokens
    words = ["model=deepseek_v3"] if group in ("parallelism", "speculative") else []
    assert load([f"{group}={option}", *words]).config


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_means_what_hydra_composes(recipe: str) -> None:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        tree = OmegaConf.to_container(compose("config", [f"+recipe={recipe}"]), resolve=True)
    composed = loaded(f"+recipe={recipe}")
    values = dict(leaves(composed.config.model_dump(mode="json")))
    for key, value in leaves(tree):
        derived = [k for k in composed.origins if k == key or k.startswith(key + ".")]
        if all(composed.origins[k].kind != "derived" for k in derived):
            assert values[key] == value, key


def test_the_configuration_has_this_many_leaves() -> None:
    assert sum(leaf for _, leaf in walk()) == 204


def test_every_key_says_what_it_means() -> None:
    silent = [key for key, _ in walk() if not getattr(field_at(key, {}), "description", None)]
    assert all(key.endswith(".kind") for key in silent), silent


def test_the_wheel_puts_the_configuration_where_the_package_looks_for_it() -> None:
    root = Path(__file__).resolve().parents[2]
    project = tomllib.loads((root / "pyproject.toml").read_text())
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert included["conf"] == "servekit/conf"
    assert (root / "conf" / "recipe").resolve() == root / "recipes"
    assert Path((root / "conf" / "recipe").readlink()) == Path("../recipes")


def render(*messages: tuple[str, str]) -> str:
    def refuse(reason: str) -> None:
        raise ValueError(reason)

    template = load(["model=gemma3_270m"]).config.model.chat_template
    assert template is not None
    return (
        Environment()
        .from_string(template)
        .render(
            messages=[{"role": role, "content": content} for role, content in messages],
            add_generation_prompt=True,
            bos_token="<bos>",
            raise_exception=refuse,
        )
    )


def test_gemma_puts_a_system_message_at_the_head_of_the_first_turn() -> None:
    assert render(
        ("system", "Be kind."), ("user", " Hi "), ("assistant", "Yo"), ("user", "So?")
    ) == (
        "<bos><start_of_turn>user\nBe kind.\n\nHi<end_of_turn>\n"
        "<start_of_turn>model\nYo<end_of_turn>\n"
        "<start_of_turn>user\nSo?<end_of_turn>\n"
        "<start_of_turn>model\n"
    )


@pytest.mark.parametrize(
    ("roles", "says"),
    [
        (["user", "user"], "must take turns"),
        (["assistant"], "must take turns"),
        (["user", "system"], "must take turns"),
        (["system"], "needs a user message"),
    ],
)
def test_gemma_drops_no_message_without_a_word(roles: list[str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        render(*((role, "x") for role in roles))
