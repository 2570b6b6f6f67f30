"""How fast this machine's memory and cores are, timed for a second."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

COPY_BYTES = 64 * 1024**2
"""Of each core's array: larger than its share of the caches."""
WIDTH = 1024
"""Of the square matrices: long enough for every core, short enough to be repeated."""
BUDGET_S = 0.5


def bandwidth_gb_s(cores: int, budget_s: float = BUDGET_S) -> float:
    """Bytes read and written a second while every core copies, 10^9; the best of several times."""
    size = COPY_BYTES // 8
    pairs = [(np.ones(size), np.zeros(size)) for _ in range(cores)]
    with ThreadPoolExecutor(cores) as pool:

        def copy() -> None:
            # numpy lets other threads run while it copies
            list(pool.map(lambda pair: np.copyto(pair[1], pair[0]), pairs))

        return 2 * COPY_BYTES * cores / _best_s(copy, budget_s) / 1e9


def float32_tflops(budget_s: float = BUDGET_S) -> float:
    """Operations a second of matrix products, 10^12, on the threads that numpy's library takes."""
    left = np.full((WIDTH, WIDTH), 0.5, dtype=np.float32)
    right = np.full((WIDTH, WIDTH), 0.25, dtype=np.float32)
    out = np.empty((WIDTH, WIDTH), dtype=np.float32)
    return 2 * WIDTH**3 / _best_s(lambda: np.matmul(left, right, out=out), budget_s) / 1e12


def _best_s(work: Callable[[], object], budget_s: float) -> float:
    """The shortest time that it took, of at least two."""
    taken: list[float] = []
    until = time.perf_counter() + budget_s
    while len(taken) < 2 or time.perf_counter() < until:
        started = time.perf_counter()
        work()
        taken.append(time.perf_counter() - started)
    return min(taken)
