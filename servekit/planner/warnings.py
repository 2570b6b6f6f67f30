"""What a plan says beside its verdict: what will be served, but perhaps not as meant."""

from collections.abc import Iterator
from pathlib import Path

from servekit.config.schema import Config
from servekit.planner.capability import cannot_run, slow_formats, slow_links
from servekit.planner.outcome import Outcome
from servekit.spec.activations import activation_bytes, workspace_bytes
from servekit.spec.kv import kv_layout
from servekit.spec.memory import Ledger
from servekit.spec.model import GIB

WORTH_SAYING = 1.1
"""A capacity that is more than this many times as large is worth a line."""

BUSY = 0.6
"""Share of the capacity from which the closed forms are known to promise too much."""

BURSTY = 1.5

LARGE_SAMPLER = 0.02
"""Of the device: what half of the sampler takes is named from this share on."""


def warnings(outcome: Outcome) -> Iterator[str]:
    config = outcome.config
    if not_run := cannot_run(config):
        yield f"this release plans and does not run: {'; '.join(not_run)}"
    yield from (text for text in outcome.refusals if text != outcome.problem)
    yield from of_the_cache(config, outcome.ledger)
    yield from slow_formats(config)
    yield from slow_links(config)
    yield from whole_layers(config)
    yield from step_and_windows(config, outcome.ledger)
    yield from sampler(config, outcome.ledger)
    yield from overload(outcome)
    yield from waits(outcome)
    yield from near(outcome)
    yield from of_the_entrance(config)


def of_the_entrance(config: Config) -> Iterator[str]:
    """Files of the server that are not on this machine, which may not be the one that serves."""
    server = config.server
    for key in ("api_keys", "tls_cert", "tls_key"):
        path = getattr(server, key)
        if path is not None and not path.startswith("env:") and not Path(path).is_file():
            yield f"server.{key}: there is no file {path} on this machine"


def of_the_cache(config: Config, book: Ledger) -> Iterator[str]:
    """A cache that is shorter than what was promised of it."""
    if book.verdict == "does_not_fit" or not book.layout.num_blocks:
        return
    if not book.holds_longest_request:
        yield (
            f"{book.rule} holds {book.layout.longest_request} tokens: that is the longest request "
            f"served, not the {config.model.max_model_len} of model.max_model_len"
        )
    seats = config.scheduler.max_num_seqs
    if book.layout.num_blocks < seats:
        yield (
            f"the KV cache has {book.layout.num_blocks} blocks, fewer than the {seats} requests of "
            "scheduler.max_num_seqs, and each needs at least one"
        )


def whole_layers(config: Config) -> Iterator[str]:
    """Sliding-window layers that keep what they cannot see."""
    shape, longest = config.model.shape, config.model.max_model_len
    windowed = [layer for layer in shape.attention_layers if shape.window(layer) is not None]
    if windowed and not config.kv.hybrid and longest > (shape.sliding_window or 0):
        yield (
            f"{len(windowed)} of {shape.layers} layers look back {shape.sliding_window} tokens "
            "only, and kv.hybrid=false stores them at full length all the same"
        )


def step_and_windows(config: Config, book: Ledger) -> Iterator[str]:
    """A windowed layer holds its window and one step: long steps cost capacity."""
    shape, scheduler = config.model.shape, config.scheduler
    windowed = any(shape.window(layer) is not None for layer in shape.attention_layers)
    shorter = max(scheduler.max_num_seqs, min(2048, scheduler.max_num_batched_tokens))
    if (
        not config.kv.hybrid
        or not windowed
        or book.verdict == "does_not_fit"
        or shorter == scheduler.max_num_batched_tokens
    ):
        return
    steps = scheduler.model_copy(update={"max_num_batched_tokens": shorter})
    changed = config.model_copy(update={"scheduler": steps})
    layout, _ = kv_layout(changed, book.kv.bytes, book.stage)
    longest = config.model.max_model_len
    now, then = book.layout.blocks_for(longest), layout.blocks_for(longest)
    if now > WORTH_SAYING * then:
        yield (
            f"sliding-window layers hold their window and one step: with "
            f"scheduler.max_num_batched_tokens={shorter} instead of "
            f"{scheduler.max_num_batched_tokens} the cache holds {now / then:.2f} times as many "
            f"requests of {longest} tokens"
        )


def sampler(config: Config, book: Ledger) -> Iterator[str]:
    """Where logits of all running requests are the peak of a step."""
    seats = config.scheduler.max_num_seqs
    fewer = config.scheduler.model_copy(update={"max_num_seqs": max(1, seats // 2)})
    half = config.model_copy(update={"scheduler": fewer})
    saved = step_bytes(config, book.stage) - step_bytes(half, book.stage)
    if saved > max(LARGE_SAMPLER * book.total_bytes, GIB // 4):
        yield (
            f"sampling is the peak of a step: {seats} requests (scheduler.max_num_seqs) x "
            f"{config.model.shape.vocab_size} tokens of vocabulary; half as many requests would "
            f"leave {saved / GIB:.1f} GiB more to the cache"
        )


def step_bytes(config: Config, stage: int) -> int:
    return activation_bytes(config, stage) + workspace_bytes(config, stage)


def overload(outcome: Outcome) -> Iterator[str]:
    """More traffic than can be worked off: queues grow as long as it lasts."""
    prediction = outcome.prediction
    if prediction is None or prediction.stable:
        return
    rate, most = prediction.requests_per_s, prediction.capacity_per_s
    if prediction.sampled is not None:
        yield (
            f"in a simulation of {prediction.sampled.seconds:.0f} s the queue only grew, although "
            f"{rate:.4g} requests a second are less than the {most:.3g} of its capacity: servekit "
            "simulate --requests N runs longer"
        )
    else:
        yield (
            f"the workload's {rate:.4g} requests a second are more than the {most:.3g} that it "
            "serves at full load: the queue grows without end"
        )


def waits(outcome: Outcome) -> Iterator[str]:
    """Where closed forms are known to promise too much, and no simulation took their place."""
    config, prediction = outcome.config, outcome.prediction
    if (
        prediction is None
        or prediction.utilization is None
        or prediction.sampled is not None
        or not prediction.stable
        or prediction.utilization < BUSY
    ):
        return
    parallelism, asked = config.parallelism, f"{100 * prediction.utilization:.0f} % of the capacity"
    if prediction.seats < config.scheduler.max_num_seqs * parallelism.data:
        yield (
            f"{asked} is asked for, and the cache has room for {prediction.seats} requests of this "
            "workload: the wait for room in it may be several times what these bounds say"
        )
    bursts = config.workload.arrival_cv > BURSTY
    if bursts or parallelism.pipeline > 1:
        what = "in bursts" if bursts else f"of {parallelism.pipeline} stages"
        yield f"{asked} is asked for, {what}: times may be half as much again as these bounds say"


def near(outcome: Outcome) -> Iterator[str]:
    if outcome.ledger.verdict == "unsure":
        yield f"it may start or not: {outcome.ledger.problem}"
