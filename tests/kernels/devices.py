"""Kernels are tried on the GPU where there is one, else in the interpreter."""

import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def generator(seed: int) -> torch.Generator:
    return torch.Generator(DEVICE).manual_seed(seed)
