"""The engine against Hugging Face `generate` on the same weights and requests, in one process.

    python -m benchmarks.engine_vs_transformers [--rounds 3] [--requests 32]

Greedy decoding of mixed requests in bfloat16, every output forced to its length. Three ways take
turns, round by round: servekit with sixteen requests at once; `generate` one request at a time;
`generate` on left-padded batches of sixteen, each of which runs until its longest output is done.
Only tokens that were asked for count. Prints output tokens/s and the ratios, medians over rounds.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("GOMP_SPINCOUNT", "5000")  # as in the engine process; it helps all ways

import torch
from transformers import AutoModelForCausalLM, GgufConfig

from benchmarks.requests import Ask, mixed
from servekit.config.compose import load
from servekit.engine.local import LocalEngine
from servekit.engine.messages import Sampling
from servekit.model.sources import fetch

AT_ONCE = 16


def servekit_way(engine: LocalEngine, asks: list[Ask]) -> None:
    samplings = [Sampling(max_tokens=ask.output_tokens, seed=0, temperature=0.0) for ask in asks]
    outputs = engine.generate([ask.prompt for ask in asks], samplings)
    assert [len(output.tokens) for output in outputs] == [ask.output_tokens for ask in asks]


def generate(model: Any, asks: list[Ask]) -> None:
    """One left-padded batch; it runs as long as its longest output."""
    longest = max(len(ask.prompt) for ask in asks)
    tokens = max(ask.output_tokens for ask in asks)
    pads = [longest - len(ask.prompt) for ask in asks]
    ids = torch.tensor([[0] * pad + ask.prompt for pad, ask in zip(pads, asks, strict=True)])
    mask = torch.tensor([[0] * pad + [1] * (longest - pad) for pad in pads])
    with torch.inference_mode():
        out = model.generate(
            ids,
            attention_mask=mask,
            min_new_tokens=tokens,
            max_new_tokens=tokens,
            do_sample=False,
            pad_token_id=0,
        )
    assert out.shape == (len(asks), longest + tokens)


def one_by_one(model: Any, asks: list[Ask]) -> None:
    for ask in asks:
        generate(model, [ask])


def static_batches(model: Any, asks: list[Ask]) -> None:
    for start in range(0, len(asks), AT_ONCE):
        generate(model, asks[start : start + AT_ONCE])


def tokens_per_second(way: Callable[[list[Ask]], None], asks: list[Ask]) -> float:
    started = time.perf_counter()
    way(asks)
    return sum(ask.output_tokens for ask in asks) / (time.perf_counter() - started)


def reference(path: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(
        str(path.parent),
        gguf_file=path.name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
    ).eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=32)
    words = parser.parse_args()
    config = load(
        [
            "+recipe=chat_smollm2",
            "model.dtype=bfloat16",
            f"scheduler.max_num_seqs={AT_ONCE}",
            "kv.prefix_caching=false",
        ]
    ).config
    path = fetch(config.model.source, config.model.sha256, lambda phase, done, total: None)
    assert config.hardware.threads is not None
    torch.set_num_threads(config.hardware.threads)
    engine, model = LocalEngine.load(config, path), reference(path)
    ways: dict[str, Callable[[list[Ask]], None]] = {
        "servekit": lambda asks: servekit_way(engine, asks),
        "generate_one_by_one": lambda asks: one_by_one(model, asks),
        "generate_static_batches": lambda asks: static_batches(model, asks),
    }
    vocab = config.model.shape.vocab_size
    for way in ways.values():  # warm caches and allocators
        way(mixed(2, vocab, seed=99, prompt=(32, 64), output=(4, 8)))
    speeds: dict[str, list[float]] = {name: [] for name in ways}
    for round_number in range(words.rounds):
        asks = mixed(words.requests, vocab, seed=round_number, prompt=(32, 512), output=(16, 256))
        for name, way in ways.items():
            speeds[name].append(tokens_per_second(way, asks))
            print(
                f"round {round_number}: {name} {speeds[name][-1]:.1f} output tokens/s", flush=True
            )
    print(json.dumps(report(speeds), indent=2))


def report(speeds: dict[str, list[float]]) -> dict[str, float]:
    ours = speeds["servekit"]
    result = {f"{name}_tokens_per_s": round(statistics.median(s), 1) for name, s in speeds.items()}
    for name in ("generate_one_by_one", "generate_static_batches"):
        ratios = [a / b for a, b in zip(ours, speeds[name], strict=True)]
        result[f"ratio_over_{name}"] = round(statistics.median(ratios), 2)
    return result


if __name__ == "__main__":
    main()
