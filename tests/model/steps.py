"""Runs tokens of several requests through a decoder, on scattered blocks of a cache of NaN."""

import random

import torch

from servekit.model.cache import KvCache
from servekit.model.decoder import Decoder
from servekit.model.inputs import StepInputs

DTYPE_NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


class Paged:
    def __init__(self, decoder: Decoder, num_blocks: int = 64, block_size: int = 4) -> None:
        self.decoder = decoder
        dtype = DTYPE_NAMES[decoder.dtype]
        self.cache = KvCache(decoder.shape, num_blocks, block_size, dtype, "cpu")
        self.cache.data[:, :, 1:] = float("nan")
        self.free = list(range(1, num_blocks))
        random.Random(0).shuffle(self.free)
        self.blocks: dict[str, list[int]] = {}
        self.lengths: dict[str, int] = {}

    def step(self, **tokens: list[int]) -> dict[str, torch.Tensor]:
        """One step; logits of every token, [tokens, vocab_size], by request."""
        logits = self.decoder(self.inputs(**tokens), self.cache)
        return dict(zip(tokens, logits.split([*map(len, tokens.values())]), strict=True))

    def inputs(self, **tokens: list[int]) -> StepInputs:
        size = self.cache.block_size
        positions, slots = [], []
        for name, row in tokens.items():
            start = self.lengths.get(name, 0)
            self.lengths[name] = start + len(row)
            table = self.blocks.setdefault(name, [])
            while len(table) * size < self.lengths[name]:
                table.append(self.free.pop())
            here = range(start, start + len(row))
            positions += here
            slots += [table[place // size] * size + place % size for place in here]
        tables = [self.blocks[name] for name in tokens]
        widest = max(map(len, tables)) + 1
        counts = [len(row) for row in tokens.values()]
        lengths = [self.lengths[name] for name in tokens]
        return StepInputs(
            token_ids=torch.tensor([token for row in tokens.values() for token in row]),
            positions=torch.tensor(positions),
            slots=(torch.tensor(slots),),
            query_lens=counts,
            seq_lens=lengths,
            decodes=0,
            query_starts=torch.tensor([0, *counts]).cumsum(0).int(),
            contexts=torch.tensor(lengths).int(),
            block_tables=(torch.tensor([table + [0] * (widest - len(table)) for table in tables]),),
            sample_at=torch.arange(len(positions)),
        )


def random_weights(decoder: Decoder, seed: int = 0) -> Decoder:
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in decoder.named_parameters():
        draw = torch.randn(parameter.shape, generator=generator)
        parameter.copy_(1 + 0.1 * draw if "norm" in name or "before" in name else 0.2 * draw)
    return decoder
