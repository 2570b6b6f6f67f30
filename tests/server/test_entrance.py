"""Who may reach a server, and by which door: refused before anything is fetched."""

import os
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from servekit.config.compose import load
from servekit.errors import ConfigError
from servekit.planner.plan import plan
from servekit.server.entrance import check_entrance, is_loopback
from tests.conftest import tiny_config
from tests.server.keyed import key_file, line
from tests.server.test_launch import ROOT, Child


def config(**server: Any) -> Any:
    return tiny_config(server=server)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.0.1", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("example.org", False),
        ("127.0.0.1.example.org", False),
    ],
)
def test_a_server_for_other_machines_needs_keys(host: str, loopback: bool, tmp_path: Path) -> None:
    assert is_loopback(host) == loopback
    if loopback:
        check_entrance(config(host=host))
    else:
        with pytest.raises(ConfigError, match="is reached from other machines") as refused:
            check_entrance(config(host=host))
        assert "server.allow_anyone=true" in refused.value.message
    check_entrance(config(host=host, allow_anyone=True))
    check_entrance(config(host=host, api_keys=key_file(tmp_path, line("sk"))))


def test_keys_that_cannot_be_read_open_no_door(tmp_path: Path) -> None:
    for source in (str(tmp_path / "none"), "env:SERVEKIT_NO_SUCH", key_file(tmp_path)):
        with pytest.raises(ConfigError, match=r"server\.api_keys"):
            check_entrance(config(api_keys=source))


def test_to_let_anyone_in_and_to_ask_for_keys_contradict() -> None:
    with pytest.raises(ValueError, match="api_keys is set"):
        config(allow_anyone=True, api_keys="env:KEYS")


@pytest.mark.parametrize("one", ["tls_cert", "tls_key"])
def test_half_of_a_tls_pair_is_refused(one: str) -> None:
    with pytest.raises(ValueError, match="go together"):
        config(**{one: "/x"})


def test_the_public_server_asks_for_keys_and_does_not_start_without() -> None:
    public = load(["server=public"]).config
    assert public.server.api_keys == "env:SERVEKIT_API_KEYS"
    code = "import sys; from servekit.cli import main; sys.exit(main())"
    words = ["+recipe=chat_smollm2", "server=public", "server.port=0"]
    environment = {k: v for k, v in os.environ.items() if k != "SERVEKIT_API_KEYS"}
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=environment,
    )
    assert done.returncode == 2
    assert "the environment variable SERVEKIT_API_KEYS is not set" in done.stderr
    assert "listening" not in done.stderr


class Pair:
    """A certificate of our own, in files."""

    def __init__(self, folder: Path, name: str) -> None:
        authority = trustme.CA()
        issued = authority.issue_cert("127.0.0.1", "localhost")
        self.cert, self.key = str(folder / f"{name}.pem"), str(folder / f"{name}.key")
        self.authority = str(folder / f"{name}.ca")
        issued.cert_chain_pems[0].write_to_path(self.cert)
        issued.private_key_pem.write_to_path(self.key)
        authority.cert_pem.write_to_path(self.authority)


def test_a_tls_pair_is_checked_before_the_start(tmp_path: Path) -> None:
    one, other = Pair(tmp_path, "one"), Pair(tmp_path, "other")
    nothing = tmp_path / "nothing.pem"
    nothing.write_text("nothing")
    check_entrance(config(tls_cert=one.cert, tls_key=one.key))
    for cert, key, says in (
        (one.cert, other.key, "the key is not that of the certificate"),
        (one.cert, str(nothing), "is not a PEM file of its kind"),
        (str(nothing), one.key, "is not a PEM file of its kind"),
        (one.cert, str(tmp_path / "none"), f"server.tls_key: there is no file {tmp_path}/none"),
    ):
        with pytest.raises(ConfigError) as refused:
            check_entrance(config(tls_cert=cert, tls_key=key))
        assert says in refused.value.message


def test_an_encrypted_tls_key_is_refused_and_nobody_is_asked(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization as of

    pair = Pair(tmp_path, "one")
    key = of.load_pem_private_key(Path(pair.key).read_bytes(), None)
    Path(pair.key).write_bytes(
        key.private_bytes(
            of.Encoding.PEM, of.PrivateFormat.PKCS8, of.BestAvailableEncryption(b"secret")
        )
    )
    with pytest.raises(ConfigError, match="the key is encrypted"):
        check_entrance(config(tls_cert=pair.cert, tls_key=pair.key))


def test_a_plan_names_files_of_the_server_that_are_not_here(tmp_path: Path) -> None:
    pair = Pair(tmp_path, "one")
    here = plan(config(tls_cert=pair.cert, tls_key=pair.key, api_keys="env:KEYS")).warnings
    gone = plan(config(tls_cert=pair.cert, tls_key="/no/key", api_keys="/no/keys")).warnings
    assert not [text for text in here if "there is no file" in text]
    assert [text for text in gone if "there is no file" in text] == [
        "server.api_keys: there is no file /no/keys on this machine",
        "server.tls_key: there is no file /no/key on this machine",
    ]


def test_it_is_served_over_tls_and_not_without(tmp_path: Path) -> None:
    pair = Pair(tmp_path, "one")
    child = Child("serves", 0, 1.0, server={"tls_cert": pair.cert, "tls_key": pair.key})
    try:
        url = child.ready()
        assert url.startswith("https://127.0.0.1:")
        trust = ssl.create_default_context(cafile=pair.authority)
        assert httpx.get(f"{url}/livez", verify=trust).status_code == 200
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/livez")
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"{url.replace('https', 'http')}/livez")
    finally:
        child.process.kill()
        child.end()
