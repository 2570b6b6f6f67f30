"""Money: the price of the devices, spread over what they put out."""

from dataclasses import dataclass

from servekit.config.schema import Config
from servekit.planner.prediction.prediction import Prediction


@dataclass(frozen=True, slots=True)
class Cost:
    """US dollars. None where hardware.usd_per_hour is null, or where nothing is put out."""

    usd_per_hour: float | None
    """of all devices"""
    usd_per_million_output_tokens: float | None
    """at full load: usd_per_hour / (output_tokens_per_s x 3600) x 10^6"""
    at_goodput: float | None
    """the same at the highest rate within the targets"""


def cost(config: Config, prediction: Prediction | None) -> Cost:
    """`prediction` is None for a deployment that does not fit: it still has a price an hour."""
    price = config.hardware.usd_per_hour
    if price is None:
        return Cost(None, None, None)
    hourly = price * config.parallelism.devices
    if prediction is None:
        return Cost(hourly, None, None)
    tokens_per_request = (
        prediction.output_tokens_per_s / prediction.capacity_per_s
        if prediction.capacity_per_s
        else 0.0
    )
    return Cost(
        usd_per_hour=hourly,
        usd_per_million_output_tokens=per_million(hourly, prediction.output_tokens_per_s),
        at_goodput=per_million(hourly, prediction.goodput_per_s * tokens_per_request),
    )


def per_million(usd_per_hour: float, tokens_per_s: float) -> float | None:
    return usd_per_hour / (tokens_per_s * 3600) * 1e6 if tokens_per_s else None
