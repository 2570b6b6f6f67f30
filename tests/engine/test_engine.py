"""What a request gets depends on nothing but itself."""

from dataclasses import fields
from typing import Any

import pytest
import torch
from msgspec.structs import asdict

from servekit.engine.heartbeat import BEAT_S
from servekit.engine.local import LocalEngine
from servekit.engine.messages import Abort, Caller, Pin, Sampling, Stop
from servekit.engine.sampler import NOT_FINITE
from servekit.errors import DoesNotFit, EngineError, WeightsError
from servekit.model.cache import KvCache
from servekit.model.inputs import StepInputs
from tests.engine.tiny import greedy, prompts, tiny_decoder, tiny_engine

PROMPTS = prompts(12)
GREEDY = [greedy(10 + index) for index in range(12)]
SEEDED = [
    Sampling(max_tokens=10, seed=index, temperature=0.8, top_p=0.9, frequency_penalty=0.2)
    for index in range(12)
]
SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "batched": {},
    "chunked": {"scheduler": {"max_num_batched_tokens": 9}},
    "preempted": {"kv": {"capacity_tokens": 112, "block_size": 4, "prefix_caching": False}},
    "swapped": {
        "kv": {
            "capacity_tokens": 112,
            "block_size": 4,
            "prefix_caching": False,
            "offload_gib": 1e-3,
        }
    },
    "static": {"scheduler": {"policy": "static"}},
    "one block a token": {"kv": {"block_size": 1}},
}


def tokens(engine: LocalEngine, samplings: list[Sampling]) -> list[list[int]]:
    results = engine.generate(PROMPTS, samplings)
    assert {result.finish for result in results} == {"length"}
    engine.scheduler.check()
    assert not engine.runner.states
    return [result.tokens for result in results]


def alone(samplings: list[Sampling]) -> list[list[int]]:
    return tokens(tiny_engine(scheduler={"max_num_seqs": 1}), samplings)


def by_hand(prompt: list[int], count: int) -> list[int]:
    """Greedy decoding without engine: the whole sequence in one row, again for each token."""
    decoder, sequence = tiny_decoder(), list(prompt)
    for _ in range(count):
        cache = KvCache(decoder.shape, 9, 16, "float32", "cpu")
        at = torch.arange(len(sequence))
        logits = decoder(
            StepInputs(
                token_ids=torch.tensor(sequence),
                positions=at,
                slots=(at + 16,),
                query_lens=[len(sequence)],
                seq_lens=[len(sequence)],
                decodes=0,
                query_starts=torch.tensor([0, len(sequence)]).int(),
                contexts=torch.tensor([len(sequence)]).int(),
                block_tables=(torch.arange(1, 9)[None],),
                sample_at=at[-1:],
            ),
            cache,
        )
        sequence.append(int(logits.argmax()))
    return sequence[len(prompt) :]


