"""How many rows a matrix product is given.

A CPU's matrix library compiles a kernel for every number of rows it meets and keeps hundreds of
them: milliseconds at the first use, and more than half a megabyte each. Steps have every number of
rows there is, so they are padded to few; those are compiled before the first request.
"""


def padded(rows: int) -> int:
    """The size that `rows` rows are padded to: all sizes to 8, then eight or fewer an octave."""
    if rows <= 8:
        return rows
    step = max(8, 1 << (rows - 1).bit_length() - 4)
    return -(-rows // step) * step


def sizes_up_to(limit: int) -> list[int]:
    """Every size that 1 to `limit` rows are padded to, ascending."""
    sizes = [1]
    while sizes[-1] < limit:
        sizes.append(padded(sizes[-1] + 1))
    return sizes
