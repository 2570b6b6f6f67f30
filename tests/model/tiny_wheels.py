"""Wheels of a few bytes, and a package index on this machine that can be made to stall."""

import threading
import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def make_wheel(
    folder: Path, package: str, files: dict[str, bytes], requires: tuple[str, ...] = ()
) -> Path:
    """`package-1.0-py3-none-any.whl`; `files` by path inside the wheel."""
    folder.mkdir(parents=True, exist_ok=True)
    name = package.replace("-", "_")
    wheel = folder / f"{name}-1.0-py3-none-any.whl"
    metadata = [f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0"]
    metadata += [f"Requires-Dist: {requirement}" for requirement in requires]
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, content in files.items():
            archive.writestr(path, content)
        archive.writestr(f"{info}/METADATA", "\n".join(metadata) + "\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return wheel


class Index:
    """A package index over HTTP for the wheels in a folder.

    While `stalled` is set, a wheel stops coming after its first half; `halfway` is set then.
    `downloads` counts how often each wheel was asked for.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.downloads: Counter[str] = Counter()
        self.released = threading.Event()
        self.released.set()
        self.halfway = threading.Event()
        self.url = ""

    @contextmanager
    def serve(self) -> Iterator["Index"]:
        index = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                index.answer(self)

            def log_message(self, *words: object) -> None:
                """Silent."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        self.url = f"http://127.0.0.1:{server.server_port}/simple"
        try:
            yield self
        finally:
            self.released.set()
            server.shutdown()
            server.server_close()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        name = request.path.rstrip("/").rpartition("/")[2]
        if name.endswith(".whl"):
            self._wheel(request, name)
            return
        prefix = name.replace("-", "_") + "-"
        links = [
            f'<a href="/files/{wheel.name}">{wheel.name}</a>'
            for wheel in self.folder.glob("*.whl")
            if wheel.name.startswith(prefix)
        ]
        body = f"<html><body>{''.join(links)}</body></html>".encode()
        self._head(request, "text/html", len(body))
        request.wfile.write(body)

    def _wheel(self, request: BaseHTTPRequestHandler, name: str) -> None:
        body = (self.folder / name).read_bytes()
        self.downloads[name] += 1
        self._head(request, "application/octet-stream", len(body))
        half = len(body) // 2
        try:
            request.wfile.write(body[:half])
            request.wfile.flush()
            self.halfway.set()
            self.released.wait(60)
            request.wfile.write(body[half:])
        except OSError:  # the client was killed, as some tests mean it to be
            return

    def _head(self, request: BaseHTTPRequestHandler, kind: str, length: int) -> None:
        request.send_response(200)
        request.send_header("Content-Type", kind)
        request.send_header("Content-Length", str(length))
        request.end_headers()
