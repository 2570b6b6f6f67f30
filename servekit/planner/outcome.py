"""What one configuration comes to: memory, latency, cost, and the verdict on all of them."""

from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

from servekit.config.schema import Config, QuantizationConfig
from servekit.config.shape import Shape
from servekit.config.targets import SpeculativeConfig
from servekit.planner.capability import refusals
from servekit.planner.catalogue.files import find, weights_on_disk
from servekit.planner.cost import Cost, cost
from servekit.planner.prediction.predict import predict
from servekit.planner.prediction.prediction import Latencies, Prediction
from servekit.planner.prediction.simulated import simulated
from servekit.planner.prediction.traffic import moments_of
from servekit.planner.slo import SloLine, judge
from servekit.spec.kv import KvLayout
from servekit.spec.memory import Ledger, ledger

Verdict = Literal["ok", "misses_slo", "impossible", "does_not_fit", "unsure"]

REFERENCE_LENGTHS = (2048, 8192)
"""Request lengths, in tokens, that concurrency is stated for beside the model's own."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """`ledger` is that of the worst rank; `prediction` is None where the memory does not fit.

    `refusals` are what the hardware cannot compute whatever its memory, a sentence each.
    """

    config: Config
    ledger: Ledger
    prediction: Prediction | None
    cost: Cost
    slo: tuple[SloLine, ...]
    refusals: tuple[str, ...]

    @property
    def verdict(self) -> Verdict:
        """The gravest of all that was found; no change of traffic mends an earlier one."""
        lines = {line.verdict for line in self.slo}
        if self.ledger.verdict == "does_not_fit":
            return "does_not_fit"
        if self.refusals or "impossible" in lines:
            return "impossible"
        if "misses" in lines:
            return "misses_slo"
        return "unsure" if self.ledger.verdict == "unsure" or "unsure" in lines else "ok"

    @property
    def broken(self) -> tuple[SloLine, ...]:
        """Targets that are not met, the impossible ones first."""
        wrong = [line for line in self.slo if line.verdict in ("impossible", "misses")]
        return tuple(sorted(wrong, key=lambda line: line.verdict != "impossible"))

    @property
    def problem(self) -> str | None:
        """Why it is refused, in one sentence; None for what is ok or unsure."""
        if self.ledger.verdict == "does_not_fit":
            return self.ledger.problem
        if self.refusals:
            return self.refusals[0]
        return self.broken[0].why if self.broken else None

    @property
    def exit_code(self) -> int:
        """2 for what `serve` refuses; with `slo.enforce=warn` a missed target is no refusal."""
        if self.verdict in ("ok", "unsure"):
            return 0
        bound = self.config.slo.enforce == "refuse"
        return 2 if self.verdict == "does_not_fit" or self.refusals or bound else 0

    @property
    def kv(self) -> KvLayout:
        return self.ledger.layout

    @property
    def max_concurrency(self) -> float:
        """Requests of `model.max_model_len` tokens that the cache holds at once."""
        return self.kv.max_concurrency(self.config.model.max_model_len)

    @property
    def concurrency(self) -> dict[int, float]:
        """The same by request length, for the usual lengths up to the model's own."""
        longest = self.config.model.max_model_len
        lengths = [*(length for length in REFERENCE_LENGTHS if length < longest), longest]
        return {length: self.kv.max_concurrency(length) for length in lengths}


@dataclass(frozen=True, slots=True)
class WeightFiles:
    """Everything that weights of these files depend on; `config` has it all, and more."""

    path: Path
    changed_ns: int
    dtype: str
    quantization: QuantizationConfig
    speculative: SpeculativeConfig
    shape: Shape
    config: Config = field(compare=False)


@lru_cache(maxsize=64)
def stored_bytes(files: WeightFiles) -> int | None:
    return weights_on_disk(files.config)


def book_of(config: Config) -> Ledger:
    """With weights as the files have them where these are on this machine.

    A search asks for hundreds of configurations, and reading headers takes as long as ten plans, so
    files are read once as long as they do not change.
    """
    model, path = config.model, find(config.model.source)
    if path is None:
        return ledger(config)
    files = WeightFiles(
        path=path,
        changed_ns=path.stat().st_mtime_ns,
        dtype=model.dtype,
        quantization=config.quantization,
        speculative=config.speculative,
        shape=model.shape,
        config=config,
    )
    return ledger(config, stored_weights_bytes=stored_bytes(files))


@dataclass(frozen=True, slots=True)
class Correction:
    """How much longer simulated times of a deployment were than its closed forms said: what those
    of one like it are multiplied by. Only its order of trying hangs on it, no verdict.
    """

    ttft: float = 1.0
    tpot: float = 1.0

    def of(self, at_slo: Latencies) -> Latencies:
        ttft, tpot = at_slo.ttft_ms, at_slo.tpot_ms
        return Latencies(ttft and ttft * self.ttft, tpot and tpot * self.tpot)


AS_IT_IS = Correction()


def assess(
    config: Config, book: Ledger | None = None, correction: Correction = AS_IT_IS
) -> Outcome:
    """In closed forms: what does not fit is an outcome that says so. `book` saves making it.

    Of a cache that only the better end of the band gives any block there is nothing to predict.
    Raises ConfigError where the trace of the workload cannot be read.
    """
    moments_of(config.workload)
    book = book or book_of(config)
    holds_any = book.layout.num_blocks >= book.layout.blocks_for(1)
    prediction = predict(config, book.layout) if book.fits and holds_any else None
    if prediction is not None and correction is not AS_IT_IS:
        prediction = replace(prediction, at_slo=correction.of(prediction.at_slo))
    price = cost(config, prediction)
    return Outcome(
        config=config,
        ledger=book,
        prediction=prediction,
        cost=price,
        slo=judge(config, prediction, price) if prediction is not None else (),
        refusals=tuple(refusal.text for refusal in refusals(config)),
    )


def judged(outcome: Outcome) -> Outcome:
    """With times of a simulated run, and the verdict on those; up to some tenths of a second."""
    if outcome.prediction is None or outcome.refusals:
        return outcome
    prediction = simulated(outcome.config, outcome.prediction)
    lines = judge(outcome.config, prediction, outcome.cost)
    return replace(outcome, prediction=prediction, slo=lines)
