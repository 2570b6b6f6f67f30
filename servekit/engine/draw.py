"""The uniform number that each output position is drawn with."""

import numpy as np

PAGE = 64
"""Uniform numbers made at once."""


class Uniforms:
    """Numbers in [0, 1) that depend on seed and index alone.

    Philox (Salmon et al. 2011) is a function from (key, counter) to bits, so that the draw for an
    output position is the same alone, in any batch, and when it is made again after preemption.
    """

    __slots__ = ("_number", "_page", "_seed")

    def __init__(self, seed: int) -> None:
        self._seed = seed % 2**64
        self._number = -1
        self._page: list[float] = []

    def __getitem__(self, index: int) -> float:
        number, place = divmod(index, PAGE)
        if number != self._number:
            bits = np.random.Philox(key=self._seed, counter=number << 64).random_raw(PAGE)
            # 50 bits: the largest stays below 1 when multiplied by a sum of probabilities
            self._page = ((bits >> np.uint64(14)) * 2.0**-50).tolist()
            self._number = number
        return self._page[place]
