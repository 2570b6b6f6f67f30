"""What published start-up logs printed comes out of the arithmetic, to the block.

Their GiB are printed with two digits, so as many blocks as 0.005 GiB hold may be more or fewer.
"""

import csv
from pathlib import Path

import pytest

from servekit.config.schema import Config
from servekit.spec.activations import activation_bytes
from servekit.spec.memory import ledger
from servekit.spec.model import GIB
from tests.spec.log_shapes import LOGGED, on_card

Log = dict[str, str]

PIPELINE = "A27"
LAST_STAGE_GIB = 0.95 * 79.19 - 4.26 - 1.89 - 0.20
"""The log of a pipeline prints the cache of its first stage. The last, which has fewest blocks,
decides: of 0.95 of the memory, what the weights, the sampler and the libraries leave there."""


FORMATS = {
    "-": {"weights": "none"},
    "mxfp4": {"weights": "mxfp4", "scope": "experts"},
    "int8-w8a8": {"weights": "int8"},
}


def logs() -> list[Log]:
    lines = (Path(__file__).parent / "kv_logs.csv").read_text(encoding="utf-8").splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def deployed(log: Log, kv_gib: float) -> Config:
    return on_card(
        LOGGED[log["model"]],
        "h100",
        kv_gib,
        model={"max_model_len": int(log["max_len"])},
        parallelism={"tensor": int(log["tp"]), "pipeline": int(log["pp"])},
        quantization=FORMATS.get(log["quant"], {"weights": "fp8"}),
    )


def kv_gib(log: Log) -> float:
    return LAST_STAGE_GIB if log["id"] == PIPELINE else float(log["kv_gib"])


each_log = pytest.mark.parametrize("log", logs(), ids=lambda log: log["id"])


@each_log
def test_the_logged_memory_holds_the_logged_blocks(log: Log) -> None:
    layout = ledger(deployed(log, kv_gib(log))).layout
    printed = 4 if log["id"] == PIPELINE else 1
    within = 1 + printed * 0.005 * GIB / layout.bytes_per_block
    per_group = int(log["kv_tokens"]) // layout.block_size
    logged = int(log["kv_blocks"] or per_group * len(layout.groups))
    assert abs(layout.num_blocks - logged) <= within


@each_log
def test_the_logged_memory_holds_the_logged_requests(log: Log) -> None:
    layout = ledger(deployed(log, kv_gib(log))).layout
    concurrency = layout.max_concurrency(int(log["max_len"]))
    assert concurrency == pytest.approx(float(log["max_conc"]), rel=0.005)


@each_log
def test_the_logged_activation_peak_is_within_the_band(log: Log) -> None:
    peak = activation_bytes(deployed(log, 1.0), stage=0) / GIB
    assert peak == pytest.approx(float(log["act_gib"]), rel=0.08)


def test_the_file_has_a_model_for_every_log() -> None:
    assert {log["model"] for log in logs()} == set(LOGGED)
