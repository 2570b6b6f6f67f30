"""What is advised can be pasted after the words that were refused, and passes."""

from functools import cache

import pytest

from servekit.config.compose import load
from servekit.planner.advice import search
from servekit.planner.advice.advice import Advice
from servekit.planner.outcome import assess
from servekit.planner.plan import Plan, plan
from tests.planner.refused import CPU, REFUSED, SLOW, UNFIT, too_much

UNMENDED = "+recipe=chat_llama8b slo.ttft_ms=1"


@cache
def planned(words: str) -> Plan:
    composed = load(words.split())
    return plan(composed.config, origins=composed.origins)


def pasted(words: str, advice: Advice) -> Plan:
    """Without a run where no verdict hangs on one."""
    config = load([*words.split(), *advice.overrides]).config
    promised = config.slo.ttft_ms is not None or config.slo.tpot_ms is not None
    return plan(config, advise=False, simulate=promised)


def keys(made: Plan) -> list[list[str]]:
    return [[word.split("=")[0] for word in item.overrides] for item in made.advice]


@pytest.mark.parametrize("words", UNFIT)
def test_what_does_not_fit_is_refused_and_its_first_advice_is_sure_to_pass(words: str) -> None:
    made = planned(words)
    assert (made.verdict, made.exit_code) == ("does_not_fit", 2)
    assert 1 <= len(made.advice) <= 8
    assert pasted(words, made.advice[0]).verdict == "ok"


@pytest.mark.parametrize("words", REFUSED)
def test_every_advice_passes_where_it_is_pasted_with_the_numbers_it_gave(words: str) -> None:
    for item in planned(words).advice:
        after = pasted(words, item)
        assert after.exit_code == 0, item.overrides
        assert after.verdict == item.effect["verdict"]
        assert after.kv.capacity_tokens == item.effect["capacity_tokens"]
        assert item.effect["max_concurrency"] == pytest.approx(after.max_concurrency, abs=0.01)


@pytest.mark.parametrize("words", [too_much(*case) for case in SLOW])
def test_what_misses_its_targets_is_advised_too(words: str) -> None:
    made = planned(words)
    assert made.exit_code == 2
    assert made.advice


@pytest.mark.parametrize("words", REFUSED)
def test_the_ledger_of_what_is_refused_adds_up(words: str) -> None:
    memory = planned(words).to_json()["memory"]
    parts = (
        sum(size for name, size in memory.items() if name.endswith("_gib")) - memory["total_gib"]
    )
    assert parts == pytest.approx(memory["total_gib"], rel=0.01)


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("model=llama3_8b hardware=l4", ["model.max_model_len"]),
        ("+recipe=chat_llama8b kv.memory_gib=70", ["kv.memory_gib"]),
        ("+recipe=chat_llama8b kv.memory_fraction=0.01", ["kv.memory_fraction"]),
        ("+recipe=chat_llama8b kv.capacity_tokens=1000000", ["kv.capacity_tokens"]),
        ("model=llama3_8b hardware=l4 kv.memory_gib=2 model.dtype=float32", ["model.dtype"]),
        ("model=gemma3_27b hardware=h100 kv.memory_fraction=0.5", ["kv.dtype"]),
        (
            "model=gemma3_27b hardware=h100 kv.memory_fraction=0.75",
            ["scheduler.max_num_batched_tokens"],
        ),
        ("model=llama3_70b hardware=h100", ["parallelism.tensor"]),
        ("model=llama3_70b hardware=h100", ["parallelism.pipeline"]),
        ("model=mixtral_8x7b hardware=a100_80g", ["quantization.weights"]),
        ("model=mixtral_8x7b hardware=a100_80g", ["hardware"]),
        (f"model=llama3_8b {CPU} hardware.memory_gib=8", ["hardware.memory_gib"]),
        (too_much(*SLOW[3]), ["parallelism.data"]),
        (too_much(*SLOW[1]), ["quantization.weights"]),
    ],
)
def test_what_is_too_much_is_among_what_is_advised(words: str, wanted: list[str]) -> None:
    assert wanted in keys(planned(words))


def test_two_changes_are_advised_where_one_does_not_do() -> None:
    found = keys(planned("model=llama3_405b hardware=l4"))
    assert found
    assert {len(words) for words in found} == {2}


def test_a_dtype_that_the_card_lacks_is_part_of_every_advice() -> None:
    made = planned("model=llama3_70b hardware=t4")
    assert made.advice
    assert all("model.dtype=float16" in item.overrides for item in made.advice)


def test_what_this_release_runs_comes_first() -> None:
    for words in UNFIT:
        planned_only = [item.planned_only for item in planned(words).advice]
        assert planned_only == sorted(planned_only)


def test_a_cpu_is_not_advised_to_become_two() -> None:
    made = planned(f"model=llama3_8b {CPU} hardware.memory_gib=8")
    assert not [word for words in keys(made) for word in words if word.startswith("parallelism")]


def test_an_advised_length_is_round() -> None:
    made = planned("model=llama3_8b hardware=l4")
    (word,) = made.advice[0].overrides
    assert int(word.removeprefix("model.max_model_len=")) % 1024 == 0


def test_values_that_said_auto_move_with_what_is_advised() -> None:
    words = "model=mixtral_8x7b hardware=l40s"
    composed = load(words.split())
    assert composed.config.scheduler.max_num_batched_tokens == 2048
    better = next(item for item in planned(words).advice if "hardware=h200" in item.overrides)
    after = load([*words.split(), *better.overrides]).config
    assert after.scheduler.max_num_batched_tokens == 8192
    assert better.effect["capacity_tokens"] == plan(after, advise=False).kv.capacity_tokens


def test_an_effect_has_what_was_before_and_differs() -> None:
    item = planned("model=llama3_8b hardware=l4").advice[0]
    before = item.effect["before"]
    assert before["verdict"] == "does_not_fit"
    assert before["capacity_tokens"] < item.effect["capacity_tokens"]
    assert "usd_per_hour" not in before
    assert item.effect["usd_per_hour"] == 0.8


def test_a_target_below_what_physics_allows_has_no_advice_and_its_physics() -> None:
    made = planned(UNMENDED)
    assert made.verdict == "impossible"
    assert made.advice == ()
    assert made.problem is not None
    assert "on ideal hardware" in made.problem


def test_what_is_well_needs_no_advice() -> None:
    assert planned("+recipe=chat_llama8b slo=none").advice == ()


@pytest.mark.parametrize("words", [*REFUSED, UNMENDED])
def test_a_search_tries_a_bounded_number_of_plans(
    words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []
    monkeypatch.setattr(search, "assess", lambda *a: tried.append(a) or assess(*a))
    planned.__wrapped__(words)
    assert len(tried) <= 1 + search.MOST_SINGLES + 2 * search.MOST_PAIRS
