"""The twin: what it must do whatever the numbers, and where theory knows the answer."""

from itertools import pairwise

import pytest

from servekit.config.compose import load
from servekit.config.schema import Config
from servekit.errors import DoesNotFit, NotBuilt
from servekit.simulator.columns import SeatState
from servekit.simulator.record import Run
from servekit.simulator.run import simulate
from servekit.simulator.timing import Dealt, graph_rows
from servekit.spec.latency import step_model


def configured(*words: str) -> Config:
    return load(["+recipe=chat_llama8b", *words], None).config


def run_of(*words: str, requests: int = 120, seed: int = 1, foreseen: bool = False) -> Run:
    return simulate(configured(*words), requests=requests, seed=seed, foreseen=foreseen)


SHORT_OF_BLOCKS = (
    "kv.capacity_tokens=6000",
    "model.max_model_len=4096",
    "scheduler.reserve=greedy",
    "workload.prompt_tokens=200",
    "workload.request_rate=30",
)
GUESSING = ("speculative=ngram", "speculative.acceptance=0.7", "workload.request_rate=4")
CASES = {
    "alone": (),
    "short of blocks": SHORT_OF_BLOCKS,
    "guessing": GUESSING,
    "two copies": ("parallelism.data=2", "workload.request_rate=30"),
    "two stages": ("parallelism.pipeline=2",),
    "static": ("scheduler=static",),
    "turns": ("workload.turns=3", "workload.think_s=1"),
    "closed": ("workload.arrivals=closed", "workload.concurrency=7"),
}


@pytest.fixture(scope="module", params=CASES.values(), ids=CASES)
def run(request: pytest.FixtureRequest) -> Run:
    return run_of(*request.param)


def test_everybody_gets_the_whole_answer_in_order(run: Run) -> None:
    assert len(run.served) == 120
    for one in run.served:
        assert one.end == "finished"
        assert one.output_tokens == one.asked_tokens
        assert one.at <= one.admitted_at < one.first_token_at <= one.finished_at


def test_gaps_are_all_the_time_between_first_and_last_tokens(run: Run) -> None:
    gaps = [copy.gaps for copy in run.copies]
    count = sum(sum(gap.count) for gap in gaps)
    total = sum(s * n for gap in gaps for s, n in zip(gap.seconds, gap.count, strict=True))
    assert count == sum(one.output_tokens - 1 for one in run.served)
    answers = sum(one.finished_at - one.first_token_at for one in run.served)
    assert total == pytest.approx(answers)


def test_steps_of_a_copy_do_not_overlap_and_account_for_every_token(run: Run) -> None:
    for copy in run.copies:
        steps = copy.steps
        ends = zip(steps.at, steps.seconds, strict=True)
        for (before, _), (at, seconds) in pairwise(ends):
            assert at - seconds >= before - 1e-9
        assert max(steps.blocks_used) <= copy.blocks_total
    said = sum(sum(copy.steps.output_tokens) for copy in run.copies)
    assert said == sum(one.output_tokens for one in run.served)
    taken = sum(sum(copy.steps.prompt_tokens) for copy in run.copies)
    cached = sum(one.cached_tokens for one in run.served)
    wasted = sum(copy.wasted_tokens for copy in run.copies)
    asked = sum(one.prompt_tokens for one in run.served)
    assert asked - cached <= taken + len(run.served)
    assert taken <= asked - cached + wasted


@pytest.mark.parametrize("arrivals", ["open", "closed"])
def test_no_more_requests_are_cut_than_came(arrivals: str) -> None:
    words = (
        *("model.max_model_len=200", "workload.prompt_tokens=1000", "workload.prompt_cv=0"),
        *(f"workload.arrivals={arrivals}", "workload.concurrency=7"),
    )
    assert run_of(*words, requests=50).cut == 50


def test_the_same_seed_gives_the_same_run() -> None:
    first, second = run_of(*SHORT_OF_BLOCKS), run_of(*SHORT_OF_BLOCKS)
    assert first.served == second.served
    assert first.copies[0].steps == second.copies[0].steps
    assert first.served != run_of(*SHORT_OF_BLOCKS, seed=2).served


def test_a_small_cache_preempts() -> None:
    run = run_of(*SHORT_OF_BLOCKS)
    assert sum(one.preemptions for one in run.served) == sum(run.copies[0].steps.preempted) > 0


def test_what_is_swapped_to_the_host_is_counted() -> None:
    slow = ("hardware.bf16_tflops=20", "kv.offload_gib=4")
    run = run_of(*SHORT_OF_BLOCKS, *slow)
    assert 0 < run.copies[0].swaps <= sum(run.copies[0].steps.preempted)


def test_one_seat_waits_as_theory_says() -> None:
    """One seat, equal requests, Poisson arrivals are M/D/1: the mean wait is rho S / 2(1 - rho)."""
    words = (
        *("scheduler.max_num_seqs=1", "workload.prompt_cv=0", "workload.output_cv=0"),
        *("workload.arrival_cv=1", "workload.output_tokens=20", "workload.prompt_tokens=300"),
        *("scheduler.max_num_waiting=100000", "workload.request_rate=3.5"),
    )
    run = run_of(*words, requests=6000)
    service = min(one.e2e_s for one in run.served)
    load = 3.5 * service
    assert 0.5 < load < 0.9
    waits = [one.queue_s for one in run.served]
    expected = load * service / (2 * (1 - load))
    assert sum(waits) / len(waits) == pytest.approx(expected, rel=0.15), "seed 1"


