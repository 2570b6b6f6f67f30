"""Each target of `slo` against what is predicted: met, missed, impossible, or inside the band."""

from dataclasses import dataclass
from math import hypot
from typing import Literal

from servekit.config.schema import Config
from servekit.planner.cost import Cost
from servekit.planner.prediction.prediction import Prediction
from servekit.spec.latency import roofline

Verdict = Literal["meets", "misses", "impossible", "unsure"]


@dataclass(frozen=True, slots=True)
class SloLine:
    """`band` is the absolute half-width around `predicted`, in its unit: what the model errs by,
    and what chance does to simulated times, as squares. Both are None where the queue grows without
    end, where nothing runs, or where there is no price.
    """

    name: str
    target: float
    predicted: float | None
    band: float | None
    verdict: Verdict
    why: str


def judge(config: Config, prediction: Prediction, cost: Cost) -> tuple[SloLine, ...]:
    """One line for each target that is set, in the order of the configuration."""
    slo, lines = config.slo, []
    if slo.ttft_ms is not None:
        lines.append(_latency("ttft_ms", slo.ttft_ms, config, prediction))
    if slo.tpot_ms is not None:
        lines.append(_latency("tpot_ms", slo.tpot_ms, config, prediction))
    if slo.goodput_per_s is not None:
        hopeless = [line.name for line in lines if line.verdict == "impossible"]
        lines.append(_goodput(slo.goodput_per_s, prediction, hopeless))
    if slo.usd_per_million_output_tokens is not None:
        lines.append(_cost(slo.usd_per_million_output_tokens, prediction, cost))
    return tuple(lines)


def _latency(name: str, target: float, config: Config, prediction: Prediction) -> SloLine:
    bound: float = getattr(prediction.bounds, name)
    predicted: float | None = getattr(prediction.at_slo, name)
    chance = getattr(prediction.sampled.at_slo, name) if prediction.sampled is not None else None
    band = None if predicted is None else hypot(prediction.band * predicted, chance or 0.0)
    if bound > target:
        why = f"{PHYSICS[name](config, prediction)} on ideal hardware, more than {target:g} ms"
        return SloLine(name, target, predicted, band, verdict="impossible", why=why)
    if predicted is None or band is None:
        return SloLine(name, target, None, None, *_endless(config, prediction))
    verdict = _below(predicted, band, target)
    share = f"p{config.slo.percentile:g}"
    why = f"{share} is {predicted:.1f} ms, give or take {band:.1f}, of {target:g} ms"
    return SloLine(name, target, predicted, band, verdict, why)


def _endless(config: Config, prediction: Prediction) -> tuple[Verdict, str]:
    """Of a queue that grows without end; unsure if it would not at the better end of the band."""
    if prediction.utilization is None:
        return "misses", "the KV cache holds no request: nothing is served"
    rate = f"{prediction.requests_per_s:.4g}/s"
    if prediction.sampled is not None:
        lasted = f"{prediction.sampled.seconds:.0f} s"
        return "unsure", f"at {rate} the queue only grew in a simulation of {lasted}"
    why = (
        f"requests come at {rate} and {prediction.capacity_per_s:.3g}/s can be served: the queue "
        "grows without end"
    )
    return "unsure" if prediction.utilization < 1 + prediction.band else "misses", why


def _goodput(target: float, prediction: Prediction, hopeless: list[str]) -> SloLine:
    name, predicted = "goodput_per_s", prediction.goodput_per_s
    band = prediction.band * predicted
    if hopeless:
        why = f"{' and '.join(hopeless)} cannot be met at any rate"
        return SloLine(name, target, predicted, band, verdict="impossible", why=why)
    verdict = _below(-predicted, band, -target)
    why = f"{predicted:.3g}/s within the targets, give or take {band:.3g}, of {target:g}/s"
    return SloLine(name, target, predicted, band, verdict, why)


def _cost(target: float, prediction: Prediction, cost: Cost) -> SloLine:
    name, predicted = "usd_per_million_output_tokens", cost.usd_per_million_output_tokens
    if cost.usd_per_hour is None:
        why = "hardware.usd_per_hour is null: give the price of a device"
        return SloLine(name, target, None, None, verdict="unsure", why=why)
    if predicted is None:
        why = "the KV cache holds no request: nothing is put out"
        return SloLine(name, target, None, None, verdict="misses", why=why)
    band = prediction.band * predicted
    verdict = _below(predicted, band, target)
    why = f"{predicted:.3g} USD at full load, give or take {band:.2g}, of {target:g} USD"
    return SloLine(name, target, predicted, band, verdict, why)


def _below(predicted: float, band: float, target: float) -> Verdict:
    if predicted - band > target:
        return "misses"
    return "meets" if predicted + band <= target else "unsure"


def _prompt_physics(config: Config, prediction: Prediction) -> str:
    """What the bound of the first token is made of."""
    bounds, devices = prediction.bounds, config.parallelism.tensor * config.parallelism.pipeline
    many = f"{devices} x " if devices > 1 else ""
    return (
        f"computing {bounds.new_tokens:.0f} tokens of a p{config.slo.percentile:g} prompt at the "
        f"full rate of {many}{config.hardware.name} takes {bounds.ttft_ms:.4g} ms"
    )


def _token_physics(config: Config, prediction: Prediction) -> str:
    """What the bound of a further token is made of."""
    roof, bandwidth = roofline(config), config.hardware.bandwidth_gb_s
    parts = roof.parts(1.0, prediction.bounds.prompt_tokens)
    reads, computes = parts["weights"] + parts["kv"], parts["compute"] + parts["scores"]
    if computes > reads:
        what = f"computing a step of one request at the full rate of {config.hardware.name}"
    else:
        each = " on each device" if config.parallelism.tensor > 1 else ""
        what = (
            f"reading {parts['weights'] * bandwidth:.2f} GB of weights and "
            f"{parts['kv'] * bandwidth:.2f} GB of keys and values{each} at {bandwidth:g} GB/s"
        )
    if parts["draft"]:
        what += f", after {parts['draft'] * 1000:.3g} ms of guessing,"
    if roof.tokens_per_step > 1:
        what += f" for {roof.tokens_per_step:.2f} tokens"
    return f"{what} takes {prediction.bounds.tpot_ms:.4g} ms a token"


PHYSICS = {"ttft_ms": _prompt_physics, "tpot_ms": _token_physics}
