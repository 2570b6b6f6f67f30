"""`servekit serve`: plan, print the plan, pass the gate, launch."""

import json
from typing import TYPE_CHECKING

from servekit.planner.gate import check
from servekit.planner.pages.page import show
from servekit.planner.plan import plan
from servekit.spec.hardware import devices

if TYPE_CHECKING:
    from servekit.config.compose import Composed


def main(composed: "Composed", as_json: bool) -> int:
    """The exit code: 0 after a drain, 1 if something failed. Raises PlanRefused."""
    config = composed.config
    made = plan(config, origins=composed.origins)
    if as_json:
        print(json.dumps(made.to_json()), flush=True)
    else:
        show(made)
    check(made, [] if config.hardware.kind == "cpu" else devices())
    # Loaded only now: a refusal need not wait for the HTTP server's libraries.
    from servekit.server.launch import launch

    return launch(config, made, as_json)
