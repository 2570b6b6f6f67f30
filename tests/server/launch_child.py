"""A whole server process over a scripted engine, for tests of its life: `launch_child.py MODE`."""

import asyncio
import json
import sys
import time
from pathlib import Path

from servekit.engine.messages import Loading, Ready
from servekit.errors import EngineDied, ServekitError, SourceError
from servekit.planner.plan import plan
from servekit.server import launch
from tests.conftest import tiny_config
from tests.server.conftest import ByteTokenizer, FakeEngine, says

MODE = sys.argv[1]


class ChildEngine(FakeEngine):
    """Loads for a moment, then says little for long; in mode `dies` its process then ends."""

    def __init__(self, config: object, path: Path) -> None:
        super().__init__(state="loading", script=says("x" * 60), step_s=0.02)
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

    def kill(self) -> None:
        """There is no process."""

    async def stop(self) -> None:
        sys.stderr.write("engine stopped\n")


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
    groups["server"] |= {"port": port, "drain_s": drain_s}
    config = tiny_config(**groups)
    try:
        code = launch.launch(config, plan(config), as_json=False)
    except ServekitError as error:
        sys.stderr.write(error.message)
        code = error.exit_code
    sys.stderr.write(f"torch imported: {'torch' in sys.modules}\n")
    sys.exit(code)
