"""A server over the null engine, with the tokenizer of a real model: `null_server WORD...`."""

import sys

from servekit.config.compose import load
from servekit.engine import spawn
from servekit.planner.plan import plan
from servekit.server.launch import launch

spawn.CHILD = "import sys; sys.path.append(sys.argv[1]); " + (
    "from benchmarks.null_engine import main; main()"
)

if __name__ == "__main__":
    config = load(sys.argv[1:]).config
    sys.exit(launch(config, plan(config), as_json=True))
