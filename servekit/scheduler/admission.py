"""Who is let in at the door."""

from collections import Counter, deque
from typing import NamedTuple

from servekit.errors import ContextTooLong, Overloaded, RequestError, SloUnattainable
from servekit.scheduler.forecast import Forecast, Standing
from servekit.scheduler.request import Request
from servekit.scheduler.retry import MOST_S, Retry
from servekit.scheduler.settings import Settings

NEAR = (0.5, 1.25)
"""Predictions from this share of the latest one to this share of the target tell how far those that
matter can be off."""
REMEMBERED = 200
"""Requests with such a prediction that are learnt from."""
FIRST_GUESS = [1.2] * 20
"""Realised over predicted of imagined ones, until there are real ones."""
ANEW = 8
"""After so many more the margin is made anew."""
GIVEN_UP = 2.0
"""So many times the target, and the prediction, after it came a request is taken for late."""
BOUNDS = (0.2, 1.5)
"""Of the latest prediction over the target."""


class Margin:
    """How much of the target a prediction may use up, learnt from those who were let in.

    The latest prediction that is let in is the target over the quantile of what became of
    predictions near it (realised over predicted: conformal prediction). The quantile is half as
    far from 1 as the SLO allows, for what was learnt is always a little old.
    """

    def __init__(self, target_s: float, percentile: float) -> None:
        self.target_s = target_s
        self.sure = (3.0 + percentile / 100) / 4
        self.ratios = deque(FIRST_GUESS, maxlen=REMEMBERED)
        self.news = 0
        self.latest_s = target_s / FIRST_GUESS[0]

    def learn(self, predicted_s: float, realised_s: float) -> None:
        low, high = NEAR
        if not low * self.latest_s <= predicted_s <= high * self.target_s:
            return
        self.ratios.append(realised_s / predicted_s)
        self.news += 1
        if self.news % ANEW == 0:
            ratio = sorted(self.ratios)[int(self.sure * (len(self.ratios) - 1))]
            least, most = BOUNDS
            self.latest_s = self.target_s * max(least, min(most, 1.0 / ratio))


class Promise(NamedTuple):
    request: Request
    predicted_s: float
    """Until its first token; uncorrected."""


