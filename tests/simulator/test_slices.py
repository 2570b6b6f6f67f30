"""Steps summed over slices of time."""

import pytest

from servekit.config.compose import load
from servekit.simulator.columns import Gaps, Steps
from servekit.simulator.record import CopyRecord, Run
from servekit.simulator.report import report
from servekit.simulator.run import simulate
from servekit.simulator.seats import SeatKeeper
from servekit.simulator.slices import Slice, edges, slices


@pytest.fixture(scope="module")
def run() -> Run:
    """Steps from 0 to 3 s, with one request, and from 5 to 6 s, with three; two seats wait."""
    config = load(["+recipe=chat_llama8b", "scheduler.max_num_seqs=4"], None).config
    steps = Steps()
    steps.add((3.0, 3.0, 1, 0, 0, 1, 2, 10, 0, 0, 1))
    steps.add((6.0, 1.0, 3, 0, 0, 3, 0, 30, 0, 0, 3))
    steps.settle()
    copy = CopyRecord(steps, Gaps(), blocks_total=100)
    return Run(config, 1, [], [copy], SeatKeeper(4).seats, 6.0, 0.0)


def test_a_step_counts_where_it_ends_and_its_time_where_it_is_spent(run: Run) -> None:
    found = slices(run, [0.0, 1.0, 2.0, 4.0, 5.5, 6.0])
    assert [part.busy_s for part in found] == [1.0, 1.0, 1.0, 0.5, 0.5]
    assert [part.running_s for part in found] == [1.0, 1.0, 1.0, 1.5, 1.5]
    assert [part.waiting_s for part in found] == [2.0, 2.0, 2.0, 0.0, 0.0]
    assert [part.blocks_s for part in found] == [10.0, 10.0, 10.0, 15.0, 15.0]
    assert [part.idle_seats_s for part in found] == [3.0, 3.0, 3.0, 0.0, 0.0]
    assert [part.steps for part in found] == [0, 0, 1, 0, 1]
    assert [part.steps_s for part in found] == [0.0, 0.0, 3.0, 0.0, 1.0]
    assert [part.output_tokens for part in found] == [0, 0, 1, 0, 3]


@pytest.mark.parametrize("count", [1, 7, 120])
def test_slices_add_up_to_the_whole(count: int) -> None:
    config = load(["+recipe=chat_llama8b", "workload.request_rate=30"], None).config
    run = simulate(config, requests=60, seed=1)
    parts = slices(run, edges(0.0, run.seconds, count))
    whole = sum(parts[1:], parts[0])
    (steps,) = (copy.steps for copy in run.copies)
    assert whole.busy_s == pytest.approx(sum(steps.seconds))
    assert whole.steps_s == pytest.approx(whole.busy_s)
    assert whole.output_tokens == sum(steps.output_tokens)
    assert all(part.busy_s <= part.copy_s * (1 + 1e-9) for part in parts)


def test_one_request_never_runs_twice_at_once() -> None:
    config = load(["+recipe=chat_llama8b", "workload.output_tokens=30"], None).config
    alone = report("alone", [simulate(config, requests=1, seed=1)])
    assert max(alone.series.running) <= 1 + 1e-9
    assert alone.busy_share.value <= 1 + 1e-9


def test_nothing_is_in_no_time(run: Run) -> None:
    assert edges(2.0, 2.0, 5) == []
    assert slices(run, [3.5, 4.5]) == [Slice(1.0, 1.0, block_capacity_s=100.0)]
