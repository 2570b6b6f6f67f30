"""Who sends a request, and what the engine is told of it."""

from hashlib import sha256
from typing import Any

import httpx
import pytest

from servekit.engine.messages import Caller
from servekit.errors import ConfigError, TemplateError
from servekit.server.caller import Callers
from servekit.server.pinned import pinned_tokens
from servekit.server.wire import ChatRequest
from tests.server.conftest import ByteTokenizer, Running, chat_body

CHAT = "/v1/chat/completions"


def sent(server: Running, http: httpx.Client, key: str | None, **fields: Any) -> Caller:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    answer = http.post(CHAT, json=chat_body(**fields), headers=headers)
    assert answer.status_code == 200, answer.text
    return server.engine.streams[-1].caller


def test_tenants_have_names_and_salts_of_their_own(server: Running, http: httpx.Client) -> None:
    first, again, other, nobody = (
        sent(server, http, key) for key in ("sk-one", "sk-one", "sk-two", None)
    )
    assert first == again
    assert first.tenant == sha256(b"sk-one").hexdigest()[:16]
    assert nobody.tenant == ""
    assert len({first.salt, other.salt, nobody.salt}) == 3
    assert first.salt not in (b"", sha256(b"sk-one").digest())


def test_salts_are_new_at_each_start() -> None:
    body = ChatRequest(model="tiny", messages=[])
    one, other = (Callers().caller("Bearer sk-one", body) for _ in range(2))
    assert one.tenant == other.tenant
    assert one.salt != other.salt


def test_what_is_not_a_bearer_key_is_nobody() -> None:
    body = ChatRequest(model="tiny", messages=[])
    for header in ("", "Bearer", "Bearer ", "Basic dXNlcjpwYXNz"):
        assert Callers().caller(header, body).tenant == ""
    assert Callers().caller("bearer  sk ", body).tenant == sha256(b"sk").hexdigest()[:16]


def test_the_body_says_how_urgent_it_is(server: Running, http: httpx.Client) -> None:
    plain = sent(server, http, None)
    assert (plain.priority, plain.slo_class) == (0, "interactive")
    asked = sent(server, http, None, priority=-3, slo_class="batch")
    assert (asked.priority, asked.slo_class) == (-3, "batch")


@pytest.mark.parametrize(
    ("field", "value", "param"),
    [
        ("priority", 2**40, "priority"),
        ("priority", "high", "/priority"),
        ("slo_class", "best", "/slo_class"),
    ],
)
def test_urgency_that_means_nothing_is_refused(
    http: httpx.Client, field: str, value: object, param: str
) -> None:
    answer = http.post(CHAT, json=chat_body(**{field: value}))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


class UserTurn(ByteTokenizer):
    """Its template puts the system prompt into the user's turn."""

    def render_chat(self, messages: Any, *args: Any, **words: Any) -> str:
        system, user = (message["content"] for message in messages)
        return f"<user>{system} {user}<model>"


class NoSystem(ByteTokenizer):
    def render_chat(self, messages: Any, *args: Any, **words: Any) -> str:
        raise TemplateError("system role not supported")


class NoTemplate(ByteTokenizer):
    has_chat_template = False


def test_a_pinned_prompt_is_what_conversations_with_it_begin_with() -> None:
    assert pinned_tokens(["Be kind."], ByteTokenizer()) == [list(b"system: Be kind.\nuser: ")]
    assert pinned_tokens(["Be kind."], UserTurn()) == [list(b"<user>Be kind. ")]
    assert pinned_tokens(["Be kind."], NoTemplate()) == [[256, *b"Be kind."]]


def test_a_pinned_prompt_that_the_template_does_not_take_ends_the_start() -> None:
    with pytest.raises(ConfigError, match=r"'Be kind\.'.*system role not supported"):
        pinned_tokens(["Be kind."], NoSystem())
