"""Steps as lines of JSON."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

import servekit.engine.guard
from servekit.engine.core import EngineCore
from servekit.engine.messages import Caller, Submit, ToEngine
from servekit.engine.step_log import StepLog
from servekit.errors import ConfigError
from servekit.scheduler.batch import Batch, Decodes, Outcome, Row
from tests.engine.tiny import greedy, tiny_engine


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_says_what_a_step_was(tmp_path: Path):
    log = StepLog(tmp_path / "steps.jsonl")
    decodes = Decodes([1, 2], [10, 13], [5, 6], [([1],), ([2],)])
    others = [
        Row(3, 0, [1, 2, 3], ([3],), samples=False),
        Row(4, 32, [9, 9], ([4],), samples=True),
    ]
    log.note(Batch(7, decodes, others), Outcome([1, 2], {4: [3]}, seconds=0.25), 0.125)
    log.note(Batch(8, decodes, []), Outcome([1, 2], {}, failed={1: "why"}, seconds=0.25), 0.0)
    log.close()
    assert lines(tmp_path / "steps.jsonl") == [
        {
            "id": 7,
            "decodes": 2,
            "context": 12.5,
            "prefill": [[3, 0], [2, 32]],
            "samples": 3,
            "copies": 0,
            "seconds": 0.25,
            "between": 0.125,
        }
    ]


def test_an_engine_writes_every_step(tmp_path: Path):
    path = tmp_path / "steps.jsonl"
    engine = tiny_engine(telemetry={"step_log": str(path)})
    engine.generate([[1] * 70, [2]], [greedy(4), greedy(6)])
    engine.close()
    found = lines(path)
    assert len(found) == engine.scheduler.stats().steps_total
    assert sum(new for line in found for new, _ in line["prefill"]) == 71
    assert all(line["seconds"] > 0 for line in found)


def test_time_between_steps_is_logged_and_told_to_the_scheduler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A step takes 1 s, to hear and to tell 0.25 s; before the first, nobody comes for 60 s."""
    now = 100.0

    def passes(seconds: float) -> None:
        nonlocal now
        now += seconds

    def listen(wait_s: float | None, until: int | None = None) -> list[ToEngine]:
        passes(0.0 if wait_s == 0 else 60.0)
        return [] if wait_s == 0 else [Submit(0, [1, 2, 3], greedy(4), Caller())]

    engine = tiny_engine()
    run, log = engine.runner.run, StepLog(tmp_path / "steps.jsonl")
    monkeypatch.setattr(servekit.engine.guard, "time", SimpleNamespace(perf_counter=lambda: now))
    monkeypatch.setattr(engine.runner, "run", lambda *step: (passes(1.0), run(*step))[1])
    core = EngineCore(
        engine.scheduler, engine.runner, listen, lambda _: passes(0.25), lambda: now, log=log
    )
    for _ in range(4):
        core.step()
    log.close()
    found = lines(tmp_path / "steps.jsonl")
    assert [line["seconds"] for line in found] == [1.0] * 4
    # it is told at once that it was let in
    assert [line["between"] for line in found] == [0.25] * 4
    assert engine.scheduler.pace.step_s == pytest.approx(1.25)


def test_a_file_that_cannot_be_written_is_said_at_the_start(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"step_log=.* cannot be written: No such file"):
        StepLog(tmp_path / "nowhere" / "steps.jsonl")
