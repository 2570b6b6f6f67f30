"""What drivers and timers say becomes an option that can be saved and planned with."""

import io
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from servekit.config.compose import load
from servekit.config.schema import HardwareConfig
from servekit.planner.machine import doctor
from servekit.planner.machine.probe import bandwidth_gb_s, float32_tflops
from servekit.planner.machine.this_machine import (
    Machine,
    bf16_tflops,
    catalogue,
    look,
    option,
    to_yaml,
)

TOPOLOGY = """\tGPU0\tGPU1\tCPU Affinity
GPU0\t X \t{pair}\t0-31
GPU1\t{pair}\t X \t0-31
"""


def machine(*cards: str, capability: str = "9.0", pair: str = "NV18") -> Machine:
    """Of lines as nvidia-smi gives them; no clock is asked."""
    names = [card.rpartition(",")[0] for card in cards]
    answers = {
        "memory.total": "\n".join(cards),
        "compute_cap": "\n".join(f"{name}, {capability}" for name in names),
        "topo": TOPOLOGY.format(pair=pair) if len(cards) > 1 else "",
    }

    def run(command: Sequence[str]) -> str | None:
        found = [text for word, text in answers.items() if word in " ".join(command)]
        return found[0] if cards and found else None

    return look(run, environ={}, bandwidth=lambda cores: 40.0, products=lambda: 0.5)


def printed(seen: Machine, width: int) -> str:
    console = Console(width=width, record=True, file=io.StringIO(), highlight=False)
    console.print(doctor.page(seen, option(seen)))
    return console.export_text()


def test_a_machine_without_cards_is_a_cpu_as_it_was_measured() -> None:
    seen = machine()
    tree = option(seen).tree
    assert tree["kind"] == "cpu"
    assert tree["bandwidth_gb_s"] == 40.0
    assert tree["threads"] == seen.cores
    assert tree["bf16_tflops"] == bf16_tflops(seen) >= 0.5


def test_a_known_card_is_the_option_of_the_catalogue() -> None:
    found = option(machine("NVIDIA H100 80GB HBM3, 81559"))
    assert (found.base, found.exact) == ("h100", True)
    assert found.tree["memory_gib"] == catalogue()["h100"].memory_gib


def test_the_number_of_cards_and_their_link_are_this_machines() -> None:
    card = "NVIDIA H100 80GB HBM3, 81559"
    tree = option(machine(card, card)).tree
    assert (tree["devices_per_node"], tree["link"], tree["link_gb_s"]) == (2, "nvlink", 900.0)


def test_cards_made_for_nvlink_may_be_joined_by_less() -> None:
    card = "NVIDIA H100 80GB HBM3, 81559"
    tree = option(machine(card, card, pair="SYS")).tree
    assert (tree["link"], tree["link_gb_s"]) == ("pcie", 128.0)


def test_an_older_card_has_an_older_bus() -> None:
    card = "NVIDIA A100-SXM4-80GB, 81920"
    tree = option(machine(card, card, capability="8.0", pair="PHB")).tree
    assert (tree["link"], tree["link_gb_s"]) == ("pcie", 64.0)


def test_an_unknown_card_gets_the_rates_of_the_nearest_and_its_own_memory() -> None:
    found = option(machine("NVIDIA L20, 46068", capability="8.9"))
    assert (found.base, found.exact) == ("l40s", False)
    assert found.tree["name"] == "NVIDIA L20"
    assert found.tree["memory_gib"] == pytest.approx(44.3, abs=0.1)
    assert found.tree["usd_per_hour"] is None


def test_an_unknown_card_has_no_rates_that_its_capability_lacks() -> None:
    found = option(machine("NVIDIA X9, 81559", capability="8.6"))
    assert found.tree["fp8_tflops"] is None
    assert found.tree["fp4_tflops"] is None


def test_an_unknown_card_is_matched_by_the_option_made_for_it() -> None:
    seen = machine("NVIDIA L20, 46068", capability="8.9")
    assert HardwareConfig.model_validate(option(seen).tree).device_names == ("NVIDIA L20",)


@pytest.mark.parametrize(
    "seen",
    [
        machine(),
        machine("NVIDIA L4, 23034", capability="8.9"),
        machine("NVIDIA X9, 30000", capability="8.6"),
    ],
    ids=["cpu", "known", "unknown"],
)
def test_the_saved_option_is_composed_under_its_name(seen: Machine, tmp_path: Path) -> None:
    found = option(seen)
    file = tmp_path / "mine" / "hardware" / "this_machine.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(to_yaml(found, doctor.comment(seen, found)))
    words = ["+recipe=chat_smollm2", "hardware=this_machine"]
    config = load(words, str(tmp_path / "mine")).config
    assert config.hardware == HardwareConfig.model_validate(found.tree)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Callable[[Machine], None]:
    def draw(seen: Machine) -> None:
        monkeypatch.setattr(doctor, "look", lambda: seen)

    return draw


def test_stdout_is_the_option_and_nothing_else(
    drawn: Callable[[Machine], None], capsys: pytest.CaptureFixture[str]
) -> None:
    drawn(machine("NVIDIA L4, 23034", capability="8.9"))
    assert doctor.main(as_json=False) == 0
    out, err = capsys.readouterr()
    assert yaml.safe_load(out)["name"] == "L4 24 GB"
    assert "hardware=l4" in err


def test_json_has_the_option_and_how_sure_it_is(
    drawn: Callable[[Machine], None], capsys: pytest.CaptureFixture[str]
) -> None:
    drawn(machine())
    assert doctor.main(as_json=True) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["option"]["kind"] == "cpu"
    assert report["standing"]["bandwidth_gb_s"] == "measured"
    assert report["standing"]["bf16_tflops"] == "guess"


def test_kernels_are_triton_s_where_there_is_a_gpu_and_triton(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert doctor.kernels(machine()) == ("torch", "no GPU")
    card = machine("NVIDIA H100 80GB HBM3, 81559")
    monkeypatch.setattr(doctor, "find_spec", lambda name: object())
    assert doctor.kernels(card)[0] == "triton"
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    assert doctor.kernels(card) == ("torch", "pip install triton, or engine.kernels=torch")


def test_models_that_the_decoder_lacks_are_only_planned() -> None:
    models = doctor.fitting(option(machine("NVIDIA H200, 143771")))
    assert "llama3_8b" in models.run
    assert "qwen3_30b_a3b" in models.run
    assert "deepseek_v2_lite" in models.planned
    assert "llama3_70b" not in models.run + models.planned


def test_a_small_card_holds_small_models_only() -> None:
    models = doctor.fitting(option(machine("Tesla T4, 15360", capability="7.5")))
    assert "smollm2_135m" in models.run
    assert "llama3_8b" not in models.run


@pytest.mark.parametrize("width", [80, 140])
@pytest.mark.parametrize("seen", [machine(), machine(*2 * ["NVIDIA H100 80GB HBM3, 81559"])])
def test_the_page_keeps_to_the_width(seen: Machine, width: int) -> None:
    page = printed(seen, width)
    assert max(len(line.rstrip()) for line in page.splitlines()) <= width
    assert re.search(r"bandwidth\s+40.0 GB/s.*measured", page)


def test_an_unknown_card_is_called_one() -> None:
    page = printed(machine("NVIDIA L20, 46068", capability="8.9"), 80)
    assert "not in the catalogue" in page
    assert "8.9: 16-bit, fp8" in page


def test_this_machine_is_timed() -> None:
    assert bandwidth_gb_s(1, budget_s=0.01) > 0.1
    assert float32_tflops(budget_s=0.01) > 1e-4
