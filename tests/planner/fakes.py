"""Step models whose times can be added up by hand, and layouts around them."""

from collections.abc import Sequence
from dataclasses import dataclass

from servekit.planner.prediction.curves import curves
from servekit.planner.prediction.prediction import Bounds, Latencies, Percentiles, Prediction
from servekit.planner.prediction.steady import Replica
from servekit.planner.prediction.traffic import Traffic
from servekit.spec.groups import LayerGroup
from servekit.spec.kv import KvLayout

GPU_RECIPES = [
    "chat_llama8b",
    "rag_qwen3_8b",
    "batch_llama8b",
    "chat_llama70b_h100",
    "chat_deepseek_v3_h200",
    "code_qwen3_30b_a3b",
]
"""Those that are planned for a card, with targets."""


@dataclass(frozen=True, slots=True)
class FakeStep:
    """`base` a step, `request` for each decoding one, `token` for each of a prompt, and `cached`
    for each token of context that either looks at; seconds.
    """

    base: float = 0.010
    request: float = 0.0001
    token: float = 0.00001
    cached: float = 0.0
    tokens_per_step: float = 1.0
    pipeline: int = 1
    band: float = 0.15
    standing: str = "modelled"

    def seconds(
        self, decodes: float, context: float, prefill: Sequence[tuple[float, float]] = ()
    ) -> float:
        seen = decodes * context + sum(new * (past + new / 2) for new, past in prefill)
        new = sum(new for new, _ in prefill)
        return self.base + self.request * decodes + self.token * new + self.cached * seen

    def parts(self, decodes: float, context: float) -> dict[str, float]:
        return {
            "weights": self.base,
            "kv": self.cached * decodes * context,
            "compute": self.request * decodes,
            "scores": 0.0,
            "draft": 0.0,
        }


def fake_traffic(**changes: float) -> Traffic:
    numbers = {
        "rate": 1.0,
        "arrival_cv": 1.0,
        "prompt": 100.0,
        "prompt_cv": 0.0,
        "output": 51.0,
        "output_cv": 0.0,
        "prefix": 0.0,
        "limit": 4096,
    }
    return Traffic(**{**numbers, **changes})  # type: ignore[arg-type]


def fake_replica(
    step: FakeStep | None = None,
    *,
    seats: int = 16,
    budget: int = 256,
    static: bool = False,
    row: int = 1,
    **traffic: float,
) -> Replica:
    step, load = step or FakeStep(), fake_traffic(**traffic)
    known = curves(step, load, seats=seats, budget=budget, row=row)  # type: ignore[arg-type]
    return Replica(
        step=step,  # type: ignore[arg-type]
        traffic=load,
        curves=known,
        seats=seats,
        heavy=1.0,
        budget=budget,
        row=row,
        static=static,
    )


def fake_layout(num_blocks: int = 1000, block_size: int = 16, max_model_len: int = 256) -> KvLayout:
    return KvLayout(
        block_size=block_size,
        bytes_per_block=1024,
        num_blocks=num_blocks,
        groups=(LayerGroup(kind="full", layers=3, window=None),),
        max_model_len=max_model_len,
    )


def fake_prediction(**changes: object) -> Prediction:
    same = Percentiles(10.0, 20.0, 30.0)
    numbers = {
        "ttft_ms": same,
        "tpot_ms": same,
        "itl_ms": same,
        "at_slo": Latencies(ttft_ms=100.0, tpot_ms=20.0),
        "bounds": Bounds(ttft_ms=50.0, tpot_ms=5.0, prompt_tokens=200.0, new_tokens=150.0),
        "output_tokens_per_s": 1000.0,
        "capacity_per_s": 20.0,
        "goodput_per_s": 10.0,
        "saturation_concurrency": 6,
        "seats": 8,
        "stable": True,
        "requests_per_s": 1.0,
        "running": 2.0,
        "steps_per_request": 50.0,
        "blocks": 1000,
        "utilization": 0.1,
        "band": 0.1,
        "standing": "modelled",
        "method": "made up",
    }
    return Prediction(**{**numbers, **changes})  # type: ignore[arg-type]
