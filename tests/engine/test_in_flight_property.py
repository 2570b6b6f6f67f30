"""With a step planned ahead nobody gets what another should, whatever comes, stops or gives way."""

from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

import pytest

from servekit.engine.beside import Beside
from servekit.engine.local import Generated, LocalEngine
from servekit.engine.messages import Abort, Deltas, FromEngine, Sampling
from servekit.model.grammar import regex_grammar
from tests.engine.grammars import ENDS
from tests.engine.test_engine import SETTINGS
from tests.engine.test_in_flight import at_rest, engine, waiting
from tests.engine.tiny import prompts

MANY = prompts(10, seed=3)
REGEX = regex_grammar("[a-c]{1,3}-\\d{2,8}")
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "seeded": {"temperature": 1.0},
    "penalties": {"frequency_penalty": 1.0, "repetition_penalty": 1.3, "temperature": 0.5},
    "grammar": {"grammar": REGEX, "logit_bias": dict.fromkeys(ENDS, 50.0), "temperature": 1.0},
    "logprobs": {"logprobs": 2, "temperature": 1.0, "top_k": 20},
    "minimum": {"min_tokens": 4, "temperature": 1.0},
}
STOPS = list(range(0, 290, 9))
"""A ninth of what may come: many answers stop early."""


@dataclass(frozen=True)
class Asked:
    """One request of random traffic: the step it comes at, and how many later it is aborted."""

    prompt: int
    kind: str
    seed: int
    max_tokens: int
    stops: bool
    at: int
    abort: int | None

    @property
    def sampling(self) -> Sampling:
        stops = ENDS if self.kind == "grammar" else STOPS if self.stops else []
        return Sampling(
            max_tokens=self.max_tokens, seed=self.seed, stop_token_ids=stops, **KINDS[self.kind]
        )


@cache
def by_itself(prompt: int, kind: str, seed: int, max_tokens: int, stops: bool) -> Generated:
    """Of one step at a time, with nobody else there."""
    asked = Asked(prompt, kind, seed, max_tokens, stops, 0, None)
    return engine(1).generate([MANY[prompt]], [asked.sampling])[0]


def told_as_it_came(local: LocalEngine) -> dict[int, list[str]]:
    """Seats and losses of them by request; nothing may be told of one after its end."""
    deliver, kinds = local.core._outbox, defaultdict[int, list[str]](list)

    def listen(message: FromEngine) -> None:
        if isinstance(message, Deltas):
            for event in message.events:
                if event.kind != "chunk":
                    kinds[event.id].append(event.kind)
            for delta in message.all():
                assert local.results[delta.id].finish is None, "told after its end"
        deliver(message)

    local.core._outbox = listen
    return kinds


def serve(local: LocalEngine, traffic: list[Asked]) -> dict[int, Asked]:
    """Steps until everybody has an end; who was asked for, by id."""
    asked: dict[int, Asked] = {}
    comes, step = sorted(traffic, key=lambda one: one.at), 0
    leaves: dict[int, int] = {}
    while comes or any(local.results[id].finish is None for id in asked) or local.core.flights:
        while comes and comes[0].at <= step:
            one = comes.pop(0)
            id = local.submit(MANY[one.prompt], one.sampling)
            asked[id] = one
            if one.abort is not None:
                leaves[id] = step + one.abort
        if going := [id for id, at in leaves.items() if at == step]:
            local.send(Abort(going))
        local.core.step()
        local.scheduler.check()
        step += 1
    return asked


def judge(result: Generated, one: Asked) -> None:
    expected = by_itself(one.prompt, one.kind, one.seed, one.max_tokens, one.stops)
    assert result.error is None
    if result.finish == "abort":
        assert one.abort is not None
        assert result.tokens == expected.tokens[: len(result.tokens)]
    else:
        assert result.tokens == expected.tokens
        assert (result.finish, result.stop_token) == (expected.finish, expected.stop_token)
    for ours, theirs in zip(result.logprobs, expected.logprobs, strict=False):
        assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-3)
        assert [token for token, _ in ours.top] == [token for token, _ in theirs.top]


TIGHT = {"kv": {"capacity_tokens": 92, "block_size": 4, "prefix_caching": False}}
WAYS = [*SETTINGS.values(), TIGHT, {"scheduler": {"max_num_seqs": 3}}]
BESIDE: Beside[Any] = Beside("steps of a test")


def drawn(chance: Random) -> list[Asked]:
    return [
        Asked(
            prompt=chance.randrange(len(MANY)),
            kind=chance.choice(sorted(KINDS)),
            seed=chance.randrange(2),
            max_tokens=chance.choice([1, 2, 9, 30]),
            stops=chance.random() < 0.3,
            at=chance.randrange(12),
            abort=chance.choice([None, None, None, 0, 1, 2, 5]),
        )
        for _ in range(chance.randint(1, 12))
    ]


def test_random_traffic_gets_what_each_request_gets_by_itself() -> None:
    reached: Counter[str] = Counter()
    for number in range(12 * len(WAYS)):
        local = engine(2, **WAYS[number % len(WAYS)])
        if number % 3 == 0:
            local.core.flights.device, local.core.inbox = BESIDE, waiting(local._drain)
        kinds = told_as_it_came(local)
        for id, one in serve(local, drawn(Random(number))).items():
            judge(local.results[id], one)
            reached[f"{one.kind} {local.results[id].finish}"] += 1
            assert kinds[id][::2] == ["seated"] * len(kinds[id][::2])
            assert kinds[id][1::2] == ["preempted"] * len(kinds[id][1::2])
        at_rest(local)
        reached["preempted"] += local.scheduler.stats().preemptions_total
    for kind in KINDS:
        assert reached[f"{kind} abort"]
        assert reached[f"{kind} stop"]
    assert reached["preempted"]
