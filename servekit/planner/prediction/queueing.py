"""Queues and log-normal lengths in closed form: numbers in, numbers out.

Waits are in the unit of the service time given. With sharing servers whose speed depends on the
load, as a serving engine's does, they bound and rank; they do not replace a simulation.
"""

import math
from statistics import NormalDist

_NORMAL = NormalDist()
_HERMITE = ((-math.sqrt(3), 1 / 6), (0.0, 2 / 3), (math.sqrt(3), 1 / 6))
"""Points and weights of the three-point Gauss-Hermite rule for a standard normal."""
ROOT_HALVINGS = 24
"""Of the interval in which a share of arrivals is sought."""


def normal_quantile(probability: float) -> float:
    """Of the standard normal; `probability` is inside 0 to 1."""
    return _NORMAL.inv_cdf(probability)


def lognormal_quantile(mean: float, cv: float, probability: float) -> float:
    """Of the log-normal with that mean and that spread over its mean."""
    sigma = math.sqrt(math.log1p(cv * cv))
    return mean * math.exp(sigma * normal_quantile(probability) - sigma * sigma / 2)


def lognormal_points(mean: float, cv: float) -> tuple[tuple[float, float], ...]:
    """(value, weight) of a few points that stand for the whole log-normal; their mean is exact."""
    if cv == 0:
        return ((mean, 1.0),)
    sigma = math.sqrt(math.log1p(cv * cv))
    values = [math.exp(sigma * z) for z, _ in _HERMITE]
    scale = mean / sum(v * w for v, (_, w) in zip(values, _HERMITE, strict=True))
    return tuple((v * scale, w) for v, (_, w) in zip(values, _HERMITE, strict=True))


def erlang_c(servers: int, load: float) -> float:
    """Probability that an arrival finds all servers busy; `load` is arrival rate x service time.

    Poisson arrivals. By the recursion for Erlang's loss formula. At and above full load: 1.
    """
    if load >= servers:
        return 1.0
    if load <= 0 or servers > load + 12 * math.sqrt(load) + 24:
        return 0.0  # less than 1e-12
    blocked = 1.0
    for busy in range(1, servers + 1):
        blocked = load * blocked / (busy + load * blocked)
    return blocked / (1 - load / servers * (1 - blocked))


def transform(rate: float, arrival_cv: float) -> float:
    """Probability that the next arrival comes within an exponential time that sees `rate` arrivals
    on average: the Laplace transform of gaps, which are gamma distributed with that spread.
    """
    if rate <= 0:
        return 0.0
    if arrival_cv == 0:
        return math.exp(-1 / rate)
    square = arrival_cv**2
    return float((1 + square / rate) ** (-1 / square))


def followers(mean: float, arrival_cv: float) -> float:
    """Arrivals that follow one of them within a time in which `mean` come on average.

    The renewal function, of a time that is exponential: `mean` itself for Poisson arrivals; for
    bursts at last (cv^2 - 1) / 2 more, since who arrives seldom arrives alone.
    """
    found = transform(mean, arrival_cv)
    return found / (1 - found)


def who_wait(utilisation: float, arrival_cv: float) -> float:
    """Share of arrivals that find a single server busy.

    The root of `x = transform(utilisation / (1 - x))`: exact for exponential service (GI/M/1), and
    `utilisation` itself for Poisson arrivals, whatever the service.
    """
    if utilisation >= 1:
        return 1.0
    if arrival_cv == 1 or utilisation <= 0:
        return max(0.0, utilisation)
    low, high = 0.0, 1.0
    for _ in range(ROOT_HALVINGS):
        middle = (low + high) / 2
        if transform(utilisation / (1 - middle), arrival_cv) > middle:
            low = middle
        else:
            high = middle
    return low


def delay_of_one(waiting: float, service: float, *, arrival_cv: float, service_cv: float) -> float:
    """Mean wait of those who wait before a single server; the share `waiting` of arrivals do.

    Their product is exact for Poisson arrivals (Pollaczek and Khinchine) and for exponential
    service (GI/M/1), and Kingman's wait in heavy traffic. Infinite where all wait.
    """
    if waiting >= 1:
        return math.inf
    spread = (arrival_cv**2 + service_cv**2) / (arrival_cv**2 + 1)
    return spread * service / (1 - waiting)


def delay_of_many(
    servers: int, load: float, service: float, *, arrival_cv: float, service_cv: float
) -> float:
    """Mean wait of those who wait before several servers; a share `erlang_c` of arrivals do.

    Their product is Allen and Cunneen's wait: exact for Poisson arrivals and exponential service,
    an approximation for others. Infinite from full load on.
    """
    if load >= servers:
        return math.inf
    return (arrival_cv**2 + service_cv**2) / 2 * service / (servers - load)


def wait_quantile(delay: float, waiting: float, probability: float) -> float:
    """Quantile of a wait that is zero but for a share `waiting` of arrivals, whose mean is `delay`.

    The exponential tail is the heavy-traffic limit; exact for exponential service.
    """
    if waiting <= 1 - probability:
        return 0.0
    return delay * math.log(waiting / (1 - probability))


def residual_quantile(period: float, busy: float, probability: float) -> float:
    """Quantile of what is left of a period of fixed length that a share `busy` of arrivals meets
    at a time of no preference: uniform.
    """
    idle = 1 - busy
    return 0.0 if probability <= idle else period * (probability - idle) / busy
