"""The engine process: loads the weights, then runs the loop until it is told to stop.

It ends with its parent, whatever ends that one, and by nothing else: an interrupt at a terminal or
a signal to a whole service reaches every process, and the parent must be able to drain first.
"""

import ctypes
import logging
import os
import pickle
import select
import signal
import sys
from typing import Any

import torch

from servekit.engine.assemble import assemble, device_of, load
from servekit.engine.beside import Beside
from servekit.engine.channel import Launch, Mailbox
from servekit.engine.compile_cache import compile_cache
from servekit.engine.core import EngineCore
from servekit.engine.guard import describe
from servekit.engine.heartbeat import BEAT_S
from servekit.engine.messages import Beat, Failed, Loading, Ready
from servekit.engine.runner import Runner
from servekit.engine.step_log import step_log
from servekit.errors import EngineError, ServekitError
from servekit.scheduler.scheduler import Scheduler
from servekit.telemetry.discreet import log_to_stderr

logger = logging.getLogger(__name__)

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Reads a pickled Launch from standard input; exits 0 after Stop, 1 after Failed."""
    launch: Launch = pickle.load(sys.stdin.buffer)
    end_with(launch.parent_pid)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    log_to_stderr(
        "%(asctime)s engine %(levelname)s %(message)s",
        log_prompts=launch.config.telemetry.log_prompts,
    )
    mailbox = Mailbox(launch.runtime_dir)
    try:
        serve(launch, mailbox)
    except Exception as fault:
        mailbox.send(failure(fault))
        sys.exit(1)
    finally:
        mailbox.close()


def end_with(parent_pid: int) -> None:
    """Asks the kernel to kill this process when its parent ends (Linux), or ends it now."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # it may have ended before the kernel was asked
    if os.getppid() != parent_pid:
        sys.exit(1)


def serve(launch: Launch, mailbox: Mailbox) -> None:
    config = launch.config
    if config.hardware.threads is not None:
        torch.set_num_threads(config.hardware.threads)
    log = step_log(config)
    device: Beside[Any] = Beside()
    kernels = compile_cache(on_gpu=device_of(config) != "cpu")

    def begin() -> tuple[Scheduler, Runner, Ready]:
        decoder, load_s = load(config, launch.path, mailbox.send)
        if kernels is not None:
            kernels.preload(lambda done, total: mailbox.send(Loading("kernels", done, total)))
        return assemble(config, decoder, mailbox.send, load_s=load_s)

    device.start(begin)
    while not device.done:
        select.select([device.fileno()], [], [], BEAT_S)
        mailbox.send(Beat(0.0))
    scheduler, runner, measured = device.result()
    if kernels is not None:
        kernels.ready()
    mailbox.send(measured)
    core = EngineCore(
        scheduler,
        runner,
        mailbox.receive,
        mailbox.send,
        device=device,
        in_flight=config.engine.in_flight,
        log=log,
        kernel_compiles=int if kernels is None else lambda: kernels.late,
    )
    try:
        core.run()
    finally:
        if log is not None:
            log.close()


def failure(fault: Exception) -> Failed:
    if isinstance(fault, ServekitError):
        logger.error("%s", fault.message)
        return Failed(fault.message, fault.code)
    logger.error("the engine failed", exc_info=fault)
    return Failed(describe(fault), EngineError.code)


if __name__ == "__main__":
    main()
