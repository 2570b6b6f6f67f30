"""Drivers' answers become devices, and devices are matched with what was planned for."""

from collections.abc import Sequence

import pytest

from servekit.config.schema import HardwareConfig
from servekit.spec.hardware import (
    Device,
    Link,
    amd_capabilities,
    devices,
    is_named,
    matches,
    nvidia_capabilities,
    nvidia_link,
    nvlink_gb_s,
    run_command,
    supports_fp4,
    supports_fp8,
)
from tests.spec.served import card, cards

H100 = Device(kind="cuda", name="NVIDIA H100 80GB HBM3", memory_gib=79.65)


def wanted(**changes: object) -> HardwareConfig:
    numbers = {**card("h100").model_dump(), "device_names": ("H100",), **changes}
    return HardwareConfig.model_validate(numbers)


def machine(**answers: str):
    """Commands by the first letters of their name; all others are missing."""

    def run(command: Sequence[str]) -> str | None:
        return answers.get(command[0].split("-")[0])

    return run


def test_a_machine_without_drivers_has_no_devices() -> None:
    assert devices(machine(), environ={}) == []


def test_each_line_of_nvidia_smi_is_a_device() -> None:
    run = machine(nvidia="NVIDIA L4, 23034\nNVIDIA H100 80GB HBM3, 81559\n")
    found = devices(run, environ={})
    assert [str(device) for device in found] == [
        "NVIDIA L4 (22.5 GiB)",
        "NVIDIA H100 80GB HBM3 (79.6 GiB)",
    ]


def test_memory_that_the_driver_does_not_know_is_not_invented() -> None:
    (device,) = devices(machine(nvidia="NVIDIA GB10, [N/A]\n"), environ={})
    assert device == Device(kind="cuda", name="NVIDIA GB10", memory_gib=None)


def test_the_cards_of_rocm_smi_are_devices() -> None:
    text = (
        '{"card0": {"VRAM Total Memory (B)": "206141652992", "Card Series": "AMD Instinct MI300X"},'
        ' "system": {"Driver version": "6.3"}}'
    )
    (device,) = devices(machine(rocm=text), environ={})
    assert device.kind == "rocm"
    assert str(device) == "AMD Instinct MI300X (192.0 GiB)"


def test_an_answer_that_is_not_json_is_no_device() -> None:
    assert devices(machine(rocm="WARNING: no AMD GPUs"), environ={}) == []


def test_hidden_devices_are_not_there() -> None:
    run = machine(nvidia="NVIDIA L4, 23034\nNVIDIA H100 80GB HBM3, 81559\n")
    assert devices(run, environ={"CUDA_VISIBLE_DEVICES": ""}) == []
    assert [d.name for d in devices(run, environ={"CUDA_VISIBLE_DEVICES": "1"})] == [
        "NVIDIA H100 80GB HBM3"
    ]
    assert len(devices(run, environ={"CUDA_VISIBLE_DEVICES": "GPU-5ad1"})) == 1


def test_a_command_that_is_not_there_answers_nothing() -> None:
    assert run_command(["servekit-no-such-command"]) is None


def test_a_device_matches_by_part_of_its_name() -> None:
    assert matches(wanted(), [H100]) == [H100]
    assert matches(wanted(device_names=("L4",)), [H100]) == []


def test_a_device_of_another_maker_does_not_match() -> None:
    assert matches(wanted(kind="rocm"), [H100]) == []


def test_a_smaller_board_of_the_same_name_does_not_match() -> None:
    assert matches(wanted(device_names=("A100",)), [Device("cuda", "NVIDIA A100", 39.5)]) == []


def test_a_few_tenths_of_a_gib_less_still_match() -> None:
    assert matches(wanted(), [Device("cuda", "NVIDIA H100 80GB HBM3", 78.9)])


def test_a_name_is_matched_by_whole_words() -> None:
    l40s = Device(kind="cuda", name="NVIDIA L40S", memory_gib=44.5)
    assert matches(wanted(device_names=("L4",), memory_gib=22.0), [l40s]) == []
    assert matches(wanted(device_names=("L40S",), memory_gib=44.4), [l40s]) == [l40s]


def test_hardware_without_names_takes_any_device_of_its_kind() -> None:
    assert matches(wanted(device_names=()), [H100]) == [H100]


REPORTED = {
    "t4": ("Tesla T4", 15360),
    "l4": ("NVIDIA L4", 23034),
    "a10": ("NVIDIA A10", 23028),
    "a10g": ("NVIDIA A10G", 23028),
    "l40s": ("NVIDIA L40S", 46068),
    "a100_40g": ("NVIDIA A100-SXM4-40GB", 40960),
    "a100_40g_pcie": ("NVIDIA A100-PCIE-40GB", 40960),
    "a100_80g": ("NVIDIA A100-SXM4-80GB", 81920),
    "a100_80g_pcie": ("NVIDIA A100 80GB PCIe", 81920),
    "h100": ("NVIDIA H100 80GB HBM3", 81559),
    "h100_pcie": ("NVIDIA H100 PCIe", 81559),
    "h100_nvl": ("NVIDIA H100 NVL", 95830),
    "h200": ("NVIDIA H200", 143771),
    "b200": ("NVIDIA B200", 183359),
    "gb200": ("NVIDIA GB200", 189471),
    "b300": ("NVIDIA B300 SXM6 AC", 275040),
    "mi300x": ("AMD Instinct MI300X", 196592),
    "mi325x": ("AMD Instinct MI325X", 262128),
    "rtx3090": ("NVIDIA GeForce RTX 3090", 24576),
    "rtx4090": ("NVIDIA GeForce RTX 4090", 24564),
    "rtx5090": ("NVIDIA GeForce RTX 5090", 32607),
    "rtx_a6000": ("NVIDIA RTX A6000", 49140),
    "rtx_6000_ada": ("NVIDIA RTX 6000 Ada Generation", 49140),
    "rtx_pro_6000": ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887),
}
"""What drivers call the cards of the catalogue, and their memory in MiB."""


