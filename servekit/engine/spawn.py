"""Starting the engine's process, with what must be set before it imports torch."""

import os
import pickle
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import servekit
from servekit.config.schema import Config
from servekit.engine.channel import Launch

CHILD = "import sys; sys.path.append(sys.argv[1]); from servekit.engine.worker import main; main()"


def spawn(launch: Launch) -> subprocess.Popen[bytes]:
    """The process of `worker.main`, told what to load."""
    root = str(Path(servekit.__file__).parents[1])
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", CHILD, root],
        stdin=subprocess.PIPE,
        env=_environment(launch.config),
    )
    assert process.stdin is not None, "it was asked for"
    # a process that has ended already is for the watch to report
    with suppress(BrokenPipeError), process.stdin:
        pickle.dump(launch, process.stdin)
    return process


def _environment(config: Config) -> dict[str, str]:
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
