"""Traces from files and by name: `trace_of("azure_conv")`, `trace_of("requests.csv.gz")`.

What a file is, its content says and not its name: gzip by its first bytes, JSON by its first
character, the rest by its columns or keys.
"""

import gzip
import io
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import IO

from servekit.errors import ConfigError
from servekit.workload.csv_traces import read_csv
from servekit.workload.json_traces import read_lines, read_list
from servekit.workload.synthetic import SYNTHETIC, synthetic
from servekit.workload.trace import Builder, Trace

LONGEST_SNIFFED = 1 << 20
"""Characters of blank lines before the first that says something."""


def trace_of(name: str) -> Trace:
    """A trace that comes with servekit, or else the file of that name; not to be changed.

    A file is read once while it stays as it is: runs with several seeds replay it.
    """
    if name in SYNTHETIC:
        return synthetic(name)
    path = Path(name)
    if not path.is_file():
        return read(path)
    state = path.stat()
    return _read_once(path.resolve(), state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=2)
def _read_once(path: Path, changed_ns: int, size: int) -> Trace:
    return read(path)


def read(path: Path) -> Trace:
    """ConfigError where the file is not there, is no known trace, or has malformed requests."""
    if not path.is_file():
        raise ConfigError(
            f"workload.trace={path}: there is no such file, and of the traces that come with "
            f"servekit none has that name: {', '.join(SYNTHETIC)}",
            param="workload.trace",
        )
    builder = Builder(str(path))
    try:
        with _text(path) as text:
            first = text.read(LONGEST_SNIFFED).lstrip()[:1]
        if not first:
            raise _unreadable(path, "is empty")
        with _text(path) as text:
            if first == "[":
                read_list(text.read(), builder)
            elif first == "{":
                read_lines(text, builder)
            else:
                read_csv(text, builder)
    except UnicodeDecodeError as error:
        raise _unreadable(path, "is not text in UTF-8") from error
    except (OSError, EOFError, zlib.error) as error:
        raise _unreadable(path, f"cannot be read: {error}") from error
    return builder.trace()


def write_trace(trace: Trace, path: Path) -> None:
    """As JSON, a request a line; `read` gives the same trace again, but for what was dropped."""
    with path.open("w", encoding="utf-8") as file:
        for index in range(len(trace)):
            entry: dict[str, object] = {
                "arrival_s": trace.at[index] if trace.at else None,
                "input_tokens": trace.prompt_tokens[index],
                "output_tokens": trace.output_tokens[index],
                "session_id": trace.sessions[index] if trace.sessions else None,
                "tenant": trace.tenants[index] if trace.tenants else None,
                "priority": trace.priorities[index] if trace.priorities else None,
                "slo_class": trace.slo_classes[index] if trace.slo_classes else None,
            }
            if trace.blocks:
                entry |= {"prefix_hashes": trace.blocks[index], "block_size": trace.block_size}
            said = {key: value for key, value in entry.items() if value is not None}
            file.write(json.dumps(said) + "\n")


@contextmanager
def _text(path: Path) -> Iterator[IO[str]]:
    with path.open("rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        stream = gzip.GzipFile(fileobj=raw) if packed else raw
        # newlines as they are: the csv module wants them so
        yield io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")


def _unreadable(path: Path, why: str) -> ConfigError:
    return ConfigError(
        f"workload.trace={path} {why}; give a trace in CSV or JSON, gzipped or not",
        param="workload.trace",
    )