def test_every_card_of_the_catalogue_has_a_recorded_name() -> None:
    assert {"cpu", *REPORTED} == set(cards())


@pytest.mark.parametrize("option", REPORTED)
def test_a_card_is_the_option_of_its_own_form_and_of_no_other(option: str) -> None:
    name, mib = REPORTED[option]
    kind = "rocm" if name.startswith("AMD") else "cuda"
    device = Device(kind, name, mib / 1024)
    known = [other for other in REPORTED if matches(card(other), [device])]
    assert known == [option]


@pytest.mark.parametrize(
    ("option", "name"),
    [
        ("h200", "NVIDIA H200 NVL"),
        ("rtx4090", "NVIDIA GeForce RTX 4090 Laptop GPU"),
        ("rtx4090", "NVIDIA GeForce RTX 4090 D"),
        ("rtx3090", "NVIDIA GeForce RTX 3090 Ti"),
        ("h100", "NVIDIA H800"),
        ("h100", "NVIDIA H20"),
        ("a100_80g", "NVIDIA A800-SXM4-80GB"),
        ("a10", "NVIDIA A100-SXM4-40GB"),
    ],
)
def test_a_product_with_more_to_its_name_is_another(option: str, name: str) -> None:
    assert not is_named(name, card(option).device_names)


@pytest.mark.parametrize("option", REPORTED)
def test_the_catalogue_has_rates_where_the_capability_has_them(option: str) -> None:
    listed = card(option)
    assert (listed.fp8_tflops is not None) == supports_fp8(listed.compute_capability)
    assert (listed.fp4_tflops is not None) == supports_fp4(listed.compute_capability)


@pytest.mark.parametrize("option", REPORTED)
def test_the_catalogue_lists_what_a_process_sees_not_what_the_driver_counts(option: str) -> None:
    assert 0.93 < card(option).memory_gib / (REPORTED[option][1] / 1024) < 1


@pytest.mark.parametrize(
    ("capability", "fp8", "fp4"),
    [
        ("7.5", False, False),
        ("8.0", False, False),
        ("8.9", True, False),
        ("9.0", True, False),
        ("10.0", True, True),
        ("12.0", True, True),
        ("gfx90a", False, False),
        ("gfx942", True, False),
        ("gfx950", True, True),
        (None, False, False),
    ],
)
def test_narrow_floats_need_a_capability(capability: str | None, fp8: bool, fp4: bool) -> None:
    assert (supports_fp8(capability), supports_fp4(capability)) == (fp8, fp4)


def test_capabilities_are_read_by_name() -> None:
    assert nvidia_capabilities("NVIDIA L4, 8.9\nNVIDIA L4, 8.9\n") == {"NVIDIA L4": "8.9"}


def test_a_driver_that_does_not_know_capabilities_says_none() -> None:
    assert nvidia_capabilities('Field "compute_cap" is not a valid field to query.\n') == {}


def test_the_architecture_of_an_amd_card_is_its_capability() -> None:
    text = '{"card0": {"Card Series": "AMD Instinct MI300X", "GFX Version": "gfx942"}}'
    assert amd_capabilities(text) == {"AMD Instinct MI300X": "gfx942"}


NVLINKED = """\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV18\tNV18\tPIX\t0-51\t0\t\tN/A
GPU1\tNV18\t X \tNV18\tNODE\t0-51\t0\t\tN/A
GPU2\tNV18\tNV18\t X \tSYS\t0-51\t0\t\tN/A
NIC0\tPIX\tNODE\tSYS\t X \t

Legend:

  X    = Self
"""
BRIDGED_PAIR = """\tGPU0\tGPU1\tGPU2\tCPU Affinity
GPU0\t X \tNV4\tSYS\t0-31
GPU1\tNV4\t X \tSYS\t0-31
GPU2\tSYS\tSYS\t X \t32-63
"""
ALONE = "\tGPU0\tNIC0\tCPU Affinity\nGPU0\t X \tPIX\t0-31\nNIC0\tPIX\t X \n"


def test_lanes_of_nvlink_are_counted() -> None:
    assert nvidia_link(NVLINKED) == Link("nvlink", lanes=18, devices=3)


def test_the_slowest_pair_says_what_joins_the_devices() -> None:
    assert nvidia_link(BRIDGED_PAIR) == Link("pcie", lanes=0, devices=3)


def test_a_device_alone_has_no_link() -> None:
    assert nvidia_link(ALONE) is None
    assert nvidia_link(None) is None


@pytest.mark.parametrize(
    ("option", "lanes"), [("a100_80g", 12), ("h100", 18), ("h200", 18), ("b200", 18)]
)
def test_lanes_give_the_bandwidth_of_the_catalogue(option: str, lanes: int) -> None:
    assert nvlink_gb_s(lanes, card(option).compute_capability) == card(option).link_gb_s
