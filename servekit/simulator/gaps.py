"""Times between tokens, kept by step and not by token."""

from collections.abc import Collection
from operator import sub

from servekit.simulator.columns import Gaps


class GapKeeper:
    """Counts for each step how many requests waited from the step before to this one.

    Requests that had a token in the step before and have one now wait for just that long; all
    others that spoke before (they were preempted, or short of a block) are timed one by one.
    """

    def __init__(self) -> None:
        self.gaps = Gaps()
        self.before = 0.0
        """When the step before ended."""
        self.speaking: set[int] = set()
        """Requests that had a token in it and go on."""
        self.ids: list[int] | None = None
        """The same as a list, where all of them were decodes and nobody has ended since."""
        self.silent: dict[int, float] = {}
        """Requests that had their last token before it, and when."""

    def step(self, now: float, decodes: list[int], others: Collection[int]) -> None:
        """These had a token in a step that ended at `now`; `ended` is told afterwards."""
        if not others and decodes == self.ids:
            if decodes:
                self._add(now, now - self.before, len(decodes))
            self.before = now
            return
        last, speaking = self.speaking, {*decodes, *others}
        steady = len(last & speaking) if last != speaking else len(last)
        if steady:
            self._add(now, now - self.before, steady)
        if steady < len(last):
            for id in last - speaking:
                self.silent[id] = self.before
        if self.silent:
            for id in self.silent.keys() & speaking:
                self._add(now, now - self.silent.pop(id), 1)
        self.before, self.speaking = now, speaking
        self.ids = None if others else decodes.copy()

    def steps(self, at: list[float], decodes: list[int]) -> None:
        """The same of several steps, all of these decodes."""
        self.step(at[0], decodes, ())
        before = at[:-1]
        self.gaps.at.extend(at[1:])
        self.gaps.seconds.extend(map(sub, at[1:], before))
        self.gaps.count.extend([len(decodes)] * len(before))
        self.before = at[-1]

    def ended(self, request_id: int) -> None:
        self.ids = None
        self.speaking.discard(request_id)
        self.silent.pop(request_id, None)

    def more(self, now: float, count: int) -> None:
        """So many tokens came together with another: guesses that held."""
        if count:
            self._add(now, 0.0, count)

    def _add(self, now: float, seconds: float, count: int) -> None:
        self.gaps.at.append(now)
        self.gaps.seconds.append(seconds)
        self.gaps.count.append(count)