def test_greedy_tokens_are_those_of_decoding_by_hand():
    asked = zip(PROMPTS, GREEDY, strict=True)
    expected = [by_hand(prompt, words.max_tokens) for prompt, words in asked]
    assert alone(GREEDY) == expected
    assert len({token for output in expected for token in output}) > 30, "a model worth asking"


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("samplings", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_tokens_are_the_same_in_company(setting: str, samplings: list[Sampling]):
    engine = tiny_engine(**SETTINGS[setting])
    assert tokens(engine, samplings) == alone(samplings)
    assert engine.stats is not None
    assert (engine.stats.preemptions_total > 0) == (setting in ("preempted", "swapped"))
    assert (engine.stats.swaps_total > 0) == (setting == "swapped")


def test_tokens_are_the_same_after_a_prefix_hit():
    engine = tiny_engine()
    first = tokens(engine, SEEDED)
    again = engine.generate(PROMPTS, SEEDED)
    assert [result.tokens for result in again] == first
    assert max(result.cached_tokens for result in again) >= 16


def test_tenants_share_no_cached_block():
    engine = tiny_engine()
    prompt = [7] * 40
    cached = []
    for salt in (b"one", b"two", b"one"):
        id = engine.submit(prompt, greedy(2), Caller(salt=salt))
        while engine.results[id].finish is None:
            engine.core.step()
        cached.append(engine.results[id].cached_tokens)
    assert cached[:2] == [0, 0]
    assert cached[2] >= 32


def test_answers_to_one_prompt_compute_it_once():
    engine = tiny_engine()
    results = engine.generate([[7] * 40] * 4, [greedy(3)] * 4)
    assert len({tuple(result.tokens) for result in results}) == 1
    assert sum(40 - result.cached_tokens for result in results) < 2 * 40


def test_a_pinned_prompt_stays_when_others_are_evicted():
    pinned, engine = [9] * 32, tiny_engine(kv={"capacity_tokens": 160})
    engine.send(Pin(pinned))
    engine.generate([[*pinned, 1]], [greedy(2)])
    engine.generate([[token] * 60 for token in range(10, 16)], [greedy(2)] * 6)
    again = engine.generate([[*pinned, 2]], [greedy(2)])[0]
    assert again.cached_tokens == len(pinned)


def test_the_server_is_told_every_number_of_the_scheduler():
    engine = tiny_engine()
    engine.generate([[1, 2, 3]], [greedy(2)])
    now = engine.scheduler.stats()
    told = {one.name: getattr(now, one.name) for one in fields(now) if one.name != "held"}
    stats = asdict(engine.stats)
    assert told.items() <= stats.items()


def test_logprobs_come_with_each_token():
    result = tiny_engine().generate([[1, 2]], [greedy(5, logprobs=2)])[0]
    assert [entry.top[0][0] for entry in result.logprobs] == result.tokens
    assert all(entry.logprob == entry.top[0][1] for entry in result.logprobs)


def test_a_stop_token_ends_a_request_once_it_is_long_enough():
    plain = tiny_engine().generate([[5, 6]], [greedy(12)])[0].tokens
    stop = plain[3]
    assert plain.index(stop) == 3
    short = tiny_engine().generate([[5, 6]], [greedy(12, stop_token_ids=[stop])])[0]
    assert (short.tokens, short.finish, short.stop_token) == (plain[:4], "stop", stop)
    words = greedy(12, stop_token_ids=[stop], min_tokens=6)
    longer = tiny_engine().generate([[5, 6]], [words])[0]
    assert len(longer.tokens) >= 6
    assert stop not in longer.tokens[:6]


def test_an_abort_frees_the_blocks_before_the_next_step():
    engine = tiny_engine()
    ids = [engine.submit(prompt, greedy(50)) for prompt in PROMPTS[:4]]
    for _ in range(6):
        engine.core.step()
    assert engine.stats is not None
    assert engine.stats.blocks_free < engine.stats.blocks_total
    engine.send(Abort(ids))
    engine.core.step()
    assert engine.stats.blocks_free == engine.stats.blocks_total
    assert {engine.results[id].finish for id in ids} == {"abort"}
    assert not engine.runner.states


def test_an_abort_of_an_unknown_request_is_nothing():
    engine = tiny_engine()
    engine.send(Abort([77]))
    engine.core.step()
    assert engine.stats is None


def test_a_request_with_bad_logits_fails_alone_and_leaves_no_trace():
    poison = 299
    decoder = tiny_decoder()
    decoder.embedding.data[poison] = float("nan")
    engine = tiny_engine(decoder, kv={"capacity_tokens": 640})
    expected = tokens(tiny_engine(decoder, scheduler={"max_num_seqs": 1}), GREEDY)
    bad = engine.submit([poison] * 40, greedy(5))
    assert tokens(engine, GREEDY) == expected
    assert (engine.results[bad].finish, engine.results[bad].error) == ("error", NOT_FINITE)
    assert engine.results[bad].error_code == "engine_error"
    assert tokens(engine, GREEDY) == expected, "with blocks that held NaN"


class Faulty(torch.nn.Module):
    """Raises where a request begins with the token, always where that is None."""

    def __init__(self, decoder: torch.nn.Module, token: int | None) -> None:
        super().__init__()
        self.decoder, self.token = decoder, token

    def __getattr__(self, name: str) -> Any:
        own = name not in ("shape", "kernels")
        return super().__getattr__(name) if own else getattr(self.decoder, name)

    def forward(self, inputs: StepInputs, cache: KvCache) -> torch.Tensor:
        first = inputs.token_ids[inputs.positions == 0].tolist()
        if self.token is None or self.token in first:
            raise RuntimeError("kernel fault")
        return self.decoder(inputs, cache)


def test_a_request_that_makes_a_step_raise_fails_alone():
    expected = alone(GREEDY)
    engine = tiny_engine()
    engine.runner.decoder = Faulty(engine.runner.decoder, token=298)
    bad = engine.submit([298, 3, 4], greedy(5))
    assert tokens(engine, GREEDY) == expected
    assert engine.results[bad].finish == "error"
    assert "error id" in (engine.results[bad].error or "")
    assert "kernel fault" not in (engine.results[bad].error or ""), "that is for the log"
    assert not engine.runner.cache.data[:, :, 0].any(), "the probe leaves the null block zero"


def test_an_engine_that_can_compute_nothing_gives_up():
    engine = tiny_engine()
    engine.runner.decoder = Faulty(engine.runner.decoder, token=None)
    engine.submit([1], greedy(1))
    with pytest.raises(EngineError, match="cannot compute any more: RuntimeError: kernel fault"):
        engine.core.step()


@pytest.mark.parametrize(
    ("prompt", "sampling", "code", "message"),
    [
        ([1] * 300, greedy(5), "context_length_exceeded", "300 prompt tokens and 5 to generate"),
        ([], greedy(5), "invalid_request", "0 prompt tokens"),
        ([300], greedy(5), "invalid_request", "token id 300, but the model's ids are 0 to 299"),
        ([1], greedy(5, logit_bias={-4: 1.0}), "invalid_request", "logit_bias has token id -4"),
    ],
)
def test_what_cannot_be_served_is_refused(
    prompt: list[int], sampling: Sampling, code: str, message: str
):
    engine = tiny_engine()
    result = engine.generate([prompt], [sampling])[0]
    assert (result.finish, result.error_code) == ("error", code)
    assert message in (result.error or "")
    assert not engine.runner.states


def test_a_full_queue_refuses_the_next():
    engine = tiny_engine(scheduler={"max_num_seqs": 2, "max_num_waiting": 1})
    codes = [result.error_code for result in engine.generate([[1]] * 4, [greedy(2)] * 4)]
    assert codes == [None, None, None, "queue_full"]


def test_an_idle_engine_waits_and_a_busy_one_does_not():
    engine = tiny_engine()
    waits: list[float | None] = []

    def inbox(wait_s: float | None, until: int | None = None) -> list[Any]:
        waits.append(wait_s)
        return engine._drain(wait_s)

    engine.core.inbox = inbox
    engine.generate([[1]], [greedy(2)])
    engine.core.step()
    engine.core.step()
    assert waits == [BEAT_S, 0.0, 0.0, BEAT_S]


def test_stop_ends_the_loop():
    engine = tiny_engine()
    engine.submit([1], greedy(100))
    engine.send(Stop())
    engine.core.run()
    assert engine.results[0].tokens == []


def test_weights_that_give_no_numbers_fail_at_the_start():
    decoder = tiny_decoder()
    decoder.norm.weight.data.fill_(float("nan"))
    with pytest.raises(WeightsError, match="the weights are damaged"):
        tiny_engine(decoder)


def test_a_cache_of_no_blocks_fails_at_the_start():
    with pytest.raises(DoesNotFit, match="not one block of 16 tokens"):
        tiny_engine(kv={"memory_gib": 1e-6, "capacity_tokens": None})


def test_a_cache_of_narrower_numbers_gives_the_same_in_one_piece_and_in_chunks():
    kv = {"dtype": "bfloat16", "prefix_caching": False}
    whole = tiny_engine(kv=kv).generate(PROMPTS, GREEDY)
    chunked = tiny_engine(kv=kv, scheduler={"max_num_batched_tokens": 9}).generate(PROMPTS, GREEDY)
    assert [out.tokens for out in whole] == [out.tokens for out in chunked]
