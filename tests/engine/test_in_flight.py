"""With the next step planned while one runs, every request gets what it gets without."""

import json
import select
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from servekit.engine.beside import Beside
from servekit.engine.core import EngineCore, Inbox
from servekit.engine.local import LocalEngine
from servekit.engine.messages import Deltas, FromEngine, Sampling, Stop, Submit, ToEngine
from servekit.engine.runner import Sampled
from servekit.engine.sampler import NOT_FINITE
from servekit.engine.step_log import StepLog
from servekit.errors import EngineError
from servekit.model.decoder import Decoder
from servekit.scheduler.batch import Batch
from tests.engine.grammars import BYTES
from tests.engine.test_engine import GREEDY, PROMPTS, SEEDED, SETTINGS, Faulty, alone
from tests.engine.tiny import greedy, tiny_decoder, tiny_engine

DECODER = tiny_decoder()


def engine(depth: int, decoder: Decoder = DECODER, **groups: Any) -> LocalEngine:
    made = tiny_engine(decoder, engine={"in_flight": depth}, **groups)
    made.send(BYTES)
    return made


def waiting(comes: Callable[[float | None], list[ToEngine]]) -> Inbox:
    """An inbox that leaves the interpreter to a step while nobody comes."""

    def inbox(wait_s: float | None, until: int | None = None) -> list[ToEngine]:
        messages = comes(wait_s)
        if until is not None and not messages:
            select.select([until], [], [], wait_s)
        return messages

    return inbox


def at_rest(engine: LocalEngine) -> None:
    engine.scheduler.check()
    stats = engine.scheduler.stats()
    assert stats.blocks_free == stats.blocks_total, "a block leaked"
    assert not engine.scheduler.busy
    assert not engine.runner.states, "the executor remembers who has gone"
    assert not engine.core.ended


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("samplings", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_tokens_are_those_of_one_step_at_a_time(setting: str, samplings: list[Sampling]) -> None:
    two = engine(2, **SETTINGS[setting])
    assert [one.tokens for one in two.generate(PROMPTS, samplings)] == alone(samplings)
    at_rest(two)
    stats = two.scheduler.stats()
    assert (stats.preemptions_total > 0) == (setting in ("preempted", "swapped"))
    assert (stats.swaps_total > 0) == (setting == "swapped")


def test_the_next_step_is_planned_before_one_has_run() -> None:
    two = engine(2)
    run, planned = two.runner.run, []

    def seen(batch: Batch, prepared: Any = None) -> Sampled:
        planned.append(two.scheduler.steps_total - batch.id)
        return run(batch, prepared)

    two.runner.run = seen  # type: ignore[method-assign]
    two.generate([[1, 2, 3]], [greedy(6)])
    # nobody plans beyond max_tokens
    assert planned == [1, 1, 1, 1, 1, 0]


def test_a_row_that_ran_after_a_stop_is_told_to_nobody() -> None:
    plain = engine(1).generate([[5, 6]], [greedy(12)])[0].tokens
    stop = plain[3]
    two, told = engine(2), []
    deliver = two.core._outbox

    def listen(message: FromEngine) -> None:
        if isinstance(message, Deltas):
            told.append([(delta.id, delta.tokens, delta.finish) for delta in message.all()])
        deliver(message)

    two.core._outbox = listen
    result = two.generate([[5, 6]], [greedy(12, stop_token_ids=[stop])])[0]
    assert (result.tokens, result.finish) == (plain[:4], "stop")
    assert told[-2:] == [[(0, [stop], "stop")], []]
    assert two.scheduler.steps_total == 5
    at_rest(two)


def test_a_request_whose_logits_are_no_numbers_fails_alone_though_it_was_planned_again() -> None:
    poison, decoder = 299, tiny_decoder()
    decoder.embedding.data[poison] = float("nan")
    two = engine(2, decoder, kv={"capacity_tokens": 640})
    bad = two.submit([poison] * 40, greedy(5))
    assert [one.tokens for one in two.generate(PROMPTS, GREEDY)] == alone(GREEDY)
    assert (two.results[bad].finish, two.results[bad].error) == ("error", NOT_FINITE)
    at_rest(two)


def test_a_request_that_makes_a_step_raise_fails_alone_though_it_was_planned_again() -> None:
    two = engine(2)
    two.runner.decoder = Faulty(two.runner.decoder, token=298)
    bad = two.submit([298, 3, 4], greedy(5))
    assert [one.tokens for one in two.generate(PROMPTS, GREEDY)] == alone(GREEDY)
    assert two.results[bad].finish == "error"
    at_rest(two)


def test_what_cannot_be_prepared_is_prepared_where_faults_are_caught() -> None:
    two = engine(2)
    prepare, times = two.runner.prepare, []

    def fails(batch: Batch) -> Any:
        times.append(batch.id)
        if len(times) % 3 == 0:
            raise MemoryError("no pinned memory")
        return prepare(batch)

    two.runner.prepare = fails  # type: ignore[method-assign]
    assert [one.tokens for one in two.generate(PROMPTS, GREEDY)] == alone(GREEDY)
    at_rest(two)


def test_after_a_step_that_ends_the_engine_the_next_is_not_run() -> None:
    local = engine(2)
    ran: list[int] = []

    def broken(batch: Batch, prepared: Any = None) -> Sampled:
        ran.append(batch.id)
        raise RuntimeError("the device is gone")

    def probe() -> None:
        raise RuntimeError("gone for good")

    local.runner.run = broken  # type: ignore[method-assign]
    local.runner.probe = probe  # type: ignore[method-assign]
    coming: list[list[ToEngine]] = [[Submit(0, [1, 2], greedy(9))]]
    core = EngineCore(
        local.scheduler,
        local.runner,
        lambda wait_s, until=None: coming.pop() if coming else [],
        lambda message: None,
        device=Beside(),
        in_flight=2,
    )
    with pytest.raises(EngineError, match="gone for good"):
        core.run()
    assert ran == [1]
    assert not core.flights


class Gate:
    """An executor whose steps wait until they are let through."""

    def __init__(self, runner: Any) -> None:
        self.runner, self.gate = runner, threading.Semaphore(0)
        self.ran: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.runner, name)

    def run(self, batch: Batch, prepared: Any = None) -> Sampled:
        assert self.gate.acquire(timeout=10)
        self.ran.append(batch.id)
        outcome: Sampled = self.runner.run(batch, prepared)
        return outcome


