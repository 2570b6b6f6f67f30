"""A whole server process over a scripted engine, for tests of its life: `launch_child.py MODE`."""

import asyncio
import json
import logging
import sys
import time
from pathlib import Path

from servekit.engine.messages import Loading, Ready, Sampling
from servekit.errors import EngineDied, ServekitError, SourceError
from servekit.planner.plan import plan
from servekit.server import launch
from servekit.telemetry.discreet import log_to_stderr
from tests.conftest import tiny_config
from tests.server.conftest import EOS, ByteTokenizer, FakeEngine, says

MODE = sys.argv[1]


def log_everything(line: str, *, log_prompts: bool) -> None:
    log_to_stderr(line, log_prompts=log_prompts)
    logging.getLogger().setLevel(logging.DEBUG)


def breaks(prompt: list[int], sampling: Sampling) -> list[int]:
    """Fails on some prompts, as whoever quotes what it failed on; on one also in the loop."""
    text = bytes(token for token in prompt if token < 256).decode()
    if "break" in text or "raise" in text:
        if "raise" in text:
            asyncio.get_running_loop().call_soon(fail, text)
        try:
            int(text)
        except ValueError as error:
            start = max(text.find("break"), text.find("raise"))
            raise ValueError(f"cannot take {text[start:]}") from error
    return [*b"fine", EOS]


def fail(text: str) -> None:
    raise RuntimeError(f"nobody caught this: {text}")


class ChildEngine(FakeEngine):
    """Loads for a moment, then says little for long; in mode `dies` its process then ends."""

    def __init__(self, config: object, path: Path) -> None:
        script, step_s = SCRIPTS.get(MODE, (says("x" * 60), 0.02))
        super().__init__(state="loading", script=script, step_s=step_s)
        self.progress = Loading("load", 1, 2)
        self.error: ServekitError | None = None
        self.process = None

    def start(self) -> None:
        if MODE == "dies":
            asyncio.get_running_loop().call_later(1.0, self.die)

    def die(self) -> None:
        self.error, self.state = EngineDied("killed"), "dead"

    async def wait_ready(self) -> Ready:
        await asyncio.sleep(0.3)
        self.state = "ready"
        assert self.info is not None
        return self.info

    def learn(self, vocabulary: object) -> None:
        """It compiles nothing."""

    def kill(self) -> None:
        """There is no process."""

    async def stop(self) -> None:
        sys.stderr.write("engine stopped\n")


SCRIPTS = {"breaks": (breaks, 0.02), "short": (says("Hello"), 0.0)}


def fetch(source: str, sha256: object, progress: launch.Callable[[str, int, int], None]) -> Path:
    if MODE == "fails":
        raise SourceError("the index has no such package; check model.source")
    while MODE == "slow":
        progress("download", 1, 100)
        time.sleep(0.02)
    return Path("/nowhere")


launch.EngineClient = ChildEngine  # type: ignore[misc, assignment]
launch.fetch = fetch
launch.load_tokenizer = lambda path, template: ByteTokenizer()  # type: ignore[assignment, return-value]

if __name__ == "__main__":
    port, drain_s = int(sys.argv[2]), float(sys.argv[3])
    groups = json.loads(sys.argv[4])
    groups["server"] = {**groups.get("server", {}), "port": port, "drain_s": drain_s}
    if MODE == "breaks":
        launch.log_to_stderr = log_everything
    config = tiny_config(**groups)
    try:
        code = launch.launch(config, plan(config), as_json=False)
    except ServekitError as error:
        sys.stderr.write(error.message)
        code = error.exit_code
    sys.stderr.write(f"torch imported: {'torch' in sys.modules}\n")
    sys.exit(code)
