"""What each share of the memory is, and how sure that is."""

import pytest

from servekit.spec.memory import ledger
from servekit.spec.model import GIB
from tests.conftest import tiny_config
from tests.spec import log_shapes, shapes
from tests.spec.log_shapes import on_card

TINY_TOKEN_BYTES = 3 * 2 * 2 * 8 * 4


def test_every_component_says_how_sure_it_is() -> None:
    book = ledger(shapes.deployment(shapes.LLAMA_8B, "h100"))
    assert {name: part.standing for name, part in book.components.items()} == {
        "weights": "exact",
        "activations": "modelled",
        "workspace": "modelled",
        "graphs": "modelled",
        "runtime": "guess",
        "kv": "modelled",
    }


def test_a_cpu_has_no_graphs_and_no_workspace() -> None:
    book = ledger(tiny_config())
    assert (book.graphs.bytes, book.workspace.bytes) == (0, 0)


def test_weights_in_files_replace_planned_ones_on_one_device() -> None:
    book = ledger(tiny_config(), stored_weights_bytes=12345)
    assert (book.weights.bytes, book.weights.standing) == (12345, "exact")
    assert book.weights.band_bytes == 0


def test_weights_in_files_say_nothing_of_ranks_that_share_them() -> None:
    config = tiny_config(parallelism={"tensor": 2})
    assert ledger(config, stored_weights_bytes=12345) == ledger(config)


def test_the_null_block_is_charged_beside_the_cache() -> None:
    one = ledger(tiny_config())
    two = ledger(tiny_config(kv={"block_size": 32}))
    assert two.runtime.bytes - one.runtime.bytes == 16 * TINY_TOKEN_BYTES
    assert "null block" in one.runtime.note


def test_a_calibrated_deployment_has_the_measured_sizes_and_a_narrow_band() -> None:
    constants = {
        "source": "boot.log",
        "weights_ratio": 1.01,
        "activations_ratio": 0.5,
        "runtime_gib": 1.5,
        "graphs_gib": 0.25,
    }
    kv = {"memory_gib": 1.0, "memory_fraction": None}
    plain = shapes.deployment(shapes.LLAMA_8B, "l4", kv=kv)
    book = ledger(plain)
    known = ledger(
        shapes.deployment(shapes.LLAMA_8B, "l4", kv=kv, calibration={"constants": constants})
    )
    assert known.weights.bytes == int(1.01 * book.weights.bytes)
    assert known.activations.bytes == int(0.5 * book.activations.bytes)
    assert known.runtime.bytes == int(1.5 * GIB) + known.layout.bytes_per_block
    assert known.graphs.bytes == GIB // 4
    assert known.runtime.standing == known.weights.standing == "measured"
    assert known.graphs.band_bytes == known.runtime.band_bytes == int(0.1 * GIB)


@pytest.mark.parametrize(
    ("link", "parallelism", "gib"),
    [
        ("nvlink", {}, 0.76),
        ("nvlink", {"tensor": 2}, 3.55),
        ("infinity_fabric", {"tensor": 2}, 3.55),
        ("pcie", {"tensor": 2}, 1.80),
        ("nvlink", {"pipeline": 2}, 1.65),
    ],
)
def test_contexts_and_collectives_depend_on_the_neighbours(
    link: str, parallelism: dict[str, int], gib: float
) -> None:
    config = shapes.deployment(
        shapes.LLAMA_8B, "h100", hardware={"link": link}, parallelism=parallelism
    )
    book = ledger(config)
    assert book.runtime.bytes - book.layout.bytes_per_block == int(gib * GIB)


def test_graphs_grow_with_the_layers_of_a_stage_and_more_with_experts() -> None:
    dense = ledger(on_card(shapes.LLAMA_8B, "h100", 1.0))
    staged = ledger(on_card(shapes.LLAMA_8B, "h100", 1.0, parallelism={"pipeline": 2}))
    experts = ledger(on_card(log_shapes.QWEN3_30B_A3B, "h100", 1.0))
    assert dense.graphs.bytes == int((0.37 + 32 * 0.0156) * GIB)
    assert staged.graphs.bytes == int((0.37 + 16 * 0.0156) * GIB)
    assert experts.graphs.bytes == int((0.37 + 48 * (0.0156 + 0.0148)) * GIB)
