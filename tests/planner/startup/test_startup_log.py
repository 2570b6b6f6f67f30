"""A start-up log is read in every wording, put beside the plan, and kept for later plans."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from servekit.config import site
from servekit.config.schema import Config
from servekit.errors import ConfigError
from servekit.planner.startup.boot_lines import BootLog, read_log
from servekit.planner.startup.measured import Measured, constants, measured, with_constants
from servekit.planner.startup.startup_log import main, narrowed
from servekit.spec.memory import ledger
from tests.conftest import tiny_config
from tests.planner import boot_logs
from tests.spec.served import served

POOL = {"capacity_tokens": None, "memory_fraction": 0.9}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(site.VARIABLE, str(tmp_path / "site"))
    return tmp_path / "site"


def llama(**groups: dict[str, Any]) -> Config:
    seats = {"max_num_seqs": 1024, "max_num_batched_tokens": 8192}
    return served("llama3_8b", "h100", **{"kv": POOL, "scheduler": seats, **groups})


def read(tmp_path: Path, text: str | bytes) -> BootLog:
    return read_log(write(tmp_path, text))


def write(tmp_path: Path, text: str | bytes) -> Path:
    file = tmp_path / "boot.log"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def of(tmp_path: Path, text: str | bytes, config: Config | None = None) -> Measured:
    return measured(read(tmp_path, text), config or llama())


def run(tmp_path: Path, text: str | bytes, config: Config | None = None) -> int:
    composed = SimpleNamespace(config=config or llama())
    return main(str(write(tmp_path, text)), composed, as_json=True)


def test_a_v1_log_has_everything(tmp_path: Path) -> None:
    found = of(tmp_path, boot_logs.V1)
    assert (found.weights, found.activations, found.graphs) == (14.99, 1.89, 0.91)
    assert found.runtime == pytest.approx(0.25 + 0.51)
    assert (found.kv, found.requested, found.kv_tokens) == (58.11, 75.23, 476016)
    assert (found.concurrency, found.concurrency_tokens) == (58.11, 8192)


def test_a_v0_log_says_gb_and_means_gib(tmp_path: Path) -> None:
    found = of(tmp_path, boot_logs.V0)
    assert (found.weights, found.activations, found.kv) == (14.99, 1.19, 54.96)
    assert (found.num_blocks, found.requested, found.graphs) == (28139, 71.27, 0.24)


def test_megabytes_are_a_1024th(tmp_path: Path) -> None:
    assert of(tmp_path, "Loading model weights took 512.00 MB\n").weights == 0.5


def test_the_oldest_results_count_the_context_among_what_is_outside_torch(tmp_path: Path) -> None:
    found = of(tmp_path, boot_logs.RESULTS)
    assert (found.weights, found.activations, found.runtime) == (14.96, 1.26, 1.79)
    assert (found.kv, found.context) == (53.29, 0.0)


def test_a_peak_of_torch_has_the_weights_in_it(tmp_path: Path) -> None:
    found = of(tmp_path, boot_logs.PAIRS)
    assert found.activations == pytest.approx(16.88 - 14.99)
    assert (found.runtime, found.kv, found.num_blocks) == (0.59, 53.83, 27559)


def test_what_was_not_free_at_the_start_is_the_context(tmp_path: Path) -> None:
    found = of(tmp_path, boot_logs.USAGE)
    assert (found.weights, found.activations, found.graphs) == (14.99, 1.4, 0.54)
    assert found.runtime == pytest.approx(47.37 - 47.03 + 0.03)


def test_consumed_memory_is_weights_and_what_is_outside_torch(tmp_path: Path) -> None:
    found = of(tmp_path, boot_logs.CONSUMED)
    assert found.runtime == pytest.approx(16.19 - 14.99 + 139.8 - 137.64)
    assert (found.activations, found.graphs, found.graphs_subtracted) == (4.04, 1.2, True)


def test_what_is_left_of_the_share_that_was_asked_for_is_outside_torch(tmp_path: Path) -> None:
    said = boot_logs.V0.replace("non_torch_memory takes 0.13GiB; ", "")
    found = of(tmp_path, said)
    assert found.runtime == pytest.approx(71.27 - 14.99 - 1.19 - 54.96 + 0.51)


@pytest.mark.parametrize(
    "process",
    [
        "VllmWorker rank={rank} pid=10{rank}",
        "Worker_TP{rank} pid=34322",
        "VllmWorkerProcess pid=52{rank}",
        "RayWorkerWrapper pid=52{rank}, ip=10.0.0.1",
        "EngineCore_DP{rank} pid=99",
    ],
)
def test_the_rank_with_the_least_left_counts(tmp_path: Path, process: str) -> None:
    found = of(tmp_path, boot_logs.ranks(3, [37.28, 36.91, 37.30], process=process))
    assert (found.ranks, found.kv, found.weights) == (3, 36.91, 33.88)


def test_the_first_rank_may_have_no_name(tmp_path: Path) -> None:
    text = boot_logs.V0 + "(VllmWorkerProcess pid=7) INFO x] Loading model weights took 15.1 GB\n"
    assert of(tmp_path, text).ranks == 2


def test_the_fewest_blocks_of_all_ranks_count(tmp_path: Path) -> None:
    assert of(tmp_path, boot_logs.V0 + "INFO x] # GPU blocks: 28000\n").num_blocks == 28000


def test_the_last_start_of_a_log_counts(tmp_path: Path) -> None:
    again = boot_logs.V1.replace("58.11 GiB", "50.00 GiB").replace("pid=8)", "pid=9)")
    found = of(tmp_path, boot_logs.V1 + again)
    assert (found.ranks, found.kv) == (1, 50.0)


def test_colours_carriage_returns_and_stamps_do_not_matter(tmp_path: Path) -> None:
    dressed = "".join(
        f"2026-06-02T00:51:40Z \x1b[1;36m{line}\x1b[0;0m\r\n" for line in boot_logs.V1.splitlines()
    )
    assert of(tmp_path, dressed) == of(tmp_path, boot_logs.V1)


def test_a_bar_that_overwrites_itself_is_read_past(tmp_path: Path) -> None:
    text = "loading:  50%\rloading: 100%\rModel loading took 14.99 GiB and 3 seconds\n"
    assert of(tmp_path, text).weights == 14.99


def test_a_truncated_log_gives_what_it_has(tmp_path: Path) -> None:
    found = of(tmp_path, boot_logs.V1[: boot_logs.V1.index("Available")])
    assert (found.weights, found.kv) == (14.99, None)


def test_megabytes_of_noise_without_an_end_of_line_do_not_matter(tmp_path: Path) -> None:
    noise = bytes(range(256)).replace(b"\n", b"") * 20000
    assert of(tmp_path, noise + b"\n" + boot_logs.V1.encode()).weights == 14.99


@pytest.mark.parametrize("text", ["", "INFO: Application startup complete.\n", b"\x00\xff" * 999])
def test_a_log_without_our_lines_is_refused_in_one_sentence(
    tmp_path: Path, folder: Path, text: str | bytes
) -> None:
    with pytest.raises(ConfigError, match="no line of servekit or vLLM") as refusal:
        run(tmp_path, text)
    assert "\n" not in refusal.value.message
    assert not folder.exists()


def test_a_log_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        main(str(tmp_path / "none"), SimpleNamespace(config=llama()), as_json=False)


def test_weights_of_another_model_are_another_deployment(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"another deployment: its weights take 8\.49 GiB"):
        run(tmp_path, boot_logs.V1.replace("14.99", "8.49"))
    assert not folder.exists()


def test_another_parallelism_is_another_deployment(tmp_path: Path) -> None:
    text = boot_logs.V1.replace("tensor_parallel_size=1", "tensor_parallel_size=2")
    with pytest.raises(ConfigError, match=r"tensor parallelism 2.*add parallelism\.tensor=2"):
        run(tmp_path, text)


def test_another_cache_is_another_deployment(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds 58\.11 requests .* would hold 116\.2"):
        run(tmp_path, boot_logs.V1, llama(kv={**POOL, "dtype": "fp8"}))


def test_another_cache_is_another_deployment_though_steps_differ(tmp_path: Path) -> None:
    steps = {"max_num_seqs": 256, "max_num_batched_tokens": 2048}
    config = llama(kv={**POOL, "dtype": "fp8"}, scheduler=steps)
    with pytest.raises(ConfigError, match=r"holds 58\.11 requests"):
        run(tmp_path, boot_logs.V1, config)


def test_a_log_that_narrows_nothing_says_so() -> None:
    assert narrowed(0.31, 0.31) == "what they say of memory stays known to 0.31 GiB"
    assert "0.32 GiB instead of 1.14" in narrowed(1.14, 0.32)


def test_activations_of_other_steps_are_not_stored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = {"max_num_seqs": 256, "max_num_batched_tokens": 2048}
    run(tmp_path, boot_logs.V1, llama(scheduler=steps))
    said = json.loads(capsys.readouterr().out)
    assert said["constants"]["activations_ratio"] is None
    assert said["constants"]["runtime_gib"] == 0.76
    assert "add scheduler.max_num_batched_tokens=8192" in said["notes"][0]


OTHER_SITE = (
    boot_logs.V1.replace("1.89GiB", "2.40GiB")
    .replace("0.25GiB", "0.75GiB")
    .replace("58.11 GiB", "57.09 GiB")
    .replace("476,016", "467,680")
    .replace("58.11x", "57.09x")
)
"""A site where other drivers take half a GiB more, and another engine half a GiB of activations."""


def test_the_plan_comes_closer_and_its_band_narrower(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, OTHER_SITE) == 0
    said = json.loads(capsys.readouterr().out)
    rows = {row["name"]: row for row in said["compared"]}
    capacity = rows["capacity"]
    assert abs(capacity["planned"] - 467680) > 8000
    assert abs(capacity["calibrated"] - 467680) < 300
    assert said["band_gib"]["calibrated"] < said["band_gib"]["planned"] / 2


def test_later_plans_have_as_many_blocks_as_that_site(tmp_path: Path) -> None:
    """Blocks by the plan's own rule, from what the log says is free."""
    config = llama()
    found = of(tmp_path, OTHER_SITE, config)
    learnt = constants(config, found, "boot.log", same_steps=True)
    free = 79.19 - ledger(config).workspace.bytes / 2**30 - (14.99 + 2.40 + 0.75 + 0.51 + 0.91)
    truth = int(0.9 * free * 2**30) // 2**21
    after = ledger(with_constants(config, learnt))
    assert abs(ledger(config).layout.num_blocks - truth) > 300
    assert abs(after.layout.num_blocks - truth) <= 10
    assert after.band_bytes < ledger(config).band_bytes / 2


