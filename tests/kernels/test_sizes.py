"""Steps are padded to few sizes, each little larger than what it is for."""

import pytest

from servekit.kernels.sizes import padded, sizes_up_to


def test_small_steps_are_not_padded() -> None:
    assert [padded(rows) for rows in range(1, 9)] == list(range(1, 9))


@pytest.mark.parametrize("rows", [9, 16, 17, 64, 65, 129, 500, 513, 4000])
def test_a_size_holds_its_rows_and_wastes_at_most_an_eighth_or_seven(rows: int) -> None:
    assert rows <= padded(rows) <= rows + max(7, rows / 8)
    assert padded(padded(rows)) == padded(rows)


def test_there_are_few_sizes_and_they_are_all_there_are() -> None:
    sizes = sizes_up_to(512)
    assert sizes == sorted({padded(rows) for rows in range(1, 513)})
    assert len(sizes) < 45
