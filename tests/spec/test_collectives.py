"""Exchanges take the time that was measured, or more where less joins the ranks."""

from itertools import pairwise

import pytest

from servekit.config.schema import Config
from servekit.spec.collectives import NO_LINKS, all_reduce_s, links, send_s
from tests.spec.served import served


def reduce_us(config: Config, elements: int) -> float:
    """Of 16-bit elements."""
    return 1e6 * all_reduce_s(links(config), 2 * elements)


@pytest.mark.parametrize(
    ("card", "tensor", "elements", "microseconds"),
    [
        ("h100", 2, 128, 4.3),
        ("h100", 2, 1048576, 12.4),
        ("h100", 4, 262144, 11.4),
        ("h100", 8, 8388608, 92),
        ("a100_80g", 8, 1048576, 27.9),
        ("a100_80g", 8, 67108864, 1161),
        ("b200", 8, 128, 7.4),
        ("l40s", 2, 8388608, 892),
        ("l40s", 8, 1048576, 2080),
        ("rtx_pro_6000", 8, 1048576, 223),
    ],
)
def test_a_measured_all_reduce_takes_its_measured_time(
    card: str, tensor: int, elements: int, microseconds: float
) -> None:
    config = served("llama3_70b", card, tensor)
    assert reduce_us(config, elements) == pytest.approx(microseconds, rel=0.01)


def test_one_rank_has_nothing_to_reduce() -> None:
    assert reduce_us(served("llama3_8b", "h100"), 10**6) == 0


def test_larger_messages_than_were_measured_take_in_proportion() -> None:
    config = served("llama3_70b", "h100", 8)
    assert reduce_us(config, 2**30) == pytest.approx(4 * reduce_us(config, 2**28), rel=0.01)


@pytest.mark.parametrize(("card", "tensor"), [("h100", 8), ("l4", 4), ("rtx4090", 2), ("h200", 16)])
def test_larger_messages_never_take_less(card: str, tensor: int) -> None:
    config = served("llama3_70b", card, tensor, parallelism={"tensor": tensor})
    times = [reduce_us(config, 2**n) for n in range(1, 32)]
    assert all(small <= large for small, large in pairwise(times))


def test_cards_without_peer_access_go_through_the_host() -> None:
    assert reduce_us(served("llama3_8b", "rtx4090", 2), 128) == pytest.approx(40)


def test_a_card_on_pci_express_is_as_slow_as_those_that_were_measured_there() -> None:
    assert reduce_us(served("llama3_70b", "l4", 4), 10**6) == pytest.approx(
        reduce_us(served("llama3_70b", "l40s", 4), 10**6)
    )


def test_an_older_bus_is_slower() -> None:
    new, old = (reduce_us(served("llama3_8b", card, 2), 10**7) for card in ("l4", "t4"))
    assert old == pytest.approx(2 * new, rel=0.01)


def test_a_slower_link_of_the_same_kind_is_slower_for_large_messages_only() -> None:
    full = served("llama3_8b", "h100", 2)
    bridge = served("llama3_8b", "h100_nvl", 2)
    assert reduce_us(bridge, 128) == pytest.approx(reduce_us(full, 128))
    assert reduce_us(bridge, 10**8) == pytest.approx(1.5 * reduce_us(full, 10**8), rel=0.01)


def test_more_ranks_than_a_machine_has_cross_the_network() -> None:
    inside, across = (
        served("llama3_70b", "h100", 1, parallelism={"tensor": tensor}) for tensor in (8, 16)
    )
    assert reduce_us(across, 10**7) > 5 * reduce_us(inside, 10**7)
    assert reduce_us(across, 128) >= 40


def test_cards_of_another_make_are_taken_for_a_ring() -> None:
    config = served("llama3_70b", "mi300x", 8)
    size = 2 * 10**8
    one_way = 896e9 / 2 * 0.85
    assert 1e-6 * reduce_us(config, size // 2) == pytest.approx(
        10e-6 + 2 * 7 / 8 * size / one_way, rel=0.05
    )


def test_activations_reach_the_next_stage_after_a_hop() -> None:
    known = links(served("llama3_70b", "h100", parallelism={"tensor": 4, "pipeline": 2}))
    assert send_s(known, 450e9 * 0.85) == pytest.approx(1, abs=1e-4)
    assert send_s(known, 1) == pytest.approx(10e-6, rel=0.001)
    assert send_s(known, 0) == 0


def test_a_bound_exchanges_in_no_time() -> None:
    assert all_reduce_s(NO_LINKS, 1e9) == send_s(NO_LINKS, 1e9) == 0