class Door:
    """Refuses what cannot be served, or not in time, and says when to come again."""

    def __init__(self, settings: Settings, forecast: Forecast) -> None:
        self.config, self.slo = settings.scheduler, settings.slo
        self.max_model_len = settings.max_model_len
        self.forecast = forecast
        self.refused: Counter[str] = Counter()
        """By code of the error."""
        self.predicted_late_total = 0
        """Let in although they were predicted to miss `slo.ttft_ms`."""
        self.open: dict[int, Promise] = {}
        """Of those that have no token yet, in order of arrival."""
        self.retry = Retry()
        target = self.slo.ttft_ms
        self.margin = None if target is None else Margin(target / 1000, self.slo.percentile)

    def refuse(self, request: Request, standing: Standing) -> None:
        """Raise RequestError, ContextTooLong, Overloaded or SloUnattainable, or let it in.

        The last two say after how many seconds to come again.
        """
        try:
            refuse_impossible(request, self.max_model_len, standing.kv.max_servable_tokens)
            self._refuse_crowd(request, standing)
            self._refuse_late(request, standing)
        except RequestError as error:
            self.refused[error.code] += 1
            raise
        except Overloaded as error:
            self.refused[error.code] += 1
            wait_s = error.retry_after_s or 0.0
            error.retry_after_s = self.retry.after_s(request.arrived, wait_s, request.id)
            raise

    def first_token(self, request: Request) -> None:
        """It has one: what was predicted can be compared."""
        self.forecast.served(request)
        if request.first_token_at is not None:
            self.retry.served(request.first_token_at)
        promise = self.open.pop(request.id, None)
        if promise is not None and request.first_token_at is not None:
            self._learn(promise, request.first_token_at - request.arrived)

    def ended(self, request: Request) -> None:
        self.open.pop(request.id, None)

    def _learn(self, promise: Promise, realised_s: float) -> None:
        self.forecast.learn(promise.predicted_s, realised_s)
        if self.margin is not None and promise.request.slo_class == "interactive":
            self.margin.learn(promise.predicted_s, realised_s)

    def _give_up(self, now: float) -> None:
        """Learn at once from those that are hopelessly late, not when they are served at last."""
        if self.margin is None:
            return
        patience = GIVEN_UP * self.margin.target_s
        while self.open:
            promise = next(iter(self.open.values()))
            if now - promise.request.arrived <= max(patience, GIVEN_UP * promise.predicted_s):
                break
            self._learn(promise, now - promise.request.arrived)
            del self.open[promise.request.id]

    def _refuse_crowd(self, request: Request, standing: Standing) -> None:
        """Those whom a free seat is for do not count as waiting."""
        line, config = standing.line, self.config
        free = max(0, config.max_num_seqs - len(standing.running))
        left = len(line) - free
        if left >= config.max_num_waiting:
            wait_s = self.forecast.departures_s(left - config.max_num_waiting + 1, standing)
            raise crowded(left, config.max_num_waiting, wait_s)
        most, tokens = config.max_waiting_tokens, line.tokens
        if most is not None and len(line) and tokens + len(request.tokens) > most:
            raise Overloaded(
                f"{tokens} prompt tokens are waiting, and with {len(request.tokens)} more there "
                f"would be more than {most} (scheduler.max_waiting_tokens); try again later",
                retry_after_s=self.forecast.tokens_s(tokens + len(request.tokens) - most, standing),
            )

    def _refuse_late(self, request: Request, standing: Standing) -> None:
        """A request of class batch has no target, and may wait `max_wait_s` as any."""
        forecast, max_wait_s = self.forecast, self.config.max_wait_s
        if not forecast.is_known or (self.margin is None and max_wait_s is None):
            return
        self._give_up(request.arrived)
        predicted = forecast.ttft_s(request, standing)
        expected = forecast.corrected(predicted)
        if max_wait_s is not None and expected > max_wait_s:
            raise Overloaded(
                f"the first token is predicted in {expected:.1f} s, and at most {max_wait_s:g} s "
                "are waited for one (scheduler.max_wait_s); try again later",
                retry_after_s=expected - max_wait_s,
            )
        margin = self.margin
        promised = margin is not None and request.slo_class == "interactive"
        if margin is not None and promised and predicted > margin.latest_s:
            self._refuse_slo(request, predicted, margin, standing)
        self.open[request.id] = Promise(request, predicted)

    def _refuse_slo(
        self, request: Request, predicted: float, margin: Margin, standing: Standing
    ) -> None:
        if self.slo.admission == "observe":
            self.predicted_late_total += 1
            return
        target = f"slo.ttft_ms={margin.target_s * 1000:g} at percentile {self.slo.percentile:g}"
        alone = self.forecast.alone_s(request, standing)
        if alone > margin.latest_s:
            raise SloUnattainable(
                f"a prompt of {len(request.prompt)} tokens takes {alone:.3g} s with nobody else "
                f"here, too long for {target}; shorten the prompt",
                retry_after_s=MOST_S,
            )
        expected = self.forecast.corrected(predicted)
        raise SloUnattainable(
            f"the first token is predicted in {max(expected, margin.target_s):.1f} s, too late for "
            f"{target}; try again later, or with a shorter prompt",
            retry_after_s=predicted - margin.latest_s,
        )


def crowded(waiting: int, most: int, retry_after_s: float) -> Overloaded:
    """What is said while as many wait as may."""
    return Overloaded(
        f"{waiting} requests are waiting and at most {most} may (scheduler.max_num_waiting); "
        "try again later",
        retry_after_s=retry_after_s,
    )


def refuse_impossible(request: Request, max_model_len: int, max_servable_tokens: int) -> None:
    """Raise RequestError or ContextTooLong for what could never be served to its end."""
    if not request.prompt or request.max_tokens < 1:
        raise RequestError(
            f"{len(request.prompt)} prompt tokens and max_tokens={request.max_tokens}; "
            "a request needs at least one of each",
            param="max_tokens" if request.prompt else "prompt",
        )
    if request.limit > min(max_model_len, max_servable_tokens):
        raise ContextTooLong(
            prompt_tokens=len(request.prompt),
            max_tokens=request.max_tokens,
            max_model_len=max_model_len,
            max_servable_tokens=max_servable_tokens,
        )
