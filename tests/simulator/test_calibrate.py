"""Step times read from a log: they come back as they were, and poor logs are refused by name."""

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

import servekit.simulator.run
from servekit.errors import ConfigError
from servekit.simulator.calibrate import calibrate, read
from servekit.simulator.least_squares import non_negative
from servekit.simulator.replica import Replica
from servekit.simulator.run import simulate
from servekit.spec.latency import step_model
from tests.conftest import tiny_config

TRUTH = (4e-3, 2e-4, 3e-8, 5e-5, 2e-9, 1e-3)


def truth(decodes: float, context: float, prefill: list[tuple[int, int]]) -> float:
    """Seconds of a step: a constant, decodes, their context, prompt tokens, pairs, prompts."""
    new = sum(new for new, _ in prefill)
    pairs = sum(new * (there + new / 2) for new, there in prefill)
    row = (1, decodes, decodes * context, new, pairs, len(prefill))
    return sum(a * b for a, b in zip(TRUTH, row, strict=True))


def entry(chance: random.Random, *, noise: float, prompts: bool) -> dict[str, object]:
    decodes, context = chance.randint(1, 64), chance.randint(50, 4000)
    prefill = [
        (chance.randint(16, 1024), chance.choice((0, 512)))
        for _ in range(chance.randint(1, 2) if prompts else 0)
    ]
    seconds = truth(decodes, context, prefill) * chance.lognormvariate(0, noise)
    return {"decodes": decodes, "context": context, "prefill": prefill, "seconds": seconds}


def log(path: Path, *, noise: float = 0.0, count: int = 400, slow: int = 0) -> Path:
    chance = random.Random(11)
    entries = [entry(chance, noise=noise, prompts=number % 2 == 0) for number in range(count)]
    for late in entries[:slow]:
        late["seconds"] = 50.0
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return path


def number_of(digits: int) -> str:
    return f'{{"decodes": {"9" * digits}, "context": 1, "prefill": [], "seconds": 1}}'


@pytest.mark.parametrize("slow", [0, 8], ids=["clean", "a slow start"])
def test_step_times_come_back_from_a_log_of_them(tmp_path: Path, slow: int) -> None:
    model = calibrate(log(tmp_path / "steps", slow=slow))
    for decodes, context, prefill in ((8, 900, []), (40, 2000, [(700, 0)]), (1, 100, [(64, 512)])):
        expected = truth(decodes, context, prefill)
        assert model.seconds(decodes, context, prefill) == pytest.approx(expected, rel=0.02)


def test_noise_is_told(tmp_path: Path) -> None:
    model = calibrate(log(tmp_path / "steps", noise=0.1))
    assert 0.04 < model.median_error < 0.1
    assert model.p95_error > model.median_error
    assert "measured in 400 steps" in str(model)


def test_tokens_that_are_faster_together_are_learned(tmp_path: Path) -> None:
    """As on a CPU, whose kernels are good at many rows and poor at three: what a step takes goes
    by its tokens, whether they are decodes or of prompts."""

    def taken(tokens: float) -> float:
        return 0.1 * tokens if tokens <= 3 else 0.25 + 0.01 * math.sqrt(tokens)

    chance = random.Random(5)
    path = tmp_path / "steps"
    with path.open("w") as file:
        for number in range(600):
            decodes = chance.choice((1, 1, 2, 3, 4, 8, 12, 16))
            prefill = [(chance.randint(8, 200), 0)] if number % 3 == 0 else []
            seconds = taken(decodes + sum(new for new, _ in prefill)) * chance.uniform(0.97, 1.03)
            line = {"decodes": decodes, "context": 50, "prefill": prefill, "seconds": seconds}
            file.write(json.dumps(line) + "\n")
    model = calibrate(path)
    for decodes, prompt in ((1, 0), (2, 0), (3, 0), (4, 0), (14, 0), (14, 20), (2, 20), (8, 150)):
        prefill = [(prompt, 0)] if prompt else []
        expected = taken(decodes + prompt)
        assert model.seconds(decodes, 50, prefill) == pytest.approx(expected, rel=0.06)


def test_rows_that_are_slow_to_sample_are_learned_in_steps_with_prompts(tmp_path: Path) -> None:
    """As on a CPU, whose kernels are poor at three rows: three of a step whose logits are computed
    are as poor, however many tokens it has."""

    def taken(decodes: int, prompt: int) -> float:
        rows = decodes + (prompt > 0)
        return 0.05 + 0.002 * (decodes + prompt) + (0.04 if rows == 3 else 0.001 * rows)

    chance = random.Random(5)
    path = tmp_path / "steps"
    with path.open("w") as file:
        for number in range(600):
            decodes = chance.randint(1, 8)
            prompt = chance.randint(20, 60) if number % 2 else 0
            seconds = taken(decodes, prompt) * chance.uniform(0.98, 1.02)
            prefill = [(prompt, 0)] if prompt else []
            line = {"decodes": decodes, "context": 50, "prefill": prefill, "seconds": seconds}
            file.write(json.dumps(line) + "\n")
    model = calibrate(path)
    for decodes in (1, 2, 3, 4, 7):
        for prefill in ([], [(33, 0)]):
            expected = taken(decodes, sum(new for new, _ in prefill))
            assert model.seconds(decodes, 50, prefill) == pytest.approx(expected, rel=0.02)


