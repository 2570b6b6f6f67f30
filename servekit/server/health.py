"""Three questions of an orchestrator, each with its reasons in JSON; and what this is.

/livez: should this process be restarted. /readyz: should it get traffic. /startupz: how far is it.
"""

from typing import Any

import msgspec
from litestar import Response, get
from litestar.di import NamedDependency
from litestar.handlers import HTTPRouteHandler
from litestar.params import SkipValidation

from servekit import __version__
from servekit.server.access import ADMIN, PUBLIC
from servekit.server.service import Service

Injected = NamedDependency[SkipValidation[Service]]
"""A handler's `service`, as it is."""

ALWAYS: dict[str, Any] = {"while_loading": True}
"""Routes that answer whatever the state."""


def json(
    content: object, status: int = 200, headers: dict[str, str] | None = None
) -> Response[bytes]:
    return Response(
        msgspec.json.encode(content),
        status_code=status,
        media_type="application/json",
        headers=headers or {},
    )


@get("/livez", opt=ALWAYS | PUBLIC)
async def livez(service: Injected) -> Response[bytes]:
    """Loading is being alive, and so is any load; a dead or stopped engine is not."""
    heartbeat = service.engine.heartbeat
    reason = heartbeat.stopped
    if service.engine.state == "dead":
        reason = "the engine process is gone"
    report = {
        "reasons": [] if reason is None else [reason],
        "heartbeat_age_s": round(heartbeat.age_s, 3),
        "heartbeat_limit_s": round(heartbeat.limit_s, 3),
    }
    if reason is not None:
        return json({"status": "dead", **report}, status=503)
    return json({"status": "alive", **report})


@get(["/readyz", "/health"], opt=ALWAYS | PUBLIC)
async def readyz(service: Injected) -> Response[bytes]:
    reasons = service.reasons_not_ready()
    if reasons:
        return json({"status": "not ready", "reasons": reasons}, status=503)
    return json({"status": "ready", "reasons": []})


@get("/startupz", opt=ALWAYS | PUBLIC)
async def startupz(service: Injected) -> Response[bytes]:
    """200 once it has been ready: from then on, /readyz and /livez are to be asked."""
    started = service.lifecycle.state == "ready" or service.lifecycle.going_down
    return json(service.lifecycle.report(), status=200 if started else 503)


@get("/version", opt=ALWAYS | ADMIN)
async def version(service: Injected) -> Response[bytes]:
    return json({"version": __version__, "deployment": service.config.name})


@get("/v1/servekit/plan", opt=ADMIN)
async def plan(service: Injected) -> Response[bytes]:
    """What was planned beside what was measured after start-up."""
    info = service.engine.info
    measured: dict[str, Any] = {} if info is None else msgspec.structs.asdict(info)
    return json({"plan": service.plan, "measured": measured})


HANDLERS: list[HTTPRouteHandler] = [livez, readyz, startupz, version, plan]
