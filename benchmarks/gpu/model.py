"""A whole model of Llama 3.1 8B's shape with random weights: one decode step against what memory
allows, and requests from end to end against Hugging Face's `generate`."""

import random
import time
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch

from benchmarks.gpu.bench import Bench, ratio
from benchmarks.gpu.lines import Line
from benchmarks.requests import Ask, mixed

STEP_TARGET = 0.8
"""Of the time that the measured copy needs for the weights and the context's keys and values."""
STEPS, TINY_STEPS = 64, 3
STATIC = 16
"""Requests of one batch of `generate`."""
TINY = {
    "layers": 2, "hidden_size": 64, "heads": 4, "kv_heads": 2, "head_dim": 16,
    "intermediate_size": 96, "vocab_size": 500,
}  # fmt: skip


@cache
def engine(bench_is_dry: bool, hardware: str, most: int) -> Any:
    """One for both sections; for `most` requests at once."""
    from servekit.config.compose import load
    from servekit.engine.local import LocalEngine
    from servekit.model.decoder import Decoder

    # the workload must fit; what is measured here is not what it plans
    words = [
        "model=llama3_8b", "slo=none", "workload=light", "kv.prefix_caching=false",
        "model.dtype=bfloat16", f"scheduler.max_num_seqs={most}", "engine.kernels=triton",
    ]  # fmt: skip
    if bench_is_dry:
        words += ["hardware=cpu", "kv.capacity_tokens=512", "model.max_model_len=64"]
        words += ["scheduler.max_num_batched_tokens=16"]
    else:
        words += [f"hardware={hardware}", "kv.capacity_tokens=196608", "model.max_model_len=8192"]
    config = load(words).config
    if bench_is_dry:
        shape = config.model.shape.model_copy(update=TINY)
        model = config.model.model_copy(update={"shape": shape})
        config = config.model_copy(update={"model": model})
    decoder = Decoder(config.model.shape, "bfloat16", "cpu" if bench_is_dry else "cuda:0").eval()
    for parameter in decoder.parameters():
        parameter.data.normal_(0, 0.02)
    return LocalEngine(config, decoder)


def missing() -> str:
    """The package that servekit needs and this interpreter lacks; "" for none."""
    try:
        import servekit.config.compose
        import servekit.engine.local  # noqa: F401
    except ImportError as lacking:
        return str(lacking.name)
    return ""


def decode_step(bench: Bench, hardware: str) -> Iterator[Line]:
    """Wall time of a step in which all decode, of many in a row, as the engine runs them."""
    loads = bench.of(((1, 1024), (16, 1024), (64, 2048)), ((2, 9),))
    made = engine(bench.dry, hardware, loads[-1][0])
    graphs = made.runner.graphs
    for batch, context in loads:
        for name, chosen in (("captured", graphs), ("as it comes", None)):
            if name == "captured" and graphs is None and not bench.dry:
                continue
            made.runner.graphs = chosen
            taken = _step_seconds(bench, made, batch, context)
            read = _read_bytes(made, batch, context)
            bound = None if bench.copy_gb_s is None else read / bench.copy_gb_s / 1e9
            yield Line(
                "decode_step",
                name,
                f"{batch} x {context:,}",
                {
                    "ms": None if taken is None else taken * 1e3,
                    "bound ms": None if bound is None else bound * 1e3,
                    "output tokens/s": ratio(batch, taken),
                },
                reached=ratio(bound, taken),
                target=STEP_TARGET if name == "captured" else None,
            )
    made.runner.graphs = graphs


def _step_seconds(bench: Bench, made: Any, batch: int, context: int) -> float | None:
    from servekit.engine.messages import Sampling

    steps, chance = TINY_STEPS if bench.dry else STEPS, random.Random(batch)
    vocab = made.runner.decoder.shape.vocab_size
    greedy = Sampling(max_tokens=2 * steps, seed=0, temperature=0.0)
    ids = [
        made.submit([chance.randrange(vocab) for _ in range(context)], greedy) for _ in range(batch)
    ]
    while any(len(made.results[id].tokens) < 2 for id in ids):
        made.core.step()
    began = time.perf_counter()
    for _ in range(steps):
        made.core.step()
    taken = (time.perf_counter() - began) / steps
    while any(made.results[id].finish is None for id in ids) or made.core.flights:
        made.core.step()
    if failed := [made.results[id].error for id in ids if made.results[id].error]:
        raise RuntimeError(f"a request of the benchmark failed: {failed[0]}")
    return None if bench.dry else taken


