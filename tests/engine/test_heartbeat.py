"""Load is no fault, silence is."""

import math
import time

import pytest

from servekit.engine import core
from servekit.engine.heartbeat import Heartbeat
from servekit.engine.messages import Beat
from tests.engine.tiny import greedy, tiny_engine


def heard(seconds_ago: float, **words: float) -> Heartbeat:
    beat = Heartbeat(10.0, loading=False, **words)
    beat.heard_at = time.monotonic() - seconds_ago
    return beat


@pytest.mark.parametrize(
    ("seconds_ago", "step_s", "slowest_step_s", "late", "stopped"),
    [
        (0, 0, 0, False, False),
        (6, 0, 0, True, False),
        (11, 0, 0, True, True),
        (0, 9, 0, False, False),
        (0, 11, 0, False, True),
        (3, 8, 0, False, True),
        (0, 30, 4, False, False),
        (0, 41, 4, False, True),
        (11, 0, 4, True, False),
    ],
)
def test_a_long_step_is_no_death_and_ten_times_the_slowest_is(
    seconds_ago: float, step_s: float, slowest_step_s: float, late: bool, stopped: bool
) -> None:
    beat = heard(seconds_ago, step_s=step_s, slowest_step_s=slowest_step_s)
    assert (beat.late is not None, beat.stopped is not None) == (late, stopped)


def test_while_it_loads_an_engine_may_be_silent_ten_times_as_long() -> None:
    beat = heard(50)
    beat.loading = True
    assert beat.stopped is None
    assert beat.late is None
    beat.heard_at -= 51
    assert beat.stopped is not None


def test_an_engine_that_is_not_started_is_not_missed() -> None:
    beat = Heartbeat(math.inf)
    beat.heard_at -= 1e6
    assert beat.stopped is None


def test_an_idle_engine_says_that_it_turns_and_a_busy_one_need_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[object] = []
    engine = tiny_engine()
    engine.core._outbox = said.append
    engine.core.step()
    assert said == []
    monkeypatch.setattr(core, "BEAT_S", 0.0)
    engine.core.step()
    assert said == [Beat(0.0)]
    said.clear()
    engine.submit([1], greedy(1))
    engine.core.step()
    assert not any(isinstance(one, Beat) for one in said)