def test_constants_are_stored_and_the_page_says_where_and_how_to_undo(
    tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = llama()
    main(str(write(tmp_path, boot_logs.V1)), SimpleNamespace(config=config), as_json=False)
    said = "".join(capsys.readouterr().out.split())
    file = site.file_for(config.hardware.name, 1, 1)
    assert str(file) in said
    assert "removethatfile" in said
    assert "calibration=none" in said
    key = site.model_key(config.model.name, "none")
    stored = site.constants_for(config.hardware.name, 1, 1, model=key)
    assert stored is not None
    assert stored["runtime_gib"] == 0.76
    assert stored["weights_ratio"] == pytest.approx(14.99 / 14.989, abs=1e-3)


def test_reading_the_log_again_with_its_constants_in_force_gives_the_same(tmp_path: Path) -> None:
    config = llama()
    found = of(tmp_path, boot_logs.V1)
    once = constants(config, found, "boot.log", same_steps=True)
    again = constants(with_constants(config, once), found, "boot.log", same_steps=True)
    assert once == again


def test_a_log_of_servekit_gives_weights_and_capacity(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path, boot_logs.SERVEKIT)
    said = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in said["compared"]] == ["weights", "capacity"]
    assert said["compared"][1]["measured"] == 441008
    assert said["constants"]["runtime_gib"] is None


def test_ranks_of_tensor_parallelism_are_compared_with_one_rank_of_the_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = served(
        "llama3_70b",
        "h100",
        2,
        kv=POOL,
        quantization={"weights": "fp8", "scope": "linears"},
    )
    run(tmp_path, boot_logs.ranks(2, [37.28, 37.28]), config)
    said = json.loads(capsys.readouterr().out)
    assert said["ranks"] == 2
    assert abs(said["compared"][0]["error_percent"]) < 1
    assert said["stored"].endswith("_tp2_pp1.json")


def test_a_log_of_a_cpu_narrows_the_band_of_the_weights_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    planned = ledger(tiny_config()).weights.bytes / 2**30
    text = f"weights: planned 0 GiB, measured {planned:.6f} GiB; KV cache: planned 1 tokens, "
    run(tmp_path, text + "measured 1,024 tokens\n", tiny_config())
    said = json.loads(capsys.readouterr().out)
    assert said["band_gib"]["calibrated"] < said["band_gib"]["planned"]
    assert said["compared"][1]["error_percent"] == 0
