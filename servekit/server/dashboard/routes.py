"""`/dashboard`: a live page that needs nothing but this server.

The page and its scripts are files without anything of this deployment in them, so that a browser,
which sends no key with an address, can open them; the numbers are for admins. Where keys are asked
for, the page asks for one and sends it with every question.
"""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
from litestar import Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromQuery

from servekit.server.access import ADMIN, PUBLIC
from servekit.server.dashboard.board import beside, latencies
from servekit.server.health import ALWAYS, Injected, json
from servekit.server.service import Service

STATIC = Path(__file__).with_name("static")

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
"""Scripts are files of this server and nothing else; plotly writes styles into the page."""


def plotly_path() -> Path:
    """The script that comes with plotly's package; imported here, for this is all that needs it."""
    import plotly  # type: ignore[import-untyped]

    return Path(plotly.__file__).parent / "package_data" / "plotly.min.js"


async def file(path: Path, kind: str, keep: str = "no-cache") -> Response[bytes]:
    body = await asyncio.to_thread(path.read_bytes)
    return Response(body, media_type=kind, headers={**HEADERS, "cache-control": keep})


@get("/dashboard", opt=ALWAYS | PUBLIC)
async def page() -> Response[bytes]:
    return await file(STATIC / "dashboard.html", "text/html")


@get("/dashboard/dashboard.css", opt=ALWAYS | PUBLIC)
async def styles() -> Response[bytes]:
    return await file(STATIC / "dashboard.css", "text/css")


@get("/dashboard/dashboard.js", opt=ALWAYS | PUBLIC)
async def script() -> Response[bytes]:
    return await file(STATIC / "dashboard.js", "text/javascript")


@get("/dashboard/plotly.js", opt=ALWAYS | PUBLIC)
async def plotly() -> Response[bytes]:
    return await file(plotly_path(), "text/javascript", "private, max-age=86400")


@get("/dashboard/data", opt=ALWAYS | ADMIN)
async def data(service: Injected, since: FromQuery[float] = 0.0) -> Response[bytes]:
    """Samples younger than `since`, seconds since 1970, and what is not a series."""
    service.tick()
    return json(shown(service, since), headers={"cache-control": "no-store"})


def shown(service: Service, since: float) -> dict[str, Any]:
    config, metrics, board = service.config, service.metrics, service.board
    info = service.engine.info
    measured = {} if info is None else msgspec.structs.asdict(info)
    return {
        "name": config.name,
        "model": config.model.name,
        "state": service.lifecycle.state,
        "seats": config.scheduler.max_num_seqs,
        "percentile": config.slo.percentile,
        "samples": board.since(since),
        "latencies": latencies(metrics),
        "plan": beside(service.plan, measured, metrics, board.output_per_s()),
    }


HANDLERS: list[HTTPRouteHandler] = [page, styles, script, plotly, data]
