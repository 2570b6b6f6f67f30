"""How long answers become, by kind of request, learnt while serving (see `survival`)."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import sqrt
from operator import add

from servekit.scheduler.request import Request
from servekit.scheduler.survival import BUCKETS, Counts, Survival, bucket_of

MEMORY = 2000.0
"""Answers of a class that count fully; twice as many are halved, so that old ones fade."""
FEW, FEW_STEPS = 500, 16
"""Until so many answers have ended, those that run are counted every so many steps at least."""
MAX_CLASSES = 2048


@dataclass(slots=True, eq=False)
class LengthClass:
    """Counts of one kind of request, by bucket; `parent` is the broader kind it is part of."""

    parent: "LengthClass | None" = None
    ended: list[float] = field(default_factory=lambda: [0.0] * BUCKETS)
    cut: list[float] = field(default_factory=lambda: [0.0] * BUCKETS)
    running: list[float] = field(default_factory=lambda: [0.0] * BUCKETS)
    total: float = 0.0
    news: float = 0.0
    """Answers since it was last learnt from."""
    made: Counts | None = None

    def add(self, bucket: int, ended: bool) -> None:
        (self.ended if ended else self.cut)[bucket] += 1.0
        self.total += 1.0
        self.news += 1.0
        if self.total >= 2 * MEMORY:
            self.ended = [count / 2 for count in self.ended]
            self.cut = [count / 2 for count in self.cut]
            self.total /= 2

    @property
    def known(self) -> Counts:
        """To ask changes nothing: it is made anew by what is learnt."""
        if self.total == 0.0 and self.parent is not None:
            return self.parent.known
        return self.made or self.learn()

    @property
    def survival(self) -> Survival:
        return self.known.survival

    def learn(self) -> Counts:
        """What is counted by now is what is known from now on."""
        above = self.parent.known if self.parent else None
        cut = list(map(add, self.cut, self.running))
        self.made, self.news = Counts(self.ended.copy(), cut, above), 0.0
        return self.made


Key = tuple[str | int, ...]


class OutputLengths:
    """Of classes within classes: all requests; of one SLO class and octave of max_tokens; of one
    tenant among those; with prompts of one octave. A class that has seen little follows the one
    above it.
    """

    def __init__(self) -> None:
        self.root = LengthClass()
        self.classes: dict[Key, LengthClass] = {}
        self.ends = 0
        self.refreshes = 0
        """How often those that run were counted."""
        self._refresh_at = 0
        self._step = 0

    def class_of(self, request: Request) -> LengthClass:
        key: Key = (
            request.slo_class,
            request.max_tokens.bit_length(),
            request.tenant,
            len(request.prompt).bit_length(),
        )
        return self.classes.get(key) or self._new(key)

    def _new(self, key: Key) -> LengthClass:
        parent = self.root
        for depth in (2, 3, 4):
            one = self.classes.get(key[:depth])
            if one is None:
                if len(self.classes) >= MAX_CLASSES:
                    del self.classes[next(iter(self.classes))]
                one = self.classes[key[:depth]] = LengthClass(parent)
            parent = one
        return parent

    def survival(self, request: Request) -> Survival:
        return self.class_of(request).survival

    def remaining(self, request: Request) -> float:
        """Output tokens that it is expected to give from now on."""
        done = len(request.tokens) - len(request.prompt)
        return self.class_of(request).survival.remaining(done, request.max_tokens)

    def finished(self, request: Request) -> None:
        """It has ended, as `request.finish` says; to be called once.

        A class is learnt from again when there is a sixteenth more to know.
        """
        length = len(request.tokens) - len(request.prompt)
        if length < 1:
            return
        self.ends += 1
        bucket, ended = bucket_of(length), request.finish == "stop"
        for one in self._line_of(request):
            one.add(bucket, ended)
            if one.news >= one.total / 16:
                one.learn()

    @property
    def unsure(self) -> float:
        """By so large a share what is said of lengths may be off: the standard error of a mean of
        the answers that have ended, whose spread is about their mean.
        """
        return 1.0 / sqrt(1.0 + self.ends)

    def is_due(self, step: int) -> bool:
        """To count those that run again can make a difference; `step` counts steps.

        While few answers have ended those that run are most of what is known, and if they were
        taken to be where they were some steps ago, all answers would seem to be short.
        """
        if self.ends >= self._refresh_at:
            return True
        return self.ends < FEW and not 0 <= step - self._step < FEW_STEPS

    def refresh(self, running: Iterable[Request], step: int) -> None:
        """Count in those that run, if that is due."""
        if not self.is_due(step):
            return
        more = self.ends // 16 if self.ends < FEW else min(500, self.ends // 4)
        self._refresh_at = self.ends + max(1, more)
        self._step = step
        self.refreshes += 1
        everyone = (self.root, *self.classes.values())
        for one in everyone:
            one.running = [0.0] * BUCKETS
        for request in running:
            bucket = bucket_of(len(request.tokens) - len(request.prompt))
            for one in self._line_of(request):
                one.running[bucket] += 1.0
        for one in everyone:
            if one.total > 0 or one.parent is None:
                one.learn()

    def _line_of(self, request: Request) -> list[LengthClass]:
        """Its classes, the broadest first."""
        line = [self.class_of(request)]
        while line[-1].parent is not None:
            line.append(line[-1].parent)
        return line[::-1]
