"""What is always true of the books of a cache; for tests."""

from typing import TYPE_CHECKING

from servekit.scheduler.request import Request

if TYPE_CHECKING:
    from servekit.scheduler.kv import KvBlocks


def check_books(kv: "KvBlocks", requests: list[Request]) -> None:
    """`requests` are all those that are here."""
    tables = [table for request in requests for table in request.tables]
    held = [[block for block in table if block] for table in tables]
    kv.pool.check([*held, *kv.windows.tables()])
    kv.windows.check(requests)
    kv.host.check()
    kv.cache.check()
    waiting = {request.id for request in requests if not request.tables}
    assert kv.host.swapped.keys() <= waiting, "swapped, and seated or gone"
    for request in requests:
        if request.tables:
            reach = {len(request.tables[number]) for number in kv.full}
            assert len(reach) <= 1, f"{request.id} has full tables of unequal length"
