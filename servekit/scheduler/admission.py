"""Who is let in at the door, and who is given blocks to start with."""

from servekit.errors import ContextTooLong, Overloaded, RequestError
from servekit.scheduler.blocks import BlockPool
from servekit.scheduler.prefix import longest_cached
from servekit.scheduler.request import Request


def refuse_impossible(request: Request, max_model_len: int, max_servable_tokens: int) -> None:
    """Raise RequestError or ContextTooLong for what could never be served to its end."""
    if not request.prompt or request.max_tokens < 1:
        raise RequestError(
            f"{len(request.prompt)} prompt tokens and max_tokens={request.max_tokens}; "
            "a request needs at least one of each",
            param="max_tokens" if request.prompt else "prompt",
        )
    if request.limit > min(max_model_len, max_servable_tokens):
        raise ContextTooLong(
            prompt_tokens=len(request.prompt),
            max_tokens=request.max_tokens,
            max_model_len=max_model_len,
            max_servable_tokens=max_servable_tokens,
        )


def refuse_overload(waiting: int, free_seats: int, limit: int) -> None:
    """Raise Overloaded when as many wait as may; those whom a free seat is for do not count."""
    left = waiting - free_seats
    if left >= limit:
        raise Overloaded(
            f"{left} requests are waiting and at most {limit} may "
            "(scheduler.max_num_waiting); try again later"
        )


def seat(request: Request, pool: BlockPool, block_size: int, *, prefix_caching: bool) -> bool:
    """Take blocks for all known tokens, if those and the next one fit into what is free.

    All at once, so that a prompt computed in chunks is never stopped half way by one seated after
    it. What the prefix cache has is shared and counts as computed.
    """
    length = len(request.tokens)
    cached = longest_cached(request, pool, block_size) if prefix_caching else []
    revived = sum(map(pool.is_free, cached))
    if length // block_size + 1 - len(cached) > pool.num_free - revived:
        return False
    pool.share(cached)
    request.blocks = cached + pool.take(-(-length // block_size) - len(cached))
    request.sealed = len(cached)
    request.computed = request.committed = len(cached) * block_size
    return True
