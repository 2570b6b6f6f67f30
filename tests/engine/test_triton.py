"""A whole engine on Triton's kernels, in the interpreter: its tokens are those of torch."""

from typing import Any

import pytest
import torch

from servekit.engine.local import LocalEngine
from servekit.engine.messages import Sampling
from servekit.kernels.table import OPS
from servekit.model.cache import KvCache
from servekit.model.decoder import Decoder
from tests.conftest import TINY_MOE, tiny_config, tiny_shape
from tests.engine.tiny import greedy
from tests.kernels.interpreter import races

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="for the interpreter")

SHARED_EXPERT = {"shared_intermediate_size": 40, "shared_gate": True}
SHAPES = {
    "llama": {},
    "qwen3": {"qk_norm": True, "qkv_bias": True, "heads": 6},
    "gemma3": {
        "qk_norm": True,
        "norm_unit_offset": True,
        "post_norms": True,
        "activation": "gelu_tanh",
        "scale_embeddings": True,
        "sliding_window": 12,
        "full_attention_layers": (1,),
        "attention_logit_softcap": 20.0,
    },
    "qwen2_moe": {
        "qkv_bias": True,
        "moe": {**TINY_MOE, **SHARED_EXPERT, "dense_layers": (1,)},
    },
    "dots1": {
        "qk_norm": True,
        "moe": {**TINY_MOE, "router": "sigmoid", "router_bias": True, "routed_scale": 2.5},
    },
}
SHARED = list(range(40, 57))
PROMPTS = [[*SHARED, 7, 8], [5], [*SHARED, 9], list(range(100, 123))]


def engine(
    family: str, by: dict[str, str], *, deterministic: bool = False, capacity_tokens: int = 512
) -> LocalEngine:
    """Two layers; prompts are computed in chunks of at most 8 tokens."""
    shape = tiny_shape(layers=2, head_dim=16, **SHAPES[family])
    decoder = Decoder(shape, "float32", "cpu")
    generator = torch.Generator().manual_seed(1)
    for parameter in decoder.parameters():
        parameter.data.normal_(0, 0.3, generator=generator)
    limits = {"max_num_seqs": 3, "max_num_batched_tokens": 8}
    config = tiny_config(
        model={"shape": shape, "max_model_len": 64},
        scheduler=limits,
        kv={"block_size": 8, "capacity_tokens": capacity_tokens},
        engine={"kernels": by, "deterministic": deterministic},
    )
    return LocalEngine(config, decoder)


def answers(made: LocalEngine) -> list[list[int]]:
    """Two at a time, so that later ones find the prefix of earlier ones."""
    samplings: list[Sampling] = [
        greedy(5),
        Sampling(max_tokens=4, seed=3, temperature=0.8, top_k=20),
    ]
    tokens = []
    for pair in (PROMPTS[:2], PROMPTS[2:]):
        results = made.generate(pair, samplings)
        tokens += [result.tokens for result in results]
    made.scheduler.check()
    return tokens


@pytest.mark.parametrize("family", SHAPES)
def test_tokens_are_those_of_torch(family: str) -> None:
    expected = answers(engine(family, dict.fromkeys(OPS, "torch")))
    assert len({token for output in expected for token in output}) > 5, "a model worth asking"
    with races():
        assert answers(engine(family, dict.fromkeys(OPS, "triton"))) == expected


@pytest.mark.parametrize("op", OPS)
def test_each_operation_may_be_chosen_alone(op: str) -> None:
    family = "qwen2_moe" if op == "moe" else "llama"
    expected = answers(engine(family, dict.fromkeys(OPS, "torch")))
    assert answers(engine(family, {**dict.fromkeys(OPS, "torch"), op: "triton"})) == expected


def test_sampling_in_one_pass_says_what_torch_says_of_every_parameter() -> None:
    """Bias, penalties, minimum length and filters; log-probs are those of the model."""
    words: list[dict[str, Any]] = [
        {"temperature": 0.0, "repetition_penalty": 1.4, "logprobs": 2},
        {"temperature": 1.2, "top_p": 0.9, "frequency_penalty": 0.8, "presence_penalty": 0.3},
        {"temperature": 0.9, "min_p": 0.02, "logit_bias": {3: 4.0, 5: -100.0}},
        {"temperature": 1.0, "top_k": 50, "min_tokens": 3, "stop_token_ids": [7, 8]},
    ]
    samplings = [Sampling(max_tokens=5, seed=n, **own) for n, own in enumerate(words)]

    def said(by: dict[str, str]) -> list[tuple[list[int], object]]:
        results = engine("llama", by).generate(PROMPTS, samplings)
        return [(result.tokens, result.logprobs) for result in results]

    torch_alone = dict.fromkeys(OPS, "torch")
    assert said({**torch_alone, "sample": "triton"}) == said(torch_alone)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_deterministic_answers_have_the_same_bits_alone_and_in_any_batch(family: str) -> None:
    """Whole or in chunks, after a prefix hit, and where the cache holds few at once."""
    triton = dict.fromkeys(OPS, "triton")
    samplings = [Sampling(max_tokens=4, seed=n, temperature=0.9, logprobs=3) for n in range(4)]

    def said(made: LocalEngine, asked: list[int]) -> list[tuple[list[int], object]]:
        results = made.generate([PROMPTS[n] for n in asked], [samplings[n] for n in asked])
        return [(result.tokens, result.logprobs) for result in results]

    everybody = list(range(4))
    alone = [said(engine(family, triton, deterministic=True), [n])[0] for n in everybody]
    together = engine(family, triton, deterministic=True)
    assert said(together, everybody) == alone
    assert said(together, everybody) == alone, "prefixes are found now"
    tight = engine(family, triton, deterministic=True, capacity_tokens=48)
    assert said(tight, everybody) == alone


def test_deterministic_experts_say_the_same_alone_and_together() -> None:
    triton = dict.fromkeys(OPS, "triton")
    samplings = [Sampling(max_tokens=3, seed=n, temperature=0.9, logprobs=2) for n in range(2)]

    def said(asked: list[int]) -> list[tuple[list[int], object]]:
        made = engine("qwen2_moe", triton, deterministic=True)
        results = made.generate([PROMPTS[n] for n in asked], [samplings[n] for n in asked])
        return [(result.tokens, result.logprobs) for result in results]

    assert said([0, 1]) == [*said([0]), *said([1])]


@pytest.mark.parametrize("stored", ["fp8", "int8"])
def test_narrow_caches_hold_what_torch_stores_in_them(stored: str) -> None:
    caches = []
    for kind in ("torch", "triton"):
        made = engine("qwen3", dict.fromkeys(OPS, kind))
        made.runner.cache = KvCache(made.runner.decoder.shape, 65, 8, stored, "cpu")
        made.generate([PROMPTS[3]], [greedy(1)])
        caches.append(made.runner.cache)
    theirs, ours = (wide(cache) for cache in caches)
    assert (theirs != 0).any()
    # what falls between two numbers of eight bits may be rounded to either
    step = {"fp8": 0.13, "int8": 0.02}[stored] * theirs.abs() + 0.02
    assert ((ours - theirs).abs() <= step).all()
    assert (ours != theirs).float().mean() < 0.05


def wide(cache: KvCache) -> torch.Tensor:
    values = cache.data.float()
    return values if cache.scales is None else values * cache.scales[..., None]
