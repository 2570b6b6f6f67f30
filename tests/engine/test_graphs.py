"""Which decode steps are captured, what becomes of one that cannot be, and who uses them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from servekit.engine.assemble import assemble
from servekit.engine.capturing import Capturing
from servekit.engine.cuda_graphs import capturable
from servekit.engine.graphs import Captured, DecodeGraphs, Replay, capture, ladder
from servekit.engine.inputs import lay_out
from servekit.engine.local import LocalEngine
from servekit.engine.messages import Loading, Sampling
from servekit.engine.static_inputs import Staging, StaticDecodes, numbers_of_a_step
from servekit.engine.warmup import mixed_batches
from servekit.kernels.table import OPS, choose
from servekit.model.cache import KvCache
from servekit.model.decoder import Decoder
from servekit.model.inputs import StepInputs
from servekit.scheduler.batch import Batch, Decodes, Row
from servekit.spec.memory import ledger
from tests.conftest import TINY_MOE, tiny_config, tiny_shape
from tests.engine.test_engine import GREEDY, PROMPTS, SEEDED, alone
from tests.engine.tiny import greedy, tiny_decoder, tiny_engine

MIB = 2**20


def test_sizes_are_a_ladder_up_to_the_seats() -> None:
    assert ladder(1) == [1]
    assert ladder(5) == [1, 2, 4, 5]
    assert ladder(24) == [1, 2, 4, 8, 16, 24]
    assert ladder(300)[-4:] == [248, 256, 288, 300]


@dataclass
class FakeDevice:
    """The first graph takes `base` MiB, each other 1; a capture raises what `refuses` says."""

    base: int = 10
    refuses: Callable[[int], Exception | None] = lambda size: None
    used: int = 100 * MIB
    asked: list[int] = field(default_factory=list)

    def used_bytes(self) -> int:
        return self.used

    def capture(self, size: int) -> Replay:
        self.asked.append(size)
        if (fault := self.refuses(size)) is not None:
            raise fault
        self.used += (1 if len(self.asked) > 1 else self.base) * MIB
        return lambda: torch.full((size, 3), float(size))


def full(above: int, below: int = 0) -> Callable[[int], Exception | None]:
    def refuses(size: int) -> Exception | None:
        fits = below < size <= above
        return None if fits else torch.OutOfMemoryError("CUDA out of memory")

    return refuses


SIZES = [1, 2, 4, 8, 16]


def test_the_largest_is_captured_first() -> None:
    device, told = FakeDevice(), []
    made = capture(
        device, SIZES, budget_bytes=99 * MIB, report=lambda done, total: told.append(done)
    )
    assert device.asked == [16, 8, 4, 2, 1]
    assert sorted(made.replays) == SIZES
    assert (made.bytes, made.why) == (14 * MIB, "")
    assert told == [0, 1, 2, 3, 4, 5]


def test_none_is_captured_once_the_budget_is_spent() -> None:
    made = capture(FakeDevice(), SIZES, budget_bytes=11 * MIB)
    assert sorted(made.replays) == [4, 8, 16]
    assert made.why == "they took 12 MiB of 11 MiB"


@pytest.mark.parametrize(
    ("refuses", "asked", "kept"),
    [
        (full(above=16, below=2), [16, 8, 4, 2], [4, 8, 16]),
        (full(above=4), [16, 8, 4, 2, 1], [1, 2, 4]),
        (full(above=0), [16, 8, 4, 2, 1], []),
    ],
    ids=["the first that does not fit ends it", "those too large are left out", "none fits"],
)
def test_without_memory_there_are_fewer(
    refuses: Callable[[int], Exception | None], asked: list[int], kept: list[int]
) -> None:
    device = FakeDevice(refuses=refuses)
    made = capture(device, SIZES, budget_bytes=99 * MIB)
    assert (device.asked, sorted(made.replays)) == (asked, kept)
    assert "no memory" in made.why


def test_what_ending_a_capture_raises_does_not_hide_that_memory_was_short() -> None:
    def refuses(size: int) -> Exception | None:
        try:
            try:
                raise torch.OutOfMemoryError("CUDA out of memory")
            except torch.OutOfMemoryError:
                raise RuntimeError("capture was invalidated")  # noqa: B904  as torch does
        except RuntimeError as fault:
            return fault if size == 2 else None

    assert sorted(capture(FakeDevice(refuses=refuses), SIZES, budget_bytes=99 * MIB).replays) == [
        4,
        8,
        16,
    ]


def test_a_step_that_cannot_be_captured_runs_as_it_is() -> None:
    device = FakeDevice(refuses=lambda size: RuntimeError("not permitted") if size == 4 else None)
    made = capture(device, SIZES, budget_bytes=99 * MIB)
    assert made.replays == {}
    assert made.why == "a step of 4 rows cannot be captured: RuntimeError: not permitted"


def decodes(rows: int, beside: bool = False) -> StepInputs:
    """Row r is at position 10 + r, and all it sees is in block 1 + r."""
    columns = Decodes(
        list(range(rows)),
        [10 + row for row in range(rows)],
        [70 + row for row in range(rows)],
        [([0] * 2 + [1 + row] * 3,) for row in range(rows)],
    )
    others = [Row(99, 0, [1, 2], ([9],), samples=True)] if beside else []
    layout = lay_out(Batch(1, columns, others), 4)
    return layout.inputs(lambda *_: 0, lambda packed: packed)


def graphs(*sizes: int) -> DecodeGraphs:
    replays: dict[int, Replay] = {
        size: (lambda size=size: torch.full((size, 3), float(size))) for size in sizes
    }
    return DecodeGraphs(Captured(replays), StaticDecodes(8, [5], "cpu"))


@pytest.mark.parametrize(("rows", "size"), [(1, 2), (2, 2), (3, 8), (8, 8), (9, None)])
def test_a_step_is_padded_to_the_next_size(rows: int, size: int | None) -> None:
    logits = graphs(2, 8).logits(decodes(rows))
    if size is None:
        assert logits is None
    else:
        assert logits is not None
        assert logits.shape == (rows, 3)
        assert logits[0, 0] == size


def test_a_step_that_computes_a_prompt_too_has_no_graph() -> None:
    assert graphs(2, 8).logits(decodes(2, beside=True)) is None


def test_rows_of_padding_have_no_context_and_no_slot() -> None:
    made = graphs(8)
    made.logits(decodes(8))
    made.logits(decodes(3))
    step = made.static.of(8)
    assert step.token_ids[:3].tolist() == [70, 71, 72]
    assert step.positions[:3].tolist() == [10, 11, 12]
    assert step.contexts.tolist() == [11, 12, 13, 0, 0, 0, 0, 0]
    assert step.slots[0].tolist() == [6, 11, 12, -1, -1, -1, -1, -1]
    assert step.block_tables[0][:3, :3].tolist() == [[0, 0, 1], [0, 0, 2], [0, 0, 3]]
    assert step.query_starts.tolist() == list(range(9))


class Replaying:
    """Instead of a graph, the decoder run anew over what lies at the fixed places."""

    takes = 0

    def __init__(self, decoder: Decoder, cache: KvCache, static: StaticDecodes) -> None:
        self.decoder, self.cache, self.static = decoder, cache, static
        self.used, self.replayed = 0, list[int]()

    def used_bytes(self) -> int:
        return self.used

    def capture(self, size: int) -> Replay:
        self.used += self.takes

        def replay() -> torch.Tensor:
            self.replayed.append(size)
            logits: torch.Tensor = self.decoder(self.static.of(size), self.cache)
            return logits

        return replay


PROMPTS_OF_THREE = [[7, 8, 9], [5], list(range(40, 57))]


def on_triton(capturing: Capturing | None, moe: dict[str, Any] | None = None) -> LocalEngine:
    """Two layers on Triton's kernels, in the interpreter."""
    shape = tiny_shape(layers=2, head_dim=16, sliding_window=12, moe=moe)
    decoder = Decoder(shape, "float32", "cpu")
    generator = torch.Generator().manual_seed(1)
    for parameter in decoder.parameters():
        parameter.data.normal_(0, 0.3, generator=generator)
    made = LocalEngine(
        tiny_config(
            model={"shape": shape, "max_model_len": 64},
            scheduler={"max_num_seqs": 3, "max_num_batched_tokens": 32},
            kv={"block_size": 8, "capacity_tokens": 512},
            engine={"in_flight": 2},
        ),
        decoder,
        capturing=capturing,
    )
    decoder.kernels = choose(dict.fromkeys(OPS, "triton"), "cpu", gather_tokens=1024)
    return made