def test_rows_that_stay_empty_in_a_kernel_are_learned(tmp_path: Path) -> None:
    """As on a CPU whose kernels take eight rows at once: the ninth costs as much as all eight."""

    def taken(tokens: int) -> float:
        return 0.02 + 0.01 * math.ceil(tokens / 8)

    chance = random.Random(5)
    path = tmp_path / "steps"
    with path.open("w") as file:
        for number in range(600):
            decodes = chance.choice((1, 2, 3, 4, 8, 12, 16))
            prefill = [(chance.randint(20, 100), 0)] if number % 2 else []
            seconds = taken(decodes + sum(new for new, _ in prefill))
            line = {"decodes": decodes, "context": 50, "prefill": prefill, "seconds": seconds}
            file.write(json.dumps(line) + "\n")
    model = calibrate(path)
    for tokens in (47, 48, 49, 52, 71, 73):
        assert model.seconds(8, 50, [(tokens - 8, 0)]) == pytest.approx(taken(tokens), rel=0.04)


def test_steps_add_up_to_what_they_took_although_some_were_interrupted(tmp_path: Path) -> None:
    path = log(tmp_path / "steps", noise=0.05)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines[::10]:
        line["seconds"] *= 1.6
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    model, steps = calibrate(path), list(read(path))
    modelled = sum(model.seconds(*step[:3]) for step in steps)
    assert modelled == pytest.approx(sum(step.seconds for step in steps), rel=0.01)


def test_no_part_of_a_step_takes_less_than_no_time(tmp_path: Path) -> None:
    model = calibrate(log(tmp_path / "steps", noise=0.5))
    assert min(model.coefficients) >= 0
    assert model.seconds(0, 0, []) == 0.0


def test_least_squares_keeps_to_numbers_above_zero() -> None:
    rows = [(1.0, 1.0), (1.0, 2.0), (1.0, 3.0)]
    assert non_negative(rows, [3.0, 5.0, 7.0], [1.0] * 3) == pytest.approx((1.0, 2.0))
    constant, slope = non_negative(rows, [3.0, 2.0, 1.0], [1.0] * 3)
    assert constant == pytest.approx(2.0)
    assert slope == 0.0


def test_the_host_s_time_between_steps_is_part_of_them(tmp_path: Path) -> None:
    path = log(tmp_path / "steps")
    without = calibrate(path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        line["between"] = line["seconds"] / 4
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for decodes in (1, 30):
        expected = 1.25 * without.seconds(decodes, 500, [(64, 0)])
        assert calibrate(path).seconds(decodes, 500, [(64, 0)]) == pytest.approx(expected)


def test_a_simulated_scheduler_begins_with_what_the_engine_s_knows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Measured step times are the device's; the scheduler learns of them by the steps it sees."""
    config = tiny_config()
    modelled, copies = step_model(config), []

    class Slower:
        def seconds(self, *step: Any) -> float:
            return 3 * modelled.seconds(*step)

    class Watched(Replica):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            copies.append(self)

    monkeypatch.setattr(servekit.simulator.run, "Replica", Watched)
    simulate(config, requests=30, seed=1, step_time=Slower())
    pace, device = copies[0].scheduler.pace, copies[0].executor.step_time
    assert pace.step_time.seconds(4, 50.0) == pytest.approx(modelled.seconds(4, 50.0), rel=1e-3)
    assert device.seconds(4, 50.0) == pytest.approx(3 * modelled.seconds(4, 50.0), rel=1e-3)
    assert pace.decoding.factor == pytest.approx(3, rel=0.05)


def test_a_log_that_ends_in_the_middle_of_a_line_is_read_up_to_it(tmp_path: Path) -> None:
    path = log(tmp_path / "steps")
    path.write_text(path.read_text() + '{"decodes": 3, "con')
    assert calibrate(path).steps == 400


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda lines: lines[:20], "at least 50 steps are needed, it has 20"),
        (lambda lines: lines[1::2] * 2, "steps with prompts are needed, it has 0"),
        (lambda lines: lines[::2] * 2, "decodes alone are needed, it has 0"),
        (
            lambda lines: lines[::2] + [lines[1]] * 60,
            "3 different numbers of decodes are needed, it has 1",
        ),
        (lambda lines: ["{}", *lines], "line 1 is not a step"),
        (lambda lines: [number_of(400), *lines], "line 1 is not a step"),
        (lambda lines: [number_of(5000), *lines], "a number is negative or none"),
        (lambda lines: [lines[0].replace('"seconds": ', '"seconds": -'), *lines], "line 1"),
    ],
)
def test_a_log_that_says_too_little_is_refused(tmp_path: Path, change, said: str) -> None:
    path = log(tmp_path / "steps")
    path.write_text("\n".join(change(path.read_text().splitlines())) + "\n")
    with pytest.raises(ConfigError, match=said):
        calibrate(path)


def test_a_log_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        calibrate(tmp_path / "none")
