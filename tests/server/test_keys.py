"""The file of keys: its lines, what is wrong with them, and how it changes under a server."""

import json
import logging
import os
from hashlib import sha256
from pathlib import Path

import pytest

from servekit.cli import main
from servekit.errors import ConfigError, Unauthorized
from servekit.server.caller import Callers
from servekit.server.keys import KeyRing, parse_keys, read_keys
from servekit.server.wire import ChatRequest
from tests.server.keyed import key_file, line

BODY = ChatRequest(model="tiny", messages=[])


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_line_is_a_key_and_a_comment_is_none() -> None:
    text = "# ours\n\n" + line("sk", id="first", access=["admin"], max_concurrent=3)
    (key,) = parse_keys(text, "x")
    assert (key.tenant, key.name, key.access, key.max_concurrent) == (
        "acme",
        "first",
        ("admin",),
        3,
    )


def test_without_an_id_the_hash_names_it() -> None:
    (key,) = parse_keys(line("sk"), "x")
    assert key.name == sha256(b"sk").hexdigest()[:8]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has no key"),
        ("{", "line 1 of x is not a key"),
        (line("sk") + "\n" + '{"tenant": "a"}', "line 2 of x is not a key"),
        (line("sk", tenant="a b"), "is not a key"),
        (line("sk", tenant=""), "is not a key"),
        (line("sk", acces=["admin"]), "unknown field `acces`"),
        (line("sk", access=["root"]), "is not a key"),
        (line("sk", max_concurrent=0), "is not a key"),
        ('{"tenant": "a", "sha256": "sk-plain"}', "is not a key"),
        (line("sk", id="a") + "\n" + line("sk", id="b"), "two keys of sha256"),
        (line("sk", id="a") + "\n" + line("ks", id="a"), "two keys of name a"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_its_line(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_keys(text, "x")
    assert says in refused.value.message
    assert "sk-plain" not in refused.value.message


def test_a_key_itself_in_the_file_is_refused_and_not_said() -> None:
    with pytest.raises(ConfigError, match="unknown field `key`") as refused:
        parse_keys('{"tenant": "a", "key": "sk-plain"}', "x")
    assert "sk-plain" not in refused.value.message


def test_keys_may_stand_in_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="variable KEYS is not set"):
        read_keys("env:KEYS")
    monkeypatch.setenv("KEYS", line("sk-one") + "\n" + line("sk-two"))
    assert len(read_keys("env:KEYS")) == 2


@pytest.mark.parametrize("content", [None, b"\xff"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "keys"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=f"{path} cannot be read"):
        read_keys(str(path))


def test_keys_change_without_a_restart_within_a_second(tmp_path: Path) -> None:
    clock = Clock()
    path = key_file(tmp_path, line("sk-old"))
    ring = KeyRing(path, clock)
    new = tmp_path / "new"
    new.write_text(line("sk-new"))
    new.rename(path)
    assert ring.find("sk-old") is not None
    clock.now = 1.0
    assert ring.find("sk-old") is None
    assert ring.find("sk-new") is not None


@pytest.mark.parametrize("change", ["broken", "empty", "gone"])
def test_a_broken_new_file_keeps_the_old_keys_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, change: str
) -> None:
    clock = Clock()
    path = Path(key_file(tmp_path, line("sk-old")))
    ring = KeyRing(str(path), clock)
    if change == "gone":
        path.unlink()
    else:
        path.write_text("{" if change == "broken" else "")
    with caplog.at_level(logging.INFO):
        for clock.now in (1.0, 2.0, 3.0):
            assert ring.find("sk-old") is not None
        assert caplog.text.count("the keys of before stay in force") == 1
        path.write_text(line("sk-new"))
        os.utime(path, ns=(1, 1))
        clock.now = 4.0
        assert ring.find("sk-old") is None
        assert ring.find("sk-new") is not None


def test_two_keys_of_a_tenant_share_a_salt_and_two_tenants_do_not(tmp_path: Path) -> None:
    path = key_file(tmp_path, line("sk-1"), line("sk-2"), line("sk-3", tenant="other"))
    callers = Callers(KeyRing(path))
    one, two, three = (callers.caller(f"Bearer sk-{n}", BODY) for n in (1, 2, 3))
    assert (one.tenant, two.tenant, three.tenant) == ("acme", "acme", "other")
    assert one.salt == two.salt != three.salt
    assert one.key != two.key


def test_a_tenant_shares_no_salt_with_a_key_of_its_name(tmp_path: Path) -> None:
    secret = bytes(32)
    named = Callers(KeyRing(key_file(tmp_path, line("sk"))), secret).caller("Bearer sk", BODY)
    assert named.salt != Callers(None, secret).caller("Bearer acme", BODY).salt


def test_who_is_not_known_is_no_caller(tmp_path: Path) -> None:
    callers = Callers(KeyRing(key_file(tmp_path, line("sk"))))
    for header in (None, "", "Bearer", "Bearer no", "Basic sk"):
        with pytest.raises(Unauthorized):
            callers.caller(header, BODY)


def test_keys_are_compared_whole_and_in_constant_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return False

    ring = KeyRing(key_file(tmp_path, line("sk")))
    monkeypatch.setattr("hmac.compare_digest", compare)
    assert ring.find("sk") is None, "only that comparison may say yes"
    assert compared == [(sha256(b"sk").digest(),) * 2]


def test_a_new_key_is_shown_once_and_its_line_lets_it_in(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = "keys new --tenant acme --id laptop --access inference,admin --tokens-per-minute 600"
    assert main(words.split()) == 0
    out, err = capsys.readouterr()
    secret = err.split()[-1]
    assert secret.startswith("sk-")
    assert secret not in out
    found = KeyRing(key_file(tmp_path, out.strip())).find(secret)
    assert found is not None
    assert (found.name, found.access) == ("laptop", ("inference", "admin"))
    assert (found.tokens_per_minute, found.max_concurrent) == (600, None)


def test_a_new_key_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "new", "--tenant", "acme", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["line"]["sha256"] == sha256(made["key"].encode()).hexdigest()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("keys", "servekit keys new --tenant NAME"),
        ("keys new", "a key belongs to somebody"),
        ("keys old --tenant a", "there is nothing else"),
        ("keys new --tenant a/b", "this makes no key"),
        ("keys new --tenant a --access root", "this makes no key"),
        ("keys new --tenant a --max-concurrent few", "--max-concurrent is a whole number"),
        ("plan --tenant a", "--tenant is for servekit keys"),
    ],
)
def test_words_that_make_no_key_are_refused(
    words: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words.split()) == 2
    assert says in capsys.readouterr().err
