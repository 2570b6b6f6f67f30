"""A plan as JSON: fixed keys for scripts, and beside every number its standing and its band.

What every key means is in docs/plan-json.md; a test holds the two together.
"""

from math import hypot, isfinite
from typing import Any

from servekit.planner.outcome import Outcome
from servekit.planner.prediction.prediction import Percentiles, Prediction, Sampled
from servekit.planner.slo import SloLine
from servekit.spec.memory import Ledger
from servekit.spec.model import GIB, parameters

PERCENTILES = ("p50", "p95", "p99")
TIMES = ("ttft_ms", "tpot_ms", "itl_ms")
RATES = ("output_tokens_per_s", "saturation_concurrency", "goodput_per_s", "capacity_per_s")


def outcome_json(outcome: Outcome) -> dict[str, Any]:
    """Sizes in GiB (2**30) of one device, times in ms; null where there is no such number."""
    config, model = outcome.config, outcome.config.model
    counts = parameters(model.shape)
    return {
        "verdict": outcome.verdict,
        "problem": outcome.problem,
        "name": config.name,
        "model": {
            "name": model.name,
            "parameters": counts.total,
            "active_parameters": counts.active,
            "dtype": model.dtype,
            "weights": config.quantization.weights,
            "max_model_len": model.max_model_len,
        },
        "hardware": {
            "name": config.hardware.name,
            "kind": config.hardware.kind,
            "devices": config.parallelism.devices,
        },
        "memory": memory_json(outcome.ledger),
        "kv": kv_json(outcome),
        "latency": latency_json(outcome.prediction),
        "cost": cost_json(outcome),
        "slo": [slo_json(line) for line in outcome.slo],
    }


def memory_json(book: Ledger) -> dict[str, Any]:
    """The components and what is unused make the total; `unused_gib` is negative by what lacks."""
    parts = book.components
    return {
        "total_gib": book.total_bytes / GIB,
        **{f"{name}_gib": part.bytes / GIB for name, part in parts.items()},
        "unused_gib": book.unused_bytes / GIB,
        "verdict": book.verdict,
        "stage": book.stage,
        "standing": {name: part.standing for name, part in parts.items()},
        "bands": {name: part.band_bytes / GIB for name, part in parts.items()},
        "notes": {name: part.note for name, part in parts.items()},
    }


def kv_json(outcome: Outcome) -> dict[str, Any]:
    """The cache of one copy of the model; how many blocks it has is as sure as its bytes are."""
    kv, pool = outcome.kv, outcome.ledger.kv
    sizes = {
        "num_blocks": kv.num_blocks,
        "capacity_tokens": kv.capacity_tokens,
        "max_concurrency": outcome.max_concurrency,
    }
    exact = ("bytes_per_token", "block_size", "bytes_per_block", "blocks_per_request")
    doubt = pool.band_bytes / pool.bytes if pool.bytes > 0 else 0.0
    return {
        "dtype": outcome.config.kv.dtype,
        "bytes_per_token": kv.bytes_per_token,
        "block_size": kv.block_size,
        "bytes_per_block": kv.bytes_per_block,
        **sizes,
        "blocks_per_request": kv.blocks_for(outcome.config.model.max_model_len),
        "concurrency_by_tokens": {
            str(length): count for length, count in outcome.concurrency.items()
        },
        "rule": outcome.ledger.rule,
        "standing": {**dict.fromkeys(exact, "exact"), **dict.fromkeys(sizes, pool.standing)},
        "bands": {name: doubt * size for name, size in sizes.items()},
    }


def latency_json(prediction: Prediction | None) -> dict[str, Any]:
    """Nulls in the same places where the memory does not fit: nothing is served then."""
    values = {name: percentiles_json(getattr(prediction, name, None)) for name in TIMES} | {
        name: finite(getattr(prediction, name, None)) for name in RATES
    }
    standing = prediction.standing if prediction is not None else None
    return {
        **values,
        "requests_per_s": finite(getattr(prediction, "requests_per_s", None)),
        "running": finite(getattr(prediction, "running", None)),
        "utilization": finite(getattr(prediction, "utilization", None)),
        "stable": prediction.stable if prediction is not None else None,
        "bounds": {
            name: finite(getattr(prediction.bounds, name)) if prediction is not None else None
            for name in ("ttft_ms", "tpot_ms")
        },
        "method": prediction.method if prediction is not None else None,
        "simulated": simulated_json(prediction.sampled if prediction is not None else None),
        "standing": dict.fromkeys(values, standing),
        "bands": {name: scaled(value, prediction) for name, value in values.items()}
        | {name: time_bands(name, prediction) for name in TIMES},
    }


def simulated_json(sampled: Sampled | None) -> dict[str, Any] | None:
    """The run that times are from; null where they are closed forms."""
    if sampled is None:
        return None
    return {
        "requests": sampled.requests,
        "simulated_s": sampled.seconds,
        "cut_requests": sampled.cut,
        "chance": {name: percentiles_json(getattr(sampled, name)) for name in TIMES},
    }


def time_bands(name: str, prediction: Prediction | None) -> dict[str, float | None]:
    """What the model errs by and, of a simulated time, what chance does, as squares."""
    values = percentiles_json(getattr(prediction, name, None))
    bands: dict[str, float | None] = scaled(values, prediction)
    if prediction is None or prediction.sampled is None:
        return bands
    chance = percentiles_json(getattr(prediction.sampled, name))
    return {
        key: None if band is None else hypot(band, chance[key] or 0.0)
        for key, band in bands.items()
    }


def percentiles_json(times: Percentiles | None) -> dict[str, float | None]:
    return {name: finite(getattr(times, name, None)) for name in PERCENTILES}


def cost_json(outcome: Outcome) -> dict[str, Any]:
    """The price of the devices is what the configuration says; what a token costs is modelled."""
    values = {
        "usd_per_hour": finite(outcome.cost.usd_per_hour),
        "usd_per_million_output_tokens": finite(outcome.cost.usd_per_million_output_tokens),
        "at_goodput": finite(outcome.cost.at_goodput),
    }
    modelled = outcome.prediction.standing if outcome.prediction is not None else None
    bands = {name: scaled(value, outcome.prediction) for name, value in values.items()}
    return {
        **values,
        "standing": {**dict.fromkeys(values, modelled), "usd_per_hour": "exact"},
        "bands": {**bands, "usd_per_hour": 0.0},
    }


def scaled(value: Any, prediction: Prediction | None) -> Any:
    """The half-width of the interval around a number, or around each of a mapping."""
    if isinstance(value, dict):
        return {name: scaled(inner, prediction) for name, inner in value.items()}
    return None if value is None or prediction is None else value * prediction.band


def slo_json(line: SloLine) -> dict[str, Any]:
    return {
        "name": line.name,
        "target": line.target,
        "predicted": finite(line.predicted),
        "band": finite(line.band),
        "verdict": line.verdict,
        "why": line.why,
    }


def finite(number: float | None) -> float | None:
    """JSON has no infinity; a queue that grows without end has no waiting time."""
    return number if number is not None and isfinite(number) else None
