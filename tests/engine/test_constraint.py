"""An answer keeps to its grammar, whatever else the engine does meanwhile."""

import json
import re
from typing import Any

import numpy as np
import pytest
import torch

from servekit.engine.constraint import shifted, unpacked
from servekit.engine.messages import Abort, Sampling
from servekit.model.grammar import Compiler, choice_grammar, json_grammar, regex_grammar
from tests.engine.grammars import BYTES, ENDS, HOSTILE, asking, constrained_engine, text
from tests.engine.test_engine import SETTINGS
from tests.engine.tiny import prompts

POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer"}, "kind": {"enum": ["near", "far"]}},
    "required": ["x", "kind"],
    "additionalProperties": False,
}
GRAMMARS = [
    choice_grammar(["yes", "no", "maybe"]),
    regex_grammar("[a-c]{3,5}-\\d{2,8}"),
    json_grammar(POINT),
    None,
]
PROMPTS = prompts(12)
ASKED = [asking(GRAMMARS[index % 4], index, max_tokens=45) for index in range(12)]


def one(sampling: Sampling) -> tuple[str, str | None]:
    result = constrained_engine().generate([[1, 2, 3]], [sampling])[0]
    assert result.error is None
    return text(result.tokens), result.finish


@pytest.mark.parametrize("temperature", [0.0, 1.0, 5.0])
@pytest.mark.parametrize("choice", [["yes", "no"], ["a", "ab", "abc"], ['né😀\n"\\/', "(a|b)*"]])
def test_the_answer_is_one_of_the_choices(choice: list[str], temperature: float):
    said, finish = one(asking(choice_grammar(choice), temperature=temperature))
    assert said in choice
    assert finish == "stop"


def test_every_choice_can_be_had():
    choices = ["a", "ab", "abc", " a", "é"]
    engine = constrained_engine()
    asked = [asking(choice_grammar(choices), seed, temperature=100.0) for seed in range(200)]
    results = engine.generate([[1, 2, 3]] * 200, asked)
    assert {text(result.tokens) for result in results} == set(choices)


@pytest.mark.parametrize("seed", range(4))
def test_the_whole_answer_matches_the_regex(seed: int):
    said, finish = one(asking(regex_grammar("[a-c]{3,5}-\\d{2,8}x?"), seed))
    assert re.fullmatch("[a-c]{3,5}-[0-9]{2,8}x?", said)
    assert finish == "stop"


@pytest.mark.parametrize(
    "words",
    [
        {"logit_bias": {ord("m"): 50.0, ord("~"): 100.0, 257: 100.0}},
        {"repetition_penalty": 1.5, "presence_penalty": 2.0, "frequency_penalty": 2.0},
        {"top_k": 1},
        {"top_p": 0.01},
        {"min_p": 0.9},
        {"temperature": 0.0, "logit_bias": {ord("n"): -100.0, ord("y"): -100.0}},
    ],
)
def test_bias_penalties_and_filters_stay_inside_the_grammar(words: dict[str, Any]):
    said, finish = one(asking(GRAMMARS[0], **words))
    assert said in ("yes", "no", "maybe")
    assert finish == "stop"


@pytest.mark.skipif(torch.cuda.is_available(), reason="for the interpreter")
@pytest.mark.parametrize("grammar", GRAMMARS[:2])
def test_the_sampling_kernel_keeps_to_the_grammar_as_torch_does(grammar: str) -> None:
    asked = [asking(grammar, seed, temperature=1.5, max_tokens=8) for seed in range(2)]
    kernels = {"sample": "triton", "others": "torch"}
    by_kernel = constrained_engine(engine={"kernels": kernels}).generate([[1, 2, 3]] * 2, asked)
    by_torch = constrained_engine().generate([[1, 2, 3]] * 2, asked)
    assert [one.tokens for one in by_kernel] == [one.tokens for one in by_torch]


def test_bias_chooses_among_what_is_allowed():
    assert one(asking(GRAMMARS[0], logit_bias={ord("m"): 100.0}))[0] == "maybe"


def test_an_answer_cut_by_its_maximum_says_length():
    said, finish = one(asking(regex_grammar("a{50}"), max_tokens=7))
    assert (said, finish) == ("a" * 7, "length")


def test_logprobs_are_of_the_distribution_before_the_mask():
    words: dict[str, Any] = {"temperature": 0.0, "logprobs": 3, "max_tokens": 1}
    free, bound = constrained_engine().generate(
        [[1, 2, 3]] * 2, [asking(None, **words), asking(choice_grammar(["yes"]), **words)]
    )
    assert bound.tokens == [ord("y")]
    assert dict(bound.logprobs[0].top) == pytest.approx(dict(free.logprobs[0].top))
    assert bound.logprobs[0].logprob < bound.logprobs[0].top[-1][1]


def outputs(**groups: dict[str, Any]) -> list[list[int]]:
    engine = constrained_engine(**groups)
    results = engine.generate(PROMPTS, ASKED)
    assert {result.error for result in results} == {None}
    preempted = groups.get("kv", {}).get("capacity_tokens") == 112
    assert engine.stats is not None
    assert bool(engine.stats.preemptions_total) == preempted
    engine.scheduler.check()
    assert not engine.runner.states
    return [result.tokens for result in results]