@pytest.mark.skipif(torch.cuda.is_available(), reason="for the interpreter")
@pytest.mark.parametrize("moe", [None, TINY_MOE], ids=["dense", "experts"])
def test_tokens_are_those_without_graphs(moe: dict[str, Any] | None) -> None:
    made: list[Replaying] = []

    def capturing(*what: Any) -> Replaying:
        made.append(Replaying(*what))
        return made[-1]

    words = [greedy(4), Sampling(max_tokens=7, seed=1, top_k=9), greedy(9)]
    plain = on_triton(None, moe).generate(PROMPTS_OF_THREE, words)
    engine = on_triton(capturing, moe)
    graphed = engine.generate(PROMPTS_OF_THREE, words)
    assert [one.tokens for one in graphed] == [one.tokens for one in plain]
    trial, real = made
    assert (trial.cache.num_blocks, trial.replayed) == (1, [])
    assert real.cache is engine.runner.cache
    assert {1, 2, 3} == set(real.replayed)
    assert engine.info.graphs == 3
    assert capturable(engine.runner.decoder)
    assert not engine.runner.cache.data[:, :, 0].any(), "padding wrote to the null block"


def test_what_graphs_took_is_not_the_caches() -> None:
    class Large(Replaying):
        takes = 512 * MIB

    kv = {"capacity_tokens": None, "memory_fraction": 0.01}
    config, phases = tiny_config(kv=kv), list[Loading]()
    before = assemble(config, tiny_decoder(), phases.append)[2]
    after = assemble(config, tiny_decoder(), phases.append, capturing=Large)[2]
    block = before.kv_bytes // before.num_blocks
    assert before.num_blocks - after.num_blocks == pytest.approx(512 * MIB * 0.01 / block, abs=1)
    assert (after.graphs, after.graphs_bytes) == (1, 512 * MIB)
    assert list(dict.fromkeys(one.phase for one in phases)) == ["warmup", "trial", "capture"]


