"""The application: routes, the one error table, and the door that is shut while loading."""

from collections.abc import Iterable
from typing import Any

from litestar import Litestar, Request, Response, get
from litestar.datastructures import State
from litestar.di import Provide
from litestar.handlers import BaseRouteHandler

from servekit.server import errors, health, openapi, routes, socket
from servekit.server.access import ADMIN, CLASSES, Access, declared, guard
from servekit.server.asked import ROUTES
from servekit.server.dashboard import routes as dashboard
from servekit.server.service import Service
from servekit.server.tracing import failed, tracing
from servekit.telemetry.exporters import NoExporter, PrometheusExporter

MIB = 1 << 20

Exporter = PrometheusExporter | NoExporter


async def shut_while_loading(request: Request[Any, Any, Any]) -> None:
    """Raises NotReady, with progress, for every route that needs the model."""
    if not request.route_handler.opt.get("while_loading"):
        request.app.state.service.ensure_ready()


class App(Litestar):
    """HEAD is answered as GET is; the server sends no body with it. Who would only hear that the
    queue is full hears it here.
    """

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            if scope["method"] == "HEAD":
                scope = {**scope, "method": "GET"}
            elif scope["method"] == "POST" and scope["path"] in ROUTES:
                key = next((v for name, v in scope["headers"] if name == b"authorization"), b"")
                error = self.state.service.turned_away(key.decode("latin-1") or None)
                if error is not None:
                    await errors.send_error(error, send)
                    return
        await super().__call__(scope, receive, send)


def build_app(
    service: Service, exporter: Exporter, classes: frozenset[Access] = frozenset(CLASSES)
) -> Litestar:
    """The routes of these classes."""
    handlers: list[BaseRouteHandler] = [
        *routes.HANDLERS,
        *health.HANDLERS,
        *openapi.HANDLERS,
        socket.stream,
    ]
    # the page needs the numbers, which are where admins are
    pages = dashboard.HANDLERS
    if "admin" in classes:
        handlers += pages
    if isinstance(exporter, PrometheusExporter):
        handlers.append(metrics_route(exporter))
    here = [one for one in declared(handlers) if one.opt["access"] in classes]
    elsewhere = paths_of([*handlers, *pages]) - paths_of(here)
    traces = exporter.traces
    if traces is not None:
        service.metrics.traced = traces.counts
    return App(
        route_handlers=here,
        guards=[guard],
        middleware=[] if traces is None else [tracing(traces, service.config.model.name)],
        dependencies={"service": Provide(lambda: service, sync_to_thread=False)},
        exception_handlers=errors.handlers(lambda code: refused(service, code)),
        before_request=shut_while_loading,
        request_max_body_size=int(service.config.server.max_body_mib * MIB),
        state=State({"service": service, "elsewhere": elsewhere}),
        openapi_config=None,
        logging_config=None,
    )


def paths_of(handlers: Iterable[BaseRouteHandler]) -> frozenset[str]:
    return frozenset(path for one in handlers for path in one.paths)


def refused(service: Service, code: str) -> None:
    """A request is answered with an error of that code."""
    service.metrics.refused(code)
    failed(code)


def metrics_route(exporter: PrometheusExporter) -> Any:
    @get("/metrics", opt=health.ALWAYS | ADMIN)
    async def metrics() -> Response[bytes]:
        return Response(exporter.render(), media_type=exporter.content_type)

    return metrics
