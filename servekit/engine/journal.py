"""What a step did to requests beside giving them tokens: seats, prompt chunks, preemptions.

Nothing here is for each token: a step in which all requests decode has no event.
"""

from servekit.engine.flights import Flight
from servekit.engine.messages import Event, Step
from servekit.scheduler.batch import Row
from servekit.scheduler.scheduler import Scheduler


def plan_events(scheduler: Scheduler, planned: float) -> list[Event]:
    """Of what was planned just now; in the order in which it happened."""
    preempted, seated = scheduler.shortage.preempted, scheduler.prompts.seated
    events = [Event(one.id, "preempted", one.arrived, planned, 0) for one in preempted]
    return events + [
        Event(one.id, "seated", one.arrived, planned, one.cached_tokens) for one in seated
    ]


def step_and_events(flight: Flight, scheduler: Scheduler) -> tuple[Step, list[Event]]:
    """Of a batch that is run and not yet committed; in the order in which it happened."""
    batch = flight.batch
    assert flight.started is not None, "told before it is run"
    chunks = [
        Event(row.request_id, "chunk", flight.started, flight.ended, len(row.tokens))
        for row in batch.others
        if _computes_prompt(row, scheduler)
    ]
    prompt_tokens = sum(chunk.tokens for chunk in chunks)
    step = Step(
        rows=batch.num_rows,
        prefill_tokens=prompt_tokens,
        decode_tokens=batch.num_tokens - prompt_tokens,
        seconds=flight.ended - flight.started,
        build_s=flight.build_s,
    )
    return step, flight.events + chunks


def _computes_prompt(row: Row, scheduler: Scheduler) -> bool:
    """Or computes again what was computed before a preemption; guesses are no prompt."""
    if row.drafts:
        return False
    if len(row.tokens) > 1 or not row.samples:
        return True
    request = scheduler.requests[row.request_id]
    return row.start < len(request.prompt)
