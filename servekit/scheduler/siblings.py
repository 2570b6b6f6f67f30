"""Which blocks follow which prefix: a block that starts as a prompt goes on is worth copying."""

from collections.abc import Iterable


def common_start(left: list[int], right: list[int]) -> int:
    """Tokens that both begin with."""
    count = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        count += 1
    return count


class Siblings:
    """Blocks by the prefix that they follow, with the tokens whose keys and values they hold.

    `most` newest ones of a prefix are known, so that asking costs the same however many prompts
    part there.
    """

    def __init__(self, most: int = 8) -> None:
        self.most = most
        self.after: dict[bytes, list[int]] = {}
        self.known: dict[int, tuple[bytes, list[int]]] = {}

    def add(self, parent: bytes, block: int, tokens: list[int]) -> None:
        """`block` begins with these tokens, which are computed; it may be known as fewer."""
        if block in self.known:
            self.drop([block])
        blocks = self.after.get(parent)
        if blocks is None:
            self.after[parent] = [block]
        else:
            if len(blocks) == self.most:
                del self.known[blocks.pop(0)]
            blocks.append(block)
        self.known[block] = (parent, tokens)

    def drop(self, blocks: Iterable[int]) -> None:
        """They are about to hold something else; of those not known nothing happens."""
        known, after = self.known, self.after
        for block in known.keys() & blocks:
            entry = known.pop(block)
            siblings = after[entry[0]]
            if len(siblings) == 1:
                del after[entry[0]]
            else:
                siblings.remove(block)

    def closest(self, parent: bytes, tokens: list[int]) -> tuple[int, int]:
        """The block after `parent` that begins with most of `tokens`, and how many; 0, 0: none.

        Of most blocks one token tells that they do not begin with more than another.
        """
        best, most = 0, 0
        for block in reversed(self.after.get(parent, ())):
            start = self.known[block][1]
            if start[most : most + 1] == tokens[most : most + 1]:
                count = common_start(start, tokens)
                if count > most:
                    best, most = block, count
        return best, most

    def check(self) -> None:
        listed = [(block, parent) for parent, blocks in self.after.items() for block in blocks]
        assert dict(listed) == {block: entry[0] for block, entry in self.known.items()}
        assert len(listed) == len(self.known), "a block is listed twice"
        assert all(0 < len(blocks) <= self.most for blocks in self.after.values())
