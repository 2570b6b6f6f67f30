"""The live page in a real browser: Debian's chromium, without a window and without a network."""

import os
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from servekit.engine.messages import Event, Stats
from tests.conftest import tiny_config
from tests.server.conftest import FakeEngine, Running, chat_body, says

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
WHY = "chromium is not installed: apt-get install -y chromium"
NOWHERE_ELSE = "MAP * ~NOTFOUND , EXCLUDE 127.0.0.1"
WIDTH = re.compile(r'class="main-svg"[^>]*? width="(\d+)"')
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module", autouse=True)
def chromium() -> None:
    """`make test` gets it where it can; elsewhere the reason is printed."""
    if CHROMIUM is None:
        pytest.skip(WHY)


def stats() -> Stats:
    """A cache that is used, a queue, and nothing else."""
    counts = {name: 0 for name in Stats.__struct_fields__}
    return msgspec.convert(
        counts
        | {
            "running": 3,
            "waiting": 2,
            "blocks_total": 64,
            "blocks_free": 48,
            "blocks_remembering": 8,
            "block_size": 16,
            "prefix_miss_tokens_total": {},
            "refused_total": {},
            "predicted_ttft_s": None,
        },
        Stats,
    )


@pytest.fixture(scope="module")
def busy(start_server: Callable[..., Running]) -> Iterator[Running]:
    """A server that has answered some requests, and is answering one for as long as the tests."""
    engine = FakeEngine(stats=stats(), script=says("word " * 30, end=None))
    engine.events = [Event(0, "seated", 0.0, 0.0, 0)]
    config = tiny_config(slo={"ttft_ms": 500.0, "tpot_ms": 100.0})
    server = start_server(engine, config)
    with server.client() as client:
        for _ in range(20):
            client.post(CHAT, json=chat_body(max_tokens=20))
        engine.step_s = 0.5
        talking = threading.Thread(
            target=lambda: client.post(CHAT, json=chat_body(max_tokens=200), timeout=120)
        )
        talking.start()
        yield server
        engine.step_s = 0.0
        talking.join(60)


def browse(url: str, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """The page a while after it was opened; what its console says is in `stderr`."""
    assert CHROMIUM is not None
    command = [CHROMIUM, "--headless=new", "--disable-gpu", "--disable-dev-shm-usage"]
    command += ["--no-sandbox"] if os.geteuid() == 0 else []
    command += [
        f"--user-data-dir={folder}",
        "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
    ]
    command += ["--enable-logging=stderr", "--v=0", "--no-first-run", "--disable-sync"]
    command += ["--virtual-time-budget=6000", "--hide-scrollbars", *options, url]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)


def complaints(stderr: str) -> list[str]:
    """What a console says of errors and of what a policy refused."""
    return [line for line in stderr.splitlines() if "CONSOLE" in line]


def test_every_figure_is_drawn_and_nothing_is_complained_of(busy: Running, tmp_path: Path) -> None:
    seen = browse(f"{busy.url}/dashboard", tmp_path, "--dump-dom", "--window-size=1400,1400")
    assert complaints(seen.stderr) == []
    dom = seen.stdout
    assert 'data-state="live"' in dom
    for figure in ("seats", "requests", "kv", "ttft", "tpot", "tokens"):
        place = dom.index(f'id="{figure}"')
        assert "main-svg" in dom[place : place + 3000], f"{figure} is not drawn"
    tiles = re.findall(r'<div class="tile[^"]*"><b>([^<]*)</b><span>([^<]*)</span>', dom)
    assert ("3", "running, of 8 seats") in tiles
    assert ("25 %", "KV, of 1,024 tokens") in tiles
    assert any(label == "TTFT p95, target 500" for _, label in tiles)
    assert "latest 20 answers, ms" in dom
    rows = re.findall(r"<tr><td>([^<]*)</td>", dom)
    assert "KV capacity, tokens" in rows
    assert len(rows) == 5


@pytest.mark.parametrize("width", [500, 1400])
def test_the_page_is_no_wider_than_the_window(busy: Running, tmp_path: Path, width: int) -> None:
    picture = tmp_path / "page.png"
    size = f"--window-size={width},1000"
    browse(f"{busy.url}/dashboard", tmp_path, f"--screenshot={picture}", size)
    assert picture.stat().st_size > 20_000, "there is nothing on it"
    seen = browse(f"{busy.url}/dashboard", tmp_path, "--dump-dom", size)
    widths = [int(found) for found in WIDTH.findall(seen.stdout)]
    assert widths
    assert max(widths) <= width


def test_a_server_that_refuses_is_asked_again_with_a_key(
    busy: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from servekit.errors import Unauthorized

    def refuse(self: object, authorization: str | None, access: str) -> None:
        raise Unauthorized("a key, please")

    monkeypatch.setattr(type(busy.service.callers), "authorize", refuse)
    dom = browse(f"{busy.url}/dashboard", tmp_path, "--dump-dom").stdout
    assert 'data-state="refused"' in dom
    assert '<form id="key-form">' in dom
    assert "a key is needed" in dom
