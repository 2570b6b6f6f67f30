"""When those who were refused are told to come again."""

SMOOTH = 0.05
"""Weight of the latest gap between two first tokens."""
MOST_S = 60.0
"""Nobody is told to stay away for longer."""
LEAST_S = 1.0


class Retry:
    """Those who were refused are told one after the other, as far apart as others are served.

    A wait that is over once the line is short again would be the same for all who are refused
    meanwhile, so that they came back together and most were refused again. So each has a turn of
    its own, after those before it; who does not come back leaves its turn to newcomers.
    """

    def __init__(self) -> None:
        self.gap_s = 0.0
        """Between the first tokens of two requests, on average of late."""
        self.served_at: float | None = None
        self.next_at = 0.0
        """The first turn that nobody was told."""

    def served(self, now: float) -> None:
        """Somebody has a first token."""
        if self.served_at is not None:
            gap = now - self.served_at
            self.gap_s += (gap - self.gap_s) * (SMOOTH if self.gap_s else 1.0)
        self.served_at = now

    def after_s(self, now: float, wait_s: float, id: int) -> float:
        """Seconds to stay away for one that is refused now and could be let in after `wait_s`, as
        far as the line goes. At least a second, and up to half as much again, so that rounded
        times do not bring all back at once.
        """
        turn = max(self.next_at, now + wait_s)
        self.next_at = min(turn + self.gap_s, now + MOST_S)
        return jittered(min(turn - now, MOST_S), id)


def jittered(seconds: float, id: int) -> float:
    return max(LEAST_S, seconds) * (1.0 + 0.5 * ((id * 0.6180339887498949) % 1.0))
