"""Who comes while the queue is full is told so before anything is done for it.

The engine's scheduler says who is let in. But while as many requests are open as it seats and
queues, there is one answer, and to get it by way of the body, the tokenizer and the engine takes
several times the processor time, of which those who are served have to wait.
"""

from servekit.config.scheduling import SchedulerConfig
from servekit.errors import Overloaded
from servekit.scheduler.admission import crowded
from servekit.scheduler.retry import Retry


class Shed:
    """Counts what it refuses; those are told turns, as `scheduler.retry` gives them."""

    def __init__(self, scheduler: SchedulerConfig) -> None:
        self.seats, self.waiting = scheduler.max_num_seqs, scheduler.max_num_waiting
        self.retry = Retry()
        self.refused = 0

    def served(self, now: float) -> None:
        """Some request has its first token, at `now` seconds of the monotonic clock."""
        self.retry.served(now)

    def refusal(self, num_open: int, now: float) -> Overloaded | None:
        """For one more beside `num_open` engine requests; None: the scheduler has to say."""
        left = num_open - self.seats
        if left < self.waiting:
            return None
        self.refused += 1
        wait_s = self.retry.after_s(now, self.retry.gap_s, self.refused)
        return crowded(left, self.waiting, wait_s)
