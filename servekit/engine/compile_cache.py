"""Compiled Triton kernels: kept from one start to the next, and counted where they come too late.

    <cache>/triton/<fingerprint>/                 what Triton compiled
    <cache>/triton/<fingerprint>/manifest.jsonl   which kernels, for which kinds of arguments

Triton compiles a kernel at its first launch with arguments of another kind, for seconds. So what
was compiled once is noted, and brought back at the next start before anybody waits; a warm-up does
the rest. The folder is of these versions and this GPU alone: a change of any begins an empty one.
"""

import hashlib
import json
import logging
import os
import platform
import threading
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import servekit
from servekit.kernels.language import HAS_TRITON, triton
from servekit.kernels.target import interpreted, target
from servekit.model.sources_cache import cache_root

logger = logging.getLogger(__name__)

MANIFEST = "manifest.jsonl"
MOST = 4096
"""Entries of a manifest that are looked at; ours have some hundred."""
OURS = "servekit.kernels."


class Entry(NamedTuple):
    """A kernel's module and name, and Triton's own words for the kinds of its arguments."""

    module: str
    name: str
    specialization: str


def fingerprint(gpu: str) -> str:
    """Of all that a compiled kernel may depend on beside its source, which Triton looks at."""
    versions = [version(name) for name in ("triton", "torch")]
    facts = [servekit.__version__, *versions, platform.python_version(), platform.machine(), gpu]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]


class CompileCache:
    """Notes what is compiled from `begin` on; after `ready` that is too late, and counted."""

    def __init__(self, folder: Path, ours: str = OURS) -> None:
        """Modules whose name begins with `ours` are noted, and imported where the manifest says."""
        self.folder = folder
        self.ours = ours
        self.known: set[Entry] = set()
        self.serving = False
        self.late = 0
        """Compiled, or read back, since `ready`."""
        self._complained: set[str] = set()
        self._writing = threading.Lock()

    def begin(self) -> None:
        """Has Triton keep its cache here, where the user has named no folder (TRITON_CACHE_DIR),
        and say what it compiles."""
        os.environ.setdefault("TRITON_CACHE_DIR", str(self.folder))
        triton.knobs.runtime.jit_post_compile_hook = self.compiled

    def entries(self) -> list[Entry]:
        """Of the manifest; a line that cannot be read is passed over, as the last may be cut."""
        try:
            lines = (self.folder / MANIFEST).read_text(encoding="utf-8").splitlines()[:MOST]
        except (OSError, UnicodeDecodeError):
            return []
        return list(dict.fromkeys(entry for line in lines if (entry := self._entry(line))))

    def _entry(self, line: str) -> Entry | None:
        try:
            words = json.loads(line)
        except ValueError:
            return None
        if not isinstance(words, list) or len(words) != 3:
            return None
        if not all(isinstance(word, str) for word in words) or not words[0].startswith(self.ours):
            return None
        return Entry(*words)

    def preload(self, report: Callable[[int, int], None]) -> int:
        """Brings back what the manifest names; how many. What cannot be is compiled when met."""
        entries, done = self.entries(), 0
        self.known |= set(entries)
        for number, entry in enumerate(entries):
            report(number, len(entries))
            try:
                getattr(import_module(entry.module), entry.name).preload(entry.specialization)
            except Exception as fault:
                # a kernel that is no more, or is another now
                logger.info("%s is not brought back: %s", entry.name, type(fault).__name__)
            else:
                done += 1
        return done

    def ready(self) -> None:
        self.serving = True

    def compiled(self, *, fn: Any, compile: dict[str, Any], **_: Any) -> None:  # names are Triton's
        """Triton's hook; in the thread that launches."""
        entry = Entry(str(fn.module), str(fn.name), str(compile["specialization_data"]))
        if self.serving:
            self.late += 1
            if entry.name not in self._complained:
                self._complained.add(entry.name)
                logger.warning("kernel %s was compiled while requests wait for it", entry.name)
        with self._writing:
            if entry not in self.known and entry.module.startswith(self.ours):
                self.known.add(entry)
                self._note(entry)

    def _note(self, entry: Entry) -> None:
        """One write each: several engines may share the folder."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with (self.folder / MANIFEST).open("ab", buffering=0) as file:
                file.write(json.dumps(entry).encode() + b"\n")
        except OSError as error:
            logger.info("%s is not noted in %s: %s", entry.name, self.folder, error.strerror)


def compile_cache(*, on_gpu: bool) -> CompileCache | None:
    """That of the current GPU, begun; None where no Triton kernel is compiled."""
    if not on_gpu or not HAS_TRITON or interpreted():
        return None
    cache = CompileCache(cache_root() / "triton" / fingerprint(target().gpu))
    cache.begin()
    return cache
