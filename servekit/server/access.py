"""Who may use a route: each declares its class, and a route without one cannot be registered.

    public      anyone: what an orchestrator asks
    inference   a key with access to inference: what costs tokens, or shows the model
    admin       a key with access to admin: what shows how the deployment is doing

A server without keys asks nobody for one; `entrance` sees to it that such a server is meant.
"""

from collections.abc import Iterable
from typing import Any, Literal, TypeVar, get_args

from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler

Access = Literal["public", "inference", "admin"]
CLASSES: tuple[Access, ...] = get_args(Access)

PUBLIC: dict[str, Any] = {"access": "public"}
INFERENCE: dict[str, Any] = {"access": "inference"}
ADMIN: dict[str, Any] = {"access": "admin"}
"""For `opt=` of a route."""

Handler = TypeVar("Handler", bound=BaseRouteHandler)


def declared(handlers: Iterable[Handler]) -> list[Handler]:
    """The same handlers; raises TypeError for one that does not say who may use it."""
    checked = list(handlers)
    for handler in checked:
        if handler.opt.get("access") not in CLASSES:
            raise TypeError(
                f"{sorted(handler.paths)} has no class; give it opt=PUBLIC, INFERENCE or ADMIN"
            )
    return checked


async def guard(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """Runs before the body is read. Raises Unauthorized or Forbidden.

    A handler that Litestar adds by itself, such as for OPTIONS, is for admins.
    """
    access: Access = handler.opt.get("access", "admin")
    if access != "public":
        callers = connection.app.state.service.callers
        callers.authorize(connection.headers.get("authorization"), access)