def test_a_client_leaves_when_its_patience_ends_and_takes_nothing_with_it() -> None:
    run = run_of("scheduler.max_num_seqs=2", "workload.patience_s=2", requests=200)
    left = [one for one in run.served if one.end == "left"]
    assert left
    for one in left:
        assert one.first_token_at is None
        assert one.finished_at == pytest.approx(one.at + 2)
    assert max(one.ttft_s for one in run.served if one.end == "finished") <= 2.1
    assert run.copies[0].steps.blocks_used[-1] <= run.copies[0].blocks_total


def test_those_who_find_the_queue_full_are_refused_at_once() -> None:
    run = run_of("scheduler.max_num_seqs=2", "scheduler.max_num_waiting=3", requests=200)
    refused = [one for one in run.served if one.end == "refused"]
    assert refused
    assert {one.code for one in refused} == {"queue_full"}
    assert all(one.finished_at == one.at and one.output_tokens == 0 for one in refused)
    assert max(run.copies[0].steps.waiting) <= 3


def test_no_more_ask_at_once_than_there_are_clients() -> None:
    run = run_of("workload.arrivals=closed", "workload.concurrency=7")
    assert max(run.copies[0].steps.running) == 7


def test_the_router_keeps_copies_alike() -> None:
    run = run_of("parallelism.data=2", "workload.request_rate=30", requests=300)
    tokens = [sum(one.prompt_tokens for one in run.served if one.copy == c) for c in (0, 1)]
    assert min(tokens) > 0.7 * max(tokens)


def test_guesses_that_hold_save_steps() -> None:
    sure = run_of("speculative=ngram", "speculative.acceptance=1", requests=60)
    none = run_of("speculative=ngram", "speculative.acceptance=0", requests=60)
    guesses = sure.config.speculative.tokens
    said = sum(one.output_tokens for one in sure.served)
    assert sum(none.copies[0].steps.decodes) == said - 60
    assert sum(sure.copies[0].steps.decodes) < 1.3 * said / (1 + guesses)
    assert none.copies[0].accepted_drafts == 0


def test_an_end_that_is_foreseen_comes_no_earlier_or_later() -> None:
    assert all(one.output_tokens == one.asked_tokens for one in run_of(foreseen=True).served)


def test_a_later_turn_finds_the_earlier_ones_in_the_cache() -> None:
    words = ("workload.turns=4", "workload.think_s=0.5", "workload.prompt_tokens=2000")
    hits = run_of(*words, requests=200)
    assert hits.copies[0].prefix_hit_tokens > 0.2 * hits.copies[0].prefix_query_tokens
    missed = sum(hits.copies[0].misses.values())
    both = missed + hits.copies[0].prefix_hit_tokens
    assert both == hits.copies[0].prefix_query_tokens


def test_the_window_shows_every_row_of_its_steps() -> None:
    run = run_of(requests=60)
    seats, steps = run.seats, run.copies[0].steps
    assert len(seats.at) > 50
    for index, states in enumerate(seats.states):
        step = seats.first_step + index
        if step >= len(steps):
            break
        assert states.count(SeatState.DECODE) == steps.decodes[step]
        assert states.count(SeatState.PREFILL) == steps.prompts[step]
        occupied = sum(state in (1, 2, 3) for state in states)
        assert occupied == steps.running[step]
        named = [id for id in seats.requests[index] if id >= 0]
        assert len(set(named)) == len(named)


@pytest.mark.parametrize(("rows", "padded"), [(1, 1), (3, 4), (5, 8), (250, 256), (257, 272)])
def test_a_decode_step_is_padded_to_a_captured_size(rows: int, padded: int) -> None:
    assert graph_rows(rows) == padded


def test_the_largest_steps_are_not_captured() -> None:
    assert graph_rows(513) == 513


def test_rows_dealt_to_stages_take_as_long_as_the_fullest_batch() -> None:
    model = step_model(configured("parallelism.pipeline=2"))
    dealt = Dealt(model, 2, 1000)
    assert dealt.seconds(7, 500) == model.seconds(4, 500)
    chunks = [(600.0, 0.0), (600.0, 50.0), (600.0, 0.0)]
    assert dealt.seconds(0, 0, chunks) == model.seconds(0, 0, [(600.0, 0.0), (400.0, 50.0)])


def test_a_model_without_room_for_a_block_is_refused() -> None:
    with pytest.raises(DoesNotFit, match="KV cache"):
        run_of("model=llama3_70b", requests=1)


def test_layers_that_carry_a_state_are_refused() -> None:
    words = ["model=qwen3_next_80b_a3b", "hardware=h200", "parallelism=tp4"]
    with pytest.raises(NotBuilt, match="state"):
        simulate(load(words, None).config, requests=1, seed=1)
