"""Least squares without negative numbers, small enough to need no library."""

import math
from collections.abc import Sequence


def non_negative(
    rows: Sequence[Sequence[float]], targets: Sequence[float], weights: Sequence[float]
) -> tuple[float, ...]:
    """Weighted least squares without negative numbers (Lawson and Hanson's active sets)."""
    count = len(rows[0])
    columns = list(zip(*rows, strict=True))
    scales = [max(map(abs, column)) or 1.0 for column in columns]
    weighed = [[w * x for w, x in zip(weights, column, strict=True)] for column in columns]
    gram = [
        [_dot(weighed[i], columns[j]) / scales[i] / scales[j] for j in range(count)]
        for i in range(count)
    ]
    right = [_dot(weighed[i], targets) / scales[i] for i in range(count)]
    found, chosen, useless = [0.0] * count, set[int](), set[int]()
    least = 1e-9 * max(map(abs, right), default=0.0)
    while True:
        gains = [right[i] - _dot(gram[i], found) for i in range(count)]
        free = [i for i in range(count) if i not in chosen | useless and gains[i] > least]
        if not free:
            return tuple(value / scale for value, scale in zip(found, scales, strict=True))
        best = max(free, key=gains.__getitem__)
        if not _enter(best, found, chosen, gram, right):
            useless.add(best)


def _enter(
    new: int,
    found: list[float],
    chosen: set[int],
    gram: Sequence[Sequence[float]],
    right: Sequence[float],
) -> bool:
    """Let one more number be more than 0, and others be 0 for it; False if that leads nowhere."""
    chosen.add(new)
    while chosen:
        order = sorted(chosen)
        part = solve([[gram[i][j] for j in order] for i in order], [right[i] for i in order])
        if part is None or (part[order.index(new)] <= 0 if new in chosen else False):
            chosen.discard(new)
            return False
        goal = dict(zip(order, part, strict=True))
        if min(part) > 0:
            for i in range(len(found)):
                found[i] = goal.get(i, 0.0)
            return True
        step = min(found[i] / (found[i] - goal[i]) for i in order if goal[i] <= 0)
        for i in order:
            found[i] += step * (goal[i] - found[i])
        chosen -= {i for i in order if goal[i] <= 0 and found[i] <= 1e-12}
    return False


def _dot(first: Sequence[float], second: Sequence[float]) -> float:
    return math.fsum(map(float.__mul__, first, second))


def solve(matrix: list[list[float]], right: list[float]) -> list[float] | None:
    """Gaussian elimination with pivots; None if columns say the same."""
    size = len(right)
    table = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for column in range(size):
        pivot = max(range(column, size), key=lambda row: abs(table[row][column]))
        if abs(table[pivot][column]) < 1e-12 * max(1e-300, abs(matrix[column][column])):
            return None
        table[column], table[pivot] = table[pivot], table[column]
        for row in range(column + 1, size):
            factor = table[row][column] / table[column][column]
            for place in range(column, size + 1):
                table[row][place] -= factor * table[column][place]
    found = [0.0] * size
    for row in range(size - 1, -1, -1):
        rest = sum(table[row][place] * found[place] for place in range(row + 1, size))
        found[row] = (table[row][size] - rest) / table[row][row]
    return found
