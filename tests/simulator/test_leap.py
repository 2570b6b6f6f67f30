"""A simulator that takes uneventful steps at once tells the same story."""

import pytest

from servekit.simulator.replica import Replica
from servekit.simulator.run import simulate
from tests.simulator.test_run import CASES, configured

MORE = {
    "impatient": ("workload.request_rate=40", "workload.patience_s=2", "scheduler.max_num_seqs=8"),
    "overloaded": ("workload.request_rate=40", "slo.admission=enforce"),
    "paced": ("scheduler.order=deadline", "scheduler.decode_slowdown=1.5"),
}
ALL = CASES | MORE


@pytest.mark.parametrize("words", ALL.values(), ids=ALL)
@pytest.mark.parametrize("foreseen", [False, True])
def test_steps_taken_at_once_are_the_same_steps(words, foreseen, monkeypatch):
    config, leap, leapt = configured(*words), Replica._leap, 0

    def counted(self, now, until):
        nonlocal leapt
        before = len(self.record.steps)
        after = leap(self, now, until)
        leapt += len(self.record.steps) - before
        return after

    monkeypatch.setattr(Replica, "_leap", counted)
    at_once = simulate(config, requests=150, seed=2, foreseen=foreseen)
    monkeypatch.setattr(Replica, "_leap", lambda self, now, until: now)
    one_by_one = simulate(config, requests=150, seed=2, foreseen=foreseen)
    assert leapt or "speculative=ngram" in words, "nothing was taken at once"
    assert at_once.served == one_by_one.served
    assert at_once.copies == one_by_one.copies
    assert at_once.seats == one_by_one.seats
    assert at_once.seconds == one_by_one.seconds
