"""What a client sends stays out of the log, whatever goes wrong, unless that is asked for."""

import contextlib
import json
import signal

import httpx
import pytest

from tests.server.conftest import chat_body, eventually
from tests.server.test_launch import Child

MARK = "xyzzy-my-secret"
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


def send_everything(url: str) -> list[int]:
    """Good and bad requests with the mark in each; the statuses."""
    text = {"model": "tiny", "prompt": f"{MARK} prompt"}
    bodies: list[tuple[str, object]] = [
        (CHAT, chat_body(MARK)),
        (CHAT, chat_body(MARK, stream=True)),
        (COMPLETIONS, text),
        (COMPLETIONS, {**text, "echo": True, "logprobs": None}),
        ("/tokenize", {"prompt": MARK}),
        (CHAT, chat_body(MARK, n=99)),
        (CHAT, chat_body(MARK, tools=[{"type": MARK}])),
        (CHAT, chat_body(MARK, stop=[MARK] * 20)),
        (CHAT, chat_body(MARK, **{MARK: MARK})),
        (CHAT, chat_body(MARK, model=MARK)),
        (CHAT, chat_body(MARK * 100)),
        (CHAT, {"model": "tiny", "messages": [{"role": "tool", "content": MARK}]}),
        (CHAT, chat_body(f"break {MARK}")),
        (CHAT, chat_body(f"break {MARK}", stream=True)),
        (COMPLETIONS, {**text, "prompt": f"break {MARK}"}),
        (COMPLETIONS, {**text, "prompt": f"raise {MARK}"}),
    ]
    with httpx.Client(base_url=url, timeout=20) as http:
        statuses = [http.post(path, json=body).status_code for path, body in bodies]
        for broken in (f'{{"{MARK}', f'"{MARK}"', f"\xff{MARK}".encode("latin-1")):
            statuses.append(
                http.post(
                    CHAT, content=broken, headers={"content-type": "application/json"}
                ).status_code
            )
        with (
            contextlib.suppress(httpx.HTTPError),
            http.stream("POST", CHAT, json=chat_body(MARK, stream=True)) as left,
        ):
            next(left.iter_lines())
    return statuses


@pytest.mark.parametrize("log_prompts", [False, True])
def test_no_prompt_is_in_the_log_unless_that_is_switched_on(log_prompts: bool) -> None:
    child = Child("breaks", 0, 5.0, telemetry={"log_prompts": log_prompts})
    try:
        url = child.ready()
        assert {200, 400, 404, 500} == set(send_everything(url))
        eventually(lambda: child.said.count("unexpected error") == 4)
        eventually(lambda: "nobody caught this" in child.said)
        eventually(lambda: "client left a stream" in child.said)
        child.process.send_signal(signal.SIGTERM)
        assert child.end() == 0
    finally:
        child.process.kill()
    assert "DEBUG" in child.said
    assert "ValueError" in child.said
    assert "launch_child.py" in child.said, "where it was raised is said"
    assert (MARK in child.said) == log_prompts
    assert (f"user: {MARK}" in child.said) == log_prompts
    assert (f"cannot take break {MARK}" in child.said) == log_prompts


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_gets_an_id_of_a_fault_that_the_log_has_and_no_trace(stream: bool) -> None:
    child = Child("breaks", 0, 5.0)
    try:
        answer = httpx.post(
            f"{child.ready()}{CHAT}", json=chat_body("break it", stream=stream), timeout=20
        )
        assert answer.status_code == 500
        error = json.loads(answer.text)["error"]
        eventually(lambda: error["error_id"] in child.said)
        for inner in ("Traceback", "ValueError", ".py", "break it"):
            assert inner not in answer.text
    finally:
        child.process.kill()
        child.end()
