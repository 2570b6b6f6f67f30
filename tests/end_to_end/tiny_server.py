"""A whole server process with the tiny model: `tiny_server.py WEIGHTS GROUPS`, groups as JSON."""

import json
import sys
from pathlib import Path

from servekit.engine import spawn
from servekit.planner.plan import plan
from servekit.server import launch
from tests.conftest import tiny_config
from tests.server.conftest import ByteTokenizer

launch.fetch = lambda source, sha256, progress: Path(sys.argv[1])
launch.load_tokenizer = lambda path, template: ByteTokenizer()  # type: ignore[assignment, return-value]
spawn.CHILD = "import sys; sys.path.append(sys.argv[1]); " + (
    "from tests.end_to_end.slow_engine import main; main()"
)

if __name__ == "__main__":
    config = tiny_config(**json.loads(sys.argv[2]))
    sys.exit(launch.launch(config, plan(config), as_json=True))
