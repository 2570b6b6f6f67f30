"""A tiny decoder with random weights, in memory and as a Hugging Face folder."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from servekit.config.shape import Shape
from servekit.engine.local import LocalEngine
from servekit.engine.messages import Sampling
from servekit.model.decoder import Decoder
from tests.conftest import tiny_config, tiny_shape


def tiny_decoder(shape: Shape | None = None, seed: int = 0) -> Decoder:
    """Weights are wide enough that tokens depend on the context and best tokens stand clear."""
    decoder = Decoder(shape or tiny_shape(), "float32", "cpu")
    generator = torch.Generator().manual_seed(seed)
    for parameter in decoder.parameters():
        parameter.data.normal_(0, 0.3, generator=generator)
    return decoder


def tiny_engine(decoder: Decoder | None = None, **groups: dict[str, Any]) -> LocalEngine:
    return LocalEngine(tiny_config(**groups), decoder or tiny_decoder())


def tiny_folder(folder: Path) -> Path:
    """The same weights where `load_decoder` can read them."""
    folder.mkdir(parents=True, exist_ok=True)
    names = {"lm_head.weight": "lm_head.weight"}
    tensors = {
        names.get(name, f"model.{name}"): tensor.detach().clone().contiguous()
        for name, tensor in tiny_decoder().places().items()
    }
    save_file(tensors, folder / "model.safetensors")
    return folder


def greedy(max_tokens: int, **words: Any) -> Sampling:
    return Sampling(max_tokens=max_tokens, seed=0, temperature=0.0, **words)


def prompts(count: int, seed: int = 0) -> list[list[int]]:
    """Of 1 to 60 tokens; ids below 290, so that a test may give the others a meaning."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 61, (count,), generator=generator).tolist()
    return [torch.randint(0, 290, (n,), generator=generator).tolist() for n in lengths]
