"""Equal prefixes share blocks: a full block is known by a hash of all tokens up to its end."""

from array import array
from hashlib import sha256

from servekit.scheduler.blocks import BlockPool
from servekit.scheduler.request import Request


def extend_hashes(request: Request, count: int, block_size: int) -> None:
    """Hash the first `count` blocks of the request's tokens, those not hashed yet.

    Each hash covers its parent's and its own tokens, and the first one the salt, so equal hashes
    mean equal prefixes. SHA-256, because a prompt may be written to collide with another's.
    """
    hashes, tokens = request.hashes, request.tokens
    parent = hashes[-1] if hashes else sha256(request.salt).digest()
    for start in range(len(hashes) * block_size, count * block_size, block_size):
        content = array("q", tokens[start : start + block_size]).tobytes()
        parent = sha256(parent + content).digest()
        hashes.append(parent)


def longest_cached(request: Request, pool: BlockPool, block_size: int) -> list[int]:
    """Blocks that hold the longest cached prefix; the last token is never among it.

    Somebody has to compute the last token, for its logits give the next.
    """
    count = (len(request.tokens) - 1) // block_size
    extend_hashes(request, count, block_size)
    blocks: list[int] = []
    for content in request.hashes[:count]:
        block = pool.find(content)
        if block is None:
            break
        blocks.append(block)
    return blocks


def seal(request: Request, pool: BlockPool, block_size: int) -> None:
    """Offer blocks whose every token is computed and committed to whoever asks next."""
    full = request.committed // block_size
    extend_hashes(request, full, block_size)
    for index in range(request.sealed, full):
        pool.remember(request.blocks[index], request.hashes[index])
    request.sealed = full