@pytest.mark.parametrize("setting", SETTINGS)
def test_constrained_answers_are_the_same_in_company(setting: str):
    """Also after preemption, when all that was said is computed again."""
    assert outputs(**SETTINGS[setting]) == outputs(scheduler={"max_num_seqs": 1})


def test_a_prefix_hit_changes_no_constrained_answer():
    engine = constrained_engine()
    first = [result.tokens for result in engine.generate(PROMPTS, ASKED)]
    again = engine.generate(PROMPTS, ASKED)
    assert [result.tokens for result in again] == first
    assert max(result.cached_tokens for result in again) >= 16


def test_a_step_that_is_run_again_draws_the_same_again(monkeypatch: pytest.MonkeyPatch):
    """A batch that fails is run row by row, after all of its rows have sampled."""
    expected = outputs()
    engine = constrained_engine()
    run, failures = engine.runner.run, []

    def fails_once_done(batch: Any, prepared: Any = None) -> Any:
        outcome = run(batch, prepared)
        if batch.num_rows > 1:
            failures.append(batch.id)
            raise RuntimeError("the batch is lost after it was sampled")
        return outcome

    monkeypatch.setattr(engine.runner, "run", fails_once_done)
    assert [result.tokens for result in engine.generate(PROMPTS, ASKED)] == expected
    assert len(failures) > 10


def test_rows_without_a_grammar_are_left_as_they_are():
    alone = constrained_engine().generate(PROMPTS[3:4], ASKED[3:4])[0]
    company = constrained_engine().generate(PROMPTS, ASKED)[3]
    assert company.tokens == alone.tokens


def test_a_request_waits_for_its_grammar_and_others_do_not():
    engine = constrained_engine()
    held = engine.submit([1, 2], asking(GRAMMARS[2]))
    other = engine.submit([1, 2], asking(None, max_tokens=3))
    begin = engine.core.grammars._begin
    engine.core.grammars._begin = lambda: None  # type: ignore[method-assign]
    while engine.results[other].finish is None:
        engine.core.step()
    assert not engine.results[held].tokens
    engine.scheduler.check()
    begin()
    while engine.results[held].finish is None:
        engine.core.step()
    assert json.loads(text(engine.results[held].tokens)).keys() == {"x", "kind"}


def test_one_who_leaves_while_its_grammar_is_compiled_leaves_nothing():
    engine = constrained_engine()
    id = engine.submit([1, 2], asking(GRAMMARS[2]))
    engine.core.step()
    engine.send(Abort([id]))
    engine.generate([[1, 2]], [asking(GRAMMARS[2])])
    assert engine.results[id].finish == "abort"
    assert not engine.runner.states
    engine.scheduler.check()


def test_bits_are_unpacked_in_the_same_order_on_any_device():
    words = np.random.default_rng(0).integers(-(2**31), 2**31, (3, 5), dtype=np.int32)
    on_host = unpacked(words, torch.device("cpu"))
    assert on_host.shape == (3, 160)
    assert torch.equal(on_host, shifted(torch.from_numpy(words)))
    assert [bool(bit) for bit in on_host[1, 64:96]] == [words[1, 2] >> n & 1 for n in range(32)]


def test_a_grammar_that_is_too_much_fails_its_own_row():
    wide = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(3000)}}
    engine = constrained_engine()
    bad, good = engine.generate(
        [[1, 2], [1, 2]], [asking(json_grammar(wide), temperature=0.0), ASKED[0]]
    )
    assert (bad.finish, bad.error_code) == ("error", "invalid_request")
    assert bad.error is not None
    assert bad.error.startswith("the grammar cannot be followed any further: ")
    assert good.finish == "stop"


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_grammar_harms_nobody_else(name: str):
    engine = constrained_engine()
    if engine_refuses(HOSTILE[name]):
        return
    hostile, good = engine.generate([[1], [1]], [asking(HOSTILE[name], max_tokens=30), ASKED[0]])
    assert hostile.finish in ("stop", "length") or hostile.error_code == "invalid_request"
    assert (good.finish, good.error) == ("stop", None)


def engine_refuses(grammar: str) -> bool:
    """What the server would have refused never comes to the engine."""
    return bool(Compiler(BYTES).objection(grammar))


def test_compiled_grammars_are_kept_and_bounded():
    engine = constrained_engine()
    asked = [asking(choice_grammar([f"{n}"]), max_tokens=5) for n in range(70)]
    results = engine.generate([[1]] * 70, asked)
    assert [text(result.tokens) for result in results] == [f"{n}" for n in range(70)]
    assert len(engine.core.grammars._compiled) == 64


def test_control_tokens_never_come_but_the_end():
    engine = constrained_engine()
    asked = [asking(regex_grammar("(?s).{5}"), seed, logit_bias={256: 100.0}) for seed in range(8)]
    for result in engine.generate([[1]] * 8, asked):
        assert len(text(result.tokens)) == 5
        assert result.stop_token in ENDS