def test_who_comes_while_the_only_step_runs_is_in_the_next_and_a_stop_leaves_that_out() -> None:
    """The first request's only row is under way, and there is nothing to plan beside it."""
    local = engine(2)
    gate, said = Gate(local.runner), []
    calls = 0

    def inbox(wait_s: float | None, until: int | None = None) -> Iterable[ToEngine]:
        nonlocal calls
        calls += 1
        if calls == 1:
            return [Submit(0, [1, 2], greedy(1))]
        if calls == 2:
            return [Submit(1, [3, 4], greedy(5))]
        assert local.scheduler.steps_total == 2, "planned while the first step runs"
        gate.gate.release(9)
        return [Stop()]

    core = EngineCore(local.scheduler, gate, inbox, said.append, device=Beside(), in_flight=2)
    core.run()
    assert 1 in gate.ran
    assert not core.flights


def test_time_is_counted_once_where_steps_overlap(tmp_path: Path) -> None:
    """Seconds of steps and between them add up to the time there was work, not to more."""
    local, path = engine(2), tmp_path / "steps.jsonl"
    inbox: list[ToEngine] = [Submit(0, [1, 2, 3], greedy(40))]
    ends: list[float] = []

    def outbox(message: FromEngine) -> None:
        if isinstance(message, Deltas) and any(delta.finish for delta in message.all()):
            ends.append(core.clock())

    core = EngineCore(
        local.scheduler,
        local.runner,
        waiting(lambda wait_s: [inbox.pop()] if inbox else []),
        outbox,
        device=Beside(),
        in_flight=2,
        log=StepLog(path),
    )
    began = core.clock()
    while not ends:
        core.step()
    assert core.log is not None
    core.log.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(lines) == 40
    counted = sum(line["seconds"] + line["between"] for line in lines)
    assert 0 < counted <= ends[0] - began