def _read_bytes(made: Any, batch: int, context: int) -> int:
    """Weights that a step reads (of an untied embedding only a few rows), and the context."""
    decoder = made.runner.decoder
    shape, embedding = decoder.shape, decoder.embedding
    unread = 0 if shape.tie_word_embeddings else embedding.numel() * embedding.element_size()
    a_token = 2 * shape.layers * shape.kv_heads * shape.head_dim * 2
    return int(decoder.weight_bytes) - unread + batch * context * a_token


def end_to_end(bench: Bench, hardware: str) -> Iterator[Line]:
    """Greedy requests of mixed lengths, all given at once; ours and theirs in turn."""
    made = engine(bench.dry, hardware, 64 if not bench.dry else 2)
    vocab = made.runner.decoder.shape.vocab_size
    number, prompt, output = bench.of((64, (64, 1024), (32, 128)), (3, (4, 20), (2, 5)))
    theirs = _transformers(bench, made.runner.decoder.shape)
    ours, other = [], []
    for turn in range(1 if bench.dry else 2):
        asks = mixed(number, vocab, seed=turn, prompt=prompt, output=output)
        ours.append(_ours(made, asks))
        if theirs is not None:
            other.append(_static(bench, theirs, asks))
    rate, slower = (_best(bench, found) for found in (ours, other))
    yield Line(
        "end_to_end",
        "servekit" + ("" if theirs is not None else "; transformers is not installed"),
        f"{number} requests",
        {
            "output tokens/s": rate,
            "transformers, batches of 16": slower,
            "times as fast": ratio(rate, slower),
        },
    )


def _best(bench: Bench, found: list[float]) -> float | None:
    """Tokens a second; the first turn also warms up."""
    return None if bench.dry or not found else max(found)


def _ours(made: Any, asks: list[Ask]) -> float:
    from servekit.engine.messages import Sampling

    samplings = [Sampling(max_tokens=ask.output_tokens, seed=0, temperature=0.0) for ask in asks]
    began = time.perf_counter()
    outputs = made.generate([ask.prompt for ask in asks], samplings)
    taken = time.perf_counter() - began
    for ask, output in zip(asks, outputs, strict=True):
        if len(output.tokens) != ask.output_tokens:
            raise RuntimeError(f"{len(output.tokens)} tokens came, not {ask.output_tokens}")
    return sum(ask.output_tokens for ask in asks) / taken


def _transformers(bench: Bench, shape: Any) -> Any:
    """A model of the same shape, with random weights of its own; None without the package."""
    try:
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError:
        return None
    config = LlamaConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=8192,
        eos_token_id=None,
    )
    with torch.device(bench.device):
        model = LlamaForCausalLM(config)
    return model.bfloat16().eval()


def _static(bench: Bench, model: Any, asks: list[Ask]) -> float:
    """Left-padded batches, each as long as its longest answer; tokens that were asked for count."""
    began = time.perf_counter()
    for start in range(0, len(asks), STATIC):
        some = asks[start : start + STATIC]
        longest = max(len(ask.prompt) for ask in some)
        tokens = max(ask.output_tokens for ask in some)
        pads = [longest - len(ask.prompt) for ask in some]
        ids = [[0] * pad + ask.prompt for pad, ask in zip(pads, some, strict=True)]
        mask = [[0] * pad + [1] * (longest - pad) for pad in pads]
        with torch.inference_mode():
            model.generate(
                torch.tensor(ids, device=bench.device),
                attention_mask=torch.tensor(mask, device=bench.device),
                min_new_tokens=tokens,
                max_new_tokens=tokens,
                do_sample=False,
                pad_token_id=0,
            )
    return sum(ask.output_tokens for ask in asks) / (time.perf_counter() - began)
