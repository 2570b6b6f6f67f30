"""The ledger keeps every line it acknowledged, whole, whoever dies, renames or fills the disk."""

import fcntl
import multiprocessing
import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from servekit.errors import ConfigError, LedgerUnwritable
from servekit.telemetry import ledger as module
from servekit.telemetry.ledger import Ledger

REAL_WRITE = os.write


def instead(path: Path, write: Callable[[int, bytes], int]) -> Callable[[int, bytes], int]:
    """Of writes in this process, those to `path` go to `write`."""

    def either(file: int, data: bytes) -> int:
        mine = path.exists() and os.path.samestat(os.fstat(file), path.stat())
        return (write if mine else REAL_WRITE)(file, data)

    return either


def written(ledger: Ledger, *lines: bytes) -> None:
    """Returns once all are acknowledged."""
    for future in [ledger.write(line) for line in lines]:
        future.result(10)


def test_a_line_that_is_acknowledged_is_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    ledger = Ledger(str(path))
    for number in range(20):
        written(ledger, b"%d\n" % number)
        assert path.read_bytes().split()[-1] == b"%d" % number
    ledger.close()


def test_lines_that_wait_are_one_write_and_keep_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ledger"
    ledger = Ledger(str(path))
    writes: list[bytes] = []

    def count(file: int, data: bytes) -> int:
        writes.append(data)
        return REAL_WRITE(file, data)

    monkeypatch.setattr(module.os, "write", instead(path, count))
    with module.Locked(os.open(path, os.O_RDWR)):  # somebody else writes: they have to wait
        futures = [ledger.write(b"%d\n" % number) for number in range(100)]
        assert not any(future.done() for future in futures[1:])
    for future in futures:
        future.result(10)
    ledger.close()
    assert b"".join(writes) == path.read_bytes() == b"".join(b"%d\n" % n for n in range(100))
    assert len(writes) < 100


@pytest.mark.parametrize("torn", [b'{"id": "half', b"{" + b"x" * 200_000, b"\0" * 5000])
@pytest.mark.parametrize("before", [b"", b"whole\n"])
def test_a_torn_last_line_is_cut_off_at_the_start(
    tmp_path: Path, torn: bytes, before: bytes
) -> None:
    path = tmp_path / "ledger"
    path.write_bytes(before + torn)
    ledger = Ledger(str(path))
    assert path.read_bytes() == before
    written(ledger, b"new\n")
    assert path.read_bytes() == before + b"new\n"
    ledger.close()


def test_what_another_server_tore_is_cut_off_before_the_next_line(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    ledger = Ledger(str(path))
    written(ledger, b"one\n")
    with path.open("ab") as other:
        other.write(b"hal")
    written(ledger, b"two\n")
    assert path.read_bytes() == b"one\ntwo\n"
    ledger.close()


def test_after_a_rename_the_next_line_begins_a_new_file(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    ledger = Ledger(str(path))
    written(ledger, b"one\n")
    path.rename(tmp_path / "ledger.1")
    written(ledger, b"two\n")
    ledger.close()
    assert (tmp_path / "ledger.1").read_bytes() == b"one\n"
    assert path.read_bytes() == b"two\n"


def test_a_write_that_the_disk_cuts_short_leaves_nothing_and_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "ledger"
    ledger = Ledger(str(path))
    written(ledger, b"one\n")
    cut = instead(path, lambda file, data: REAL_WRITE(file, data[:3]))
    monkeypatch.setattr(module.os, "write", cut)
    with pytest.raises(LedgerUnwritable, match="try again") as refused:
        ledger.write(b"longer\n").result(10)
    assert (refused.value.status, refused.value.retry_after_s) == (503, 1.0)
    assert "3 of 7 bytes" in caplog.text
    monkeypatch.undo()
    written(ledger, b"two\n")
    ledger.close()
    assert path.read_bytes() == b"one\ntwo\n"


def test_a_full_disk_is_said_and_heals(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    ledger = Ledger(str(path))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4, before[1]))
        written(ledger, b"one\n")
        with pytest.raises(LedgerUnwritable):
            ledger.write(b"two\n").result(10)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    written(ledger, b"three\n")
    ledger.close()
    assert path.read_bytes() == b"one\nthree\n"


def write_many(path: str, name: str) -> None:
    ledger = Ledger(path)
    for number in range(200):
        ledger.write(f"{name} {number} {'x' * 100}\n".encode()).result(30)
    ledger.close()


def test_who_keeps_the_file_locked_holds_up_nobody_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ledger"
    ledger = Ledger(str(path))
    monkeypatch.setattr(module, "LOCK_S", 0.1)
    with path.open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(LedgerUnwritable):
            ledger.write(b"{}\n").result(10)
    written(ledger, b'{"a":1}\n')
    ledger.close()
    assert path.read_bytes() == b'{"a":1}\n'


def test_several_servers_write_to_one_file(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    spawn = multiprocessing.get_context("spawn")
    servers = [spawn.Process(target=write_many, args=(str(path), name)) for name in "abc"]
    for server in servers:
        server.start()
    for server in servers:
        server.join(60)
    lines = path.read_text().splitlines()
    assert len(lines) == 600
    assert all(line.endswith("x" * 100) for line in lines)
    assert {tuple(line.split()[:2]) for line in lines} == {
        (name, str(number)) for name in "abc" for number in range(200)
    }


def test_what_is_written_is_on_the_disk_soon_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading

    synced = threading.Event()
    monkeypatch.setattr(module.os, "fsync", lambda file: synced.set())
    ledger = Ledger(str(tmp_path / "ledger"))
    written(ledger, b"one\n")
    assert synced.wait(10), "nobody wrote after it"
    synced.clear()
    written(ledger, b"two\n")
    ledger.close()
    assert synced.is_set()


@pytest.mark.parametrize("path", ["/no/such/folder/ledger", "/dev/null", "."])
def test_a_place_that_cannot_be_written_is_refused_at_the_start(path: str) -> None:
    with pytest.raises(ConfigError, match=f"telemetry.ledger: {path} cannot be written"):
        Ledger(path)


def test_who_stops_waiting_does_not_stop_the_line(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path / "ledger"))
    assert not ledger.write(b"one\n").cancel()
    written(ledger, b"two\n")
    ledger.close()
    assert (tmp_path / "ledger").read_bytes() == b"one\ntwo\n"


def test_a_file_that_is_no_ledger_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "photo"
    path.write_bytes(b"not lines" * 1000)
    with pytest.raises(ConfigError, match="no line of a ledger"):
        Ledger(str(path))
    assert path.read_bytes() == b"not lines" * 1000
