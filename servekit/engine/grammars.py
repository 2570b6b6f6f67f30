"""Grammars of one engine, compiled beside its loop.

They were tried before they come here, so that each takes a time that was found acceptable.
"""

from collections import OrderedDict, deque

from llguidance import LLMatcher

from servekit.engine.beside import Beside
from servekit.engine.constraint import Constraint
from servekit.errors import EngineError, RequestError
from servekit.model.grammar import Compiler
from servekit.model.vocabulary import Vocabulary

MAX_COMPILED = 64
"""Kept for who asks for the same again; most are far below a megabyte."""
PATIENCE_S = 60.0
"""How long a request is held for its grammar; others may be compiled before."""


class Grammars:
    """Belongs to the thread of the loop; `learn` comes before any other call."""

    def __init__(self) -> None:
        self._compiler: Compiler | None = None
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()
        self._asked: deque[tuple[int, str]] = deque()
        self._current: str | None = None
        self._beside: Beside[LLMatcher] | None = None

    def learn(self, vocabulary: Vocabulary) -> None:
        if vocabulary.eos_ids:
            self._compiler = Compiler(vocabulary)

    def constraint(self, grammar: str) -> Constraint | None:
        """None if it is to be compiled first; raises RequestError without a vocabulary."""
        if self._compiler is None:
            raise RequestError("this engine knows no vocabulary for a grammar", param="grammar")
        start = self._compiled.get(grammar)
        if start is None:
            return None
        self._compiled.move_to_end(grammar)
        return Constraint(start, self._compiler.vocab_size)

    def ask(self, request_id: int, grammar: str) -> None:
        """`done` will have it."""
        self._asked.append((request_id, grammar))
        self._begin()

    @property
    def fileno(self) -> int | None:
        """A descriptor that can be read once something is done; None if nothing is to be."""
        return None if self._current is None or self._beside is None else self._beside.fileno()

    def done(self) -> list[tuple[int, Constraint]]:
        """What has been compiled since the last time, for those who asked for it."""
        if self._current is None or self._beside is None or not self._beside.done:
            return []
        grammar, self._current = self._current, None
        self._compiled[grammar] = self._beside.result()
        while len(self._compiled) > MAX_COMPILED:
            self._compiled.popitem(last=False)
        ready = []
        for request_id, asked in [*self._asked]:
            if asked == grammar and (constraint := self.constraint(grammar)) is not None:
                ready.append((request_id, constraint))
        self._asked = deque((id, asked) for id, asked in self._asked if asked != grammar)
        self._begin()
        return ready

    def _begin(self) -> None:
        if self._current is not None or not self._asked:
            return
        if self._compiler is None:
            raise EngineError("a grammar was asked for without a vocabulary")
        if self._beside is None:
            self._beside = Beside("grammars")
        compiler, grammar = self._compiler, self._asked[0][1]
        self._current = grammar
        self._beside.start(lambda: compiler.compile(grammar))
