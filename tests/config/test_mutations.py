"""Every key of the configuration, written wrongly in many ways: nothing wrong is let pass."""

from collections.abc import Callable

import pytest

from servekit.config.compose import load
from servekit.config.describe import all_keys
from servekit.config.origins import leaves
from servekit.config.problems import InvalidConfig

KEYS = [key for key, _ in leaves(load([]).config.model_dump())]
SLIPS: dict[str, Callable[[str], str]] = {
    "a letter left out": lambda name: name[:-2] + name[-1],
    "a letter twice": lambda name: name + name[-1],
    "two letters exchanged": lambda name: name[0] + name[2] + name[1] + name[3:],
    "dashes": lambda name: name.replace("_", "-"),
    "capitals": str.upper,
}
CHOOSES_OTHERS = {"hardware.kind", "model.shape.rope.kind", "model.config"}
"""They decide what other keys may be, so they are tried without those."""
OTHER_SIZES = {"kv.capacity_tokens", "kv.memory_fraction"}
"""Beside kv.memory_gib they contradict it before their values are looked at."""


def wrong(slip: Callable[[str], str]) -> dict[str, str]:
    """By the wrong key the true one; a slip that makes another true key is none."""
    found = {}
    for key in KEYS:
        group, dot, name = key.rpartition(".")
        if len(name) > 3:
            found[f"{group}{dot}{slip(name)}"] = key
    return {mutated: key for mutated, key in found.items() if mutated not in all_keys()}


@pytest.mark.parametrize("slip", SLIPS.values(), ids=SLIPS)
def test_every_mutated_key_is_refused_with_a_suggestion(slip: Callable[[str], str]) -> None:
    keys = wrong(slip)
    assert len(keys) > 100
    with pytest.raises(InvalidConfig) as refused:
        load([f"+{mutated}=1" for mutated in keys])
    told = {problem.path: problem.message for problem in refused.value.problems}
    assert told.keys() == keys.keys()
    for mutated, key in keys.items():
        # fp4_tflops with two letters exchanged is as near to fp8_tflops
        meant = "hardware.fp8_tflops" if "f4p" in mutated else key
        assert f"did you mean {meant}?" in told[mutated]


def test_a_value_of_a_wrong_type_is_refused_at_every_key_with_what_it_must_be() -> None:
    keys = [key for key in KEYS if key not in CHOOSES_OTHERS | OTHER_SIZES]
    with pytest.raises(InvalidConfig) as refused:
        load([f"{key}=[[1]]" for key in keys])
    told = {problem.path: problem.message for problem in refused.value.problems}
    assert [key for key in keys if "[[1]] is not allowed" not in told.get(key, "")] == []
    assert all("it must be" in message for message in told.values())


@pytest.mark.parametrize("key", sorted(CHOOSES_OTHERS | OTHER_SIZES))
def test_a_value_of_a_wrong_type_is_refused_at_the_keys_that_depend_on_others(key: str) -> None:
    with pytest.raises(InvalidConfig, match="it must be") as refused:
        load([f"{key}=[[1]]"])
    assert f"({key}=[[1]])" in str(refused.value)