def test_kernels_of_torch_are_not_captured() -> None:
    assert not capturable(tiny_decoder())


@pytest.mark.skipif(torch.cuda.is_available(), reason="for the interpreter")
@pytest.mark.parametrize("moe", [None, TINY_MOE])
def test_experts_by_torch_ask_the_host_and_are_not_captured(moe: dict[str, Any] | None) -> None:
    decoder = Decoder(tiny_shape(moe=moe), "float32", "cpu")
    decoder.compute_by({**dict.fromkeys(OPS, "triton"), "moe": "torch"})
    assert capturable(decoder) == (moe is None)


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_what_a_kernel_is_pointed_at_begins_at_16_bytes(rows: int) -> None:
    """Else it would be compiled anew for each parity of a step."""
    step = decodes(rows, beside=True)
    parts = (step.token_ids, step.positions, step.sample_at, *step.slots, *step.block_tables)
    assert all(part.storage_offset() * part.element_size() % 16 == 0 for part in parts)


def test_the_largest_step_has_room_in_a_buffer() -> None:
    step = Batch.of(1, [Row(id, 3, [7] * 5, ([1, 2, 3],) * 2, samples=True) for id in range(3)])
    layout = lay_out(step, 4)
    assert len(layout.packed) == numbers_of_a_step(3, 15, [3, 3])


@pytest.mark.parametrize("samplings", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("numbers", [5000, 100], ids=["enough", "too few for prompts"])
def test_steps_may_pass_through_two_buffers_by_turns(
    samplings: list[Sampling], numbers: int
) -> None:
    engine = tiny_engine(engine={"in_flight": 2})
    engine.runner.staging = staging = Staging(numbers, "cpu")
    seen: list[int] = []
    following = staging.next
    staging.next = lambda: (seen.append(staging.turn), following())[1]  # type: ignore[method-assign]
    assert [one.tokens for one in engine.generate(PROMPTS, samplings)] == alone(samplings)
    assert seen[:4] == [0, 1, 0, 1]


def test_before_it_is_ready_a_gpu_meets_contexts_of_every_length() -> None:
    engine = tiny_engine(kv={"capacity_tokens": 512})
    layout = ledger(tiny_config(kv={"capacity_tokens": 512}), weights_bytes=0).layout
    batches = mixed_batches(layout)
    contexts = [batch.decodes.starts[0] + 1 for batch in batches]
    assert contexts == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    for batch in batches:
        for row in batch.rows:
            engine.runner.add(row.request_id, [0] * (row.start + len(row.tokens)), greedy(1))
        assert not engine.runner.run(batch).failed
