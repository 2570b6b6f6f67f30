"""The environment of the engine process."""

import os

from servekit.config.schema import Config


def environment(config: Config) -> dict[str, str]:
    """What must be set before torch is imported; what the user has set stays.

    OpenMP threads that wait for each other spin, by default for about a millisecond. On processors
    that the server, or anything else, wants too, they spin away what the thread they wait for would
    need. Some microseconds are as good on an idle machine and far better on a busy one; sleeping at
    once costs more than the waiting (benchmarks/results/openmp_spin.md).
    """
    ours: dict[str, str] = {}
    if config.hardware.threads is not None:
        ours["OMP_NUM_THREADS"] = str(config.hardware.threads)
        ours["GOMP_SPINCOUNT"] = "5000"
    return {**ours, **os.environ}
