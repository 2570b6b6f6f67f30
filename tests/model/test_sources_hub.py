"""`hf:` sources against a hub on this machine; each in a process of its own, for the library reads
its environment once."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from servekit.errors import SourceError
from servekit.model.sources_hub import HubSource, parse

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {
    "model.safetensors": b"weights",
    "config.json": b"{}",
    "chat_template.jinja": b"{{ x }}",
    "pytorch_model.bin": b"pickle",
    "modeling_tiny.py": b"code",
    "tiny.gguf": b"GGUF1",
}
FETCH = """
import sys
from servekit.errors import SourceError
from servekit.model.sources import fetch
try:
    print(fetch(sys.argv[1], sys.argv[2] or None, lambda phase, done, total: None))
except SourceError as error:
    print("refused:", error)
"""


class Handler(BaseHTTPRequestHandler):
    """The few answers of a hub that a download asks for; `gated` and `absent` are such models."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if "org/gated" in path:
            self.answer(403, b"", {"X-Error-Code": "GatedRepo", "X-Error-Message": "gated"})
        elif "org/tiny" not in path:
            self.answer(404, b"", {"X-Error-Code": "RepoNotFound"})
        elif "/gone" in path:
            self.answer(404, b"", {"X-Error-Code": "RevisionNotFound"})
        elif path.startswith("/api/") and "/tree/" in path:
            self.answer(200, json.dumps([entry(name) for name in FILES]).encode())
        elif path.startswith("/api/"):
            siblings = [{"rfilename": name} for name in FILES]
            info = {"id": "org/tiny", "sha": COMMIT, "siblings": siblings, "private": False}
            self.answer(200, json.dumps(info).encode())
        elif (content := FILES.get(path.rpartition("/")[2])) is not None:
            self.answer(200, content)
        else:
            self.answer(404, b"", {"X-Error-Code": "EntryNotFound"})

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        etag = hashlib.sha1(body).hexdigest()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{etag}"')
        self.send_header("X-Repo-Commit", COMMIT)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *words: object) -> None:
        """Silent."""


def entry(name: str) -> dict[str, object]:
    oid = hashlib.sha1(FILES[name]).hexdigest()
    return {"type": "file", "path": name, "size": len(FILES[name]), "oid": oid}


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a process that knows this hub."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    yield kept | {
        "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
        "HF_HOME": str(tmp_path / "hf"),
        "SERVEKIT_CACHE": str(tmp_path / "cache"),
        "NO_PROXY": "127.0.0.1",
    }
    server.shutdown()
    server.server_close()


def fetched(environment: dict[str, str], source: str, sha256: str = "") -> str:
    run = subprocess.run(
        [sys.executable, "-c", FETCH, source, sha256],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    return run.stdout.strip()


def test_a_snapshot_has_weights_and_tokenizer_but_no_pickle_and_no_code(hub: dict[str, str]):
    folder = Path(fetched(hub, "hf:org/tiny@main"))
    names = {path.name for path in folder.iterdir()}
    assert names == {"model.safetensors", "config.json", "chat_template.jinja"}


def test_a_snapshot_is_used_offline(hub: dict[str, str]):
    first = fetched(hub, "hf:org/tiny")
    assert fetched(hub | {"HF_HUB_OFFLINE": "1"}, "hf:org/tiny") == first


def test_one_gguf_file_of_a_model_is_fetched_and_checked(hub: dict[str, str]):
    sha256 = hashlib.sha256(FILES["tiny.gguf"]).hexdigest()
    path = fetched(hub, "hf:org/tiny/tiny.gguf@main", sha256)
    assert Path(path).read_bytes() == FILES["tiny.gguf"]
    assert f"has sha256 {sha256}" in fetched(hub, "hf:org/tiny/tiny.gguf@main", "0" * 64)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("hf:org/gated", "org/gated is gated; accept its licence on its page, and set HF_TOKEN"),
        ("hf:org/absent", "there is no model org/absent, or it is private: check the name"),
        ("hf:org/tiny@gone", "org/tiny has no revision 'gone'; name a branch, tag or commit"),
        ("hf:org/tiny/no.gguf", "org/tiny at main has no no.gguf; check its list of files"),
    ],
)
def test_what_the_hub_refuses_is_told_with_what_to_do(
    hub: dict[str, str], source: str, message: str
):
    said = fetched(hub, source)
    assert said.startswith(f"refused: {source}: ")
    assert message in said


def test_offline_without_a_copy_says_so(hub: dict[str, str]):
    said = fetched(hub | {"HF_HUB_OFFLINE": "1"}, "hf:org/tiny")
    assert "and the hub (HF_HUB_OFFLINE is set) cannot be asked; connect this machine once" in said


def test_a_hub_that_cannot_be_reached_is_named(hub: dict[str, str]):
    said = fetched(hub | {"HF_ENDPOINT": "http://127.0.0.1:9"}, "hf:org/tiny")
    assert "the hub at http://127.0.0.1:9 cannot be" in said


def test_a_checksum_cannot_be_that_of_a_snapshot(hub: dict[str, str]):
    said = fetched(hub, "hf:org/tiny", "0" * 64)
    assert "checksum of one file, but hf:org/tiny is a folder of several" in said


@pytest.mark.parametrize(
    ("source", "meaning"),
    [
        ("hf:org/name", HubSource("org/name", None, "main")),
        ("hf:org/name@v1/2", HubSource("org/name", None, "v1/2")),
        ("hf:org/name/a/b.gguf@abc", HubSource("org/name", "a/b.gguf", "abc")),
    ],
)
def test_a_source_is_model_file_and_revision(source: str, meaning: HubSource):
    assert parse(source) == meaning


@pytest.mark.parametrize("source", ["hf:name", "hf:", "hf:org/name/model.bin", "hf:org/name@"])
def test_a_source_that_names_no_model_is_refused(source: str):
    with pytest.raises(SourceError, match=r"write hf:org/name@revision, or hf:org/name/file\.gguf"):
        parse(source)
