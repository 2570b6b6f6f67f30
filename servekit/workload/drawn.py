"""Requests as the configuration declares them: lengths, shared starts and later turns drawn."""

from dataclasses import dataclass
from itertools import count

from servekit.config.targets import WorkloadConfig
from servekit.errors import ConfigError
from servekit.workload.arrival import Arrival, Runs, SloClass, grown
from servekit.workload.draws import Draws, Lengths, Shares, Zipf


def said_anew(work: WorkloadConfig) -> float:
    """Tokens that a user adds in a turn, on average, so that prompts have `prompt_tokens`.

    After each answer another turn follows with the same probability, so a request has on average
    `turns` - 1 turns before it, and its prompt is the shared start, `turns` times what users say
    and `turns` - 1 answers.
    """
    answers = (work.turns - 1) * work.output_tokens
    anew = (work.prompt_tokens - work.shared_prefix_tokens - answers) / work.turns
    if anew < 1:
        least = work.shared_prefix_tokens + answers + work.turns
        raise ConfigError(
            f"workload.turns={work.turns:g} with answers of {work.output_tokens} tokens makes "
            f"prompts of {least:.0f} tokens or more on average, but workload.prompt_tokens is "
            f"{work.prompt_tokens}: raise that to {least:.0f} at least, or lower workload.turns, "
            "workload.output_tokens or workload.shared_prefix_tokens",
            param="workload.turns",
        )
    return anew


@dataclass(frozen=True, slots=True)
class Client:
    """Who asks: the same throughout a conversation."""

    tenant: str
    priority: int
    slo_class: SloClass


class Clients:
    """Tenant, priority and class of conversations, each drawn apart from the others."""

    def __init__(self, work: WorkloadConfig, seed: int) -> None:
        self._tenants = Shares(work.tenants, "")
        self._priorities = Shares(work.priorities, "0")
        self._batch_share = work.batch_share
        self._draws = [Draws(seed, purpose) for purpose in ("tenant", "priority", "class")]
        self._all_alike = not (work.tenants or work.priorities or work.batch_share)
        self._usual = Client("", 0, "interactive")

    def of(self, session: int) -> Client:
        if self._all_alike:
            return self._usual
        tenant, priority, batch = (draws.at(session) for draws in self._draws)
        return Client(
            tenant=self._tenants.of(tenant),
            priority=int(self._priorities.of(priority)),
            slo_class="batch" if batch < self._batch_share else "interactive",
        )


def cut(prompt: int, output: int, limit: int) -> tuple[int, int]:
    """Both as long as `limit` allows, the prompt first; either at least 1."""
    prompt = max(1, min(prompt, limit - 1))
    return prompt, max(1, min(output, limit - prompt))


class Drawn:
    """What conversations are made of where no trace says it."""

    def __init__(self, work: WorkloadConfig, *, max_model_len: int, seed: int) -> None:
        anew = said_anew(work)
        self.turns = work.turns
        self._limit = max_model_len
        self._prefix_tokens = work.shared_prefix_tokens
        self._prefixes = Zipf(work.shared_prefixes)
        self._first = Lengths(work.shared_prefix_tokens + anew, work.prompt_cv)
        self._later = Lengths(anew, work.prompt_cv)
        self._output = Lengths(work.output_tokens, work.output_cv)
        self._clients = Clients(work, seed)
        self._draw_prompt = Draws(seed, "prompt").at
        self._draw_output = Draws(seed, "output").at
        self._draw_prefix = Draws(seed, "prefix").at
        self._draw_turns = Draws(seed, "turns").at
        # even numbers: of what requests share, odd ones: of what is theirs alone
        self._tokens = count(1, 2)

    def opening(self, session: int, at: float) -> Arrival:
        """The first request of a conversation."""
        asked = (
            self._first.of(self._draw_prompt(session)),
            self._output.of(self._draw_output(session)),
        )
        prompt, output = cut(*asked, self._limit)
        client = self._clients.of(session)
        prefix = None
        shared = min(self._prefix_tokens, prompt - 1)
        runs: Runs = ((next(self._tokens), prompt - shared),)
        if shared:
            prefix = self._prefixes.of(self._draw_prefix(session))
            runs = ((2 * prefix, shared), *runs)
        return Arrival(
            at, prompt, output, runs, next(self._tokens), client.tenant, client.priority,
            client.slo_class, session, 0, prefix, (prompt, output) != asked,
        )  # fmt: skip

    def following(self, before: Arrival, at: float) -> Arrival | None:
        """The next turn, if there is one: all that was said, and something new.

        None too where that no longer fits into the model.
        """
        turn = before.turn + 1
        if self._draw_turns(before.session, turn) * self.turns < 1:
            return None
        said = before.prompt_tokens + before.output_tokens
        if said + 2 > self._limit:
            return None
        new = self._later.of(self._draw_prompt(before.session, turn))
        asked = said + new, self._output.of(self._draw_output(before.session, turn))
        prompt, output = cut(*asked, self._limit)
        runs = grown(before, prompt, next(self._tokens))
        return before._replace(
            at=at, prompt_tokens=prompt, output_tokens=output, runs=runs,
            answer=next(self._tokens), turn=turn, is_cut=(prompt, output) != asked,
        )  # fmt: skip
