"""The loop listens while a step runs."""

import threading
from collections.abc import Iterable
from typing import Any

import pytest

from servekit.engine.beside import Beside
from servekit.engine.core import EngineCore
from servekit.engine.messages import Abort, Delta, Deltas, FromEngine, Submit, ToEngine
from servekit.engine.runner import Sampled
from servekit.scheduler.batch import Batch
from tests.engine.tiny import greedy, tiny_engine


def test_everything_is_done_in_one_other_thread():
    beside: Beside[int] = Beside()
    seen = []
    for _ in range(3):
        beside.start(threading.get_ident)
        seen.append(beside.result())
    assert len(set(seen)) == 1
    assert threading.get_ident() not in seen


def test_what_goes_wrong_there_is_raised_here():
    beside: Beside[int] = Beside()
    beside.start(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        beside.result()
    beside.start(lambda: 7)
    assert beside.result() == 7


class Slow:
    """An executor whose steps last until somebody has been heard."""

    def __init__(self, runner: Any, heard: threading.Event) -> None:
        self.runner, self.heard = runner, heard

    def __getattr__(self, name: str) -> Any:
        return getattr(self.runner, name)

    def run(self, batch: Batch, prepared: Any = None) -> Sampled:
        assert self.heard.wait(10)
        return self.runner.run(batch, prepared)


def test_who_comes_or_goes_during_a_step_is_heard_before_it_ends():
    local = tiny_engine(scheduler={"max_num_seqs": 1, "max_num_waiting": 1})
    heard, said = threading.Event(), list[Delta]()
    coming: list[list[ToEngine]] = [
        [Submit(0, [1, 2], greedy(3))],
        [Submit(1, [3], greedy(3)), Submit(2, [4], greedy(3)), Abort([0])],
    ]

    def inbox(wait_s: float | None, until: int | None = None) -> Iterable[ToEngine]:
        return coming.pop(0) if coming else []

    def outbox(message: FromEngine) -> None:
        assert isinstance(message, Deltas)
        said.extend(message.all())
        if {delta.id for delta in said} >= {0, 1, 2}:
            heard.set()

    slow = Slow(local.runner, heard)
    core = EngineCore(local.scheduler, slow, inbox, outbox, device=Beside())
    core.step()
    assert [delta.finish for delta in said] == [None, None, "error", "abort"]
    assert said[2].error_code == "queue_full"
    assert said[2].retry_after_s is not None
    assert set(local.runner.states) == {1}, "the step that ran still knew the one that left"
    core.step()
    core.scheduler.check()
    assert [delta.id for delta in said if delta.tokens] == [1]
