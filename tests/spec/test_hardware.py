"""Drivers' answers become devices, and devices are matched with what was planned for."""

from collections.abc import Sequence

from servekit.config.schema import HardwareConfig
from servekit.spec.hardware import Device, devices, matches, run_command

H100 = Device(kind="cuda", name="NVIDIA H100 80GB HBM3", memory_gib=79.65)


def wanted(**changes: object) -> HardwareConfig:
    numbers: dict[str, object] = {
        "kind": "cuda",
        "name": "NVIDIA H100",
        "device_names": ("H100",),
        "memory_gib": 79.2,
        "threads": None,
    }
    return HardwareConfig.model_validate({**numbers, **changes})


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
    assert matches(wanted(), [Device("cuda", "NVIDIA H100 PCIe", 78.9)])


def test_a_name_is_matched_by_whole_words() -> None:
    l40s = Device(kind="cuda", name="NVIDIA L40S", memory_gib=44.5)
    assert matches(wanted(device_names=("L4",), memory_gib=22.0), [l40s]) == []
    assert matches(wanted(device_names=("L40S",), memory_gib=44.4), [l40s]) == [l40s]


def test_hardware_without_names_takes_any_device_of_its_kind() -> None:
    assert matches(wanted(device_names=()), [H100]) == [H100]
