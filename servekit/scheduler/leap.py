"""Many steps at once, for whoever knows what they will give: a simulator."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from servekit.scheduler.scheduler import Scheduler


class Leap:
    """Steps in which those in lock step go on and nothing else happens.

    To take them at once leaves everything as if each had been planned and committed, but costs
    what is due in them and not what it takes to find out that nothing else is.
    """

    def __init__(self, scheduler: "Scheduler") -> None:
        self.scheduler = scheduler
        self.seats, self.decoding = scheduler.seats, scheduler.seats.decoding
        self.kv, self.shortage, self.pace = scheduler.kv, scheduler.shortage, scheduler.pace

    def most(self) -> int:
        """How many of the next steps are so, as long as nobody comes, leaves or stops; 0: none.

        Nothing may be in flight, and there must be blocks for all of them.
        """
        seats, decoding = self.seats, self.decoding
        if seats.flights or seats.loose or not decoding.ids or decoding.drafting:
            return 0
        if self.shortage.giving or self.kv.windowed or self.kv.copies or self._may_be_seated():
            return 0
        blocks_each = self.kv.num_free // (len(decoding.ids) + 1)
        until_last = min(decoding.by_last) - decoding.clock.planned
        return min(until_last, blocks_each * self.kv.block_size)

    def _may_be_seated(self) -> bool:
        line = self.scheduler.line
        if len(line) == len(line.held):
            return False
        if self.scheduler.config.policy == "static":
            return False
        return line.seats_left > 0 or line.order.challenger() is not None

    def take(self, said: list[list[int]], seconds: list[float]) -> list[int]:
        """Plan and commit `len(seconds)` steps, `most` of them or fewer. `said` are the tokens of
        each of `ids` in these steps, of which none is an end. Returns the blocks that were free
        in each step.
        """
        decoding, kv, decoded = self.decoding, self.kv, self.pace.decoded
        clock, rows, by_phase, free = decoding.clock, len(decoding.ids), decoding.by_phase, []
        kv.take_copies()
        decoding.leap(said, len(seconds))
        for each in seconds:
            if by_phase[-clock.planned % kv.block_size]:
                left = self.shortage.extend(decoding.crossing())
                assert not left, "a leap that is too far"
            free.append(kv.num_free)
            context = decoding.mean_context
            clock.planned += 1
            clock.committed += 1
            kv.filled(by_phase[-clock.committed % kv.block_size])
            decoded(rows, context, each)
        return free
