"""Hugging Face transformers on the same weights: what greedy decoding must say."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GgufConfig

TIE = 1e-3
"""Two best logits nearer than this may stand in either order."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A token that is not the reference's best, and by how much the best is better."""

    position: int
    token: int
    best: int
    gap: float


class Reference:
    """A transformers model read from a GGUF file, in float32 or bfloat16."""

    def __init__(self, path: Path, dtype: torch.dtype = torch.float32) -> None:
        self.model: Any = AutoModelForCausalLM.from_pretrained(
            str(path.parent),
            gguf_file=path.name,
            dtype=dtype,
            quantization_config=GgufConfig(dequantize=True),
        ).eval()
        # `min_new_tokens` would forbid these instead, and then another token is the best
        self.model.generation_config.eos_token_id = None

    @torch.inference_mode()
    def logits(self, prompt: list[int], output: list[int]) -> torch.Tensor:
        """Float32 [len(output), vocab]: those that each output token was to be chosen from."""
        ids = torch.tensor([prompt + output[:-1]])
        return self.model(ids, logits_to_keep=len(output)).logits[0].float()

    @torch.inference_mode()
    def logits_after_each(self, ids: list[int]) -> torch.Tensor:
        """Float32 [len(ids), vocab]."""
        return self.model(torch.tensor([ids])).logits[0].float()

    @torch.inference_mode()
    def generate(self, prompt: list[int], tokens: int) -> list[int]:
        ids = torch.tensor([prompt])
        whole = self.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=tokens,
            do_sample=False,
            repetition_penalty=1.0,
        )
        return whole[0, len(prompt) :].tolist()

    def differences(self, prompt: list[int], output: list[int]) -> list[Difference]:
        """Where greedy decoding that had come so far would have gone on otherwise.

        Every token is judged in the context of those before it, so that one near tie does not hide
        the rest: if there is no difference, `generate` gives this output.
        """
        logits = self.logits(prompt, output)
        chosen = torch.tensor(output)
        best, argmax = logits.max(dim=-1)
        gaps = best - logits.gather(1, chosen[:, None])[:, 0]
        return [
            Difference(at, output[at], int(argmax[at]), float(gaps[at]))
            for at in (argmax != chosen).nonzero()[:, 0].tolist()
        ]
