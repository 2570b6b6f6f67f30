"""The mixed requests that the benchmarks share: same lengths every run, other words every run."""

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ask:
    prompt: list[int]
    output_tokens: int


def mixed(
    count: int, vocab_size: int, *, seed: int, prompt: tuple[int, int], output: tuple[int, int]
) -> list[Ask]:
    """`count` requests; lengths uniform in the closed ranges and equal for every seed."""
    lengths = random.Random(0)
    words = random.Random(seed)
    return [
        Ask(
            prompt=[words.randrange(20, vocab_size) for _ in range(lengths.randint(*prompt))],
            output_tokens=lengths.randint(*output),
        )
        for _ in range(count)
    ]
