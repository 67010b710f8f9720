"""A password is in nothing that a command prints or writes, however it came and for every failure."""

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import pytest

from stagedb.store import Store, embedded
from stagedb.store.store_settings import known_secrets, without_secrets
from tests.cli.conftest import Run

SECRET = "hunter2 'quoted\\\" ü@/#?:%"
ENCODED = quote(SECRET, safe="")
HERE, THERE = "127.0.0.1:1", "db.example.org:7687"
WAYS = ("NEO4J_PASSWORD", "NEO4J_URI", "--store", "password", "uri", "password_env")


@pytest.fixture
def offering(offline: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Call a command with the address of a server that does not answer, and the password given in one of the ways."""

    def call(way: str, host: str, *arguments: str) -> str:
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        config, plain, full = tmp_path / "config.toml", f"bolt://ann@{host}", f"bolt://ann:{ENCODED}@{host}"
        table = {
            "password": f"uri = {json.dumps(plain)}\npassword = {json.dumps(SECRET)}",
            "password_env": f"uri = {json.dumps(plain)}\nusername = 'ann'\npassword_env = 'TEAM'",
            "uri": f"uri = {json.dumps(full)}",
        }
        config.write_text(f"[stores.team]\n{table.get(way, '')}\n", encoding="utf-8")
        monkeypatch.setenv("STAGEDB_CONFIG", str(config))
        for name, value in {
            "NEO4J_PASSWORD": {"NEO4J_PASSWORD": SECRET, "NEO4J_URI": plain},
            "NEO4J_URI": {"NEO4J_URI": full},
            "password_env": {"TEAM": SECRET},
        }.get(way, {}).items():
            monkeypatch.setenv(name, value)
        store = {"--store": ("--store", full)}.get(way, () if way.isupper() else ("--store", "team"))
        ran = offline(*arguments, *store)
        assert ran.status != 0
        files = [each.read_text(encoding="utf-8") for each in tmp_path.glob("stagedb-error-*")]
        return "\n".join((ran.out, ran.err, *files))

    return call


def parts_of(secret: str) -> set[str]:
    return {secret, repr(secret)[1:-1], quote(secret, safe=""), "hunter2"}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("arguments", "host", "expected"),
    [
        (("ls", "-v"), HERE, "no store answers at bolt://127.0.0.1:1"),
        (("store", "status"), HERE, "no store answers at bolt://127.0.0.1:1"),
        (("export", "-v"), THERE, "unencrypted"),
        (("query", "classes", "--format", "jsn"), HERE, "jsn"),
    ],
)
def test_expected_errors_have_no_password(
    offering: Any, way: str, arguments: tuple[str, ...], host: str, expected: str
) -> None:
    text = offering(way, host, *arguments)
    assert expected in text
    assert not [part for part in parts_of(SECRET) if part in text]


@pytest.mark.parametrize("way", WAYS)
def test_the_details_of_an_unexpected_error_have_no_password(
    offering: Any, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(uri: str, auth: tuple[str, str], *rest: object) -> None:
        assert auth == ("ann", SECRET), "the password did not arrive"
        raise RuntimeError(
            f"a driver that shows too much: {auth!r} {auth[1]} bolt://{auth[0]}:{auth[1]}@host {ENCODED}"
        )

    monkeypatch.setattr("stagedb.store.opening.open_driver", failing)
    text = offering(way, HERE, "ls", "-v")
    assert "a driver that shows too much" in text
    assert "Traceback" in text
    assert not [part for part in parts_of(SECRET) if part in text]


@pytest.mark.parametrize(
    "address",
    [
        "neo4j:hunter2@db.example.org",
        "bolt:/neo4j:hunter2@db.example.org",
        "bolt//neo4j:hunter2@db.example.org:7687",
        "bolt://neo4j:hunter2@db.example.org:port",
        "bolt://neo4j:hunter2@db.example.org/name",
        "blt://neo4j:hunter2@127.0.0.1:1",
        "bolt://neo4j:hunter2@",
        "bolt://neo4j:hunter2@[::1",
    ],
)
def test_a_malformed_address_is_refused_without_its_password(
    offline: Run, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for words in (("ls", "--store", address), ("ls", f"--store={address}"), ("ls", f"--stor={address}"), (address,)):
        ran = offline(*words)
        assert (ran.status, "hunter2" in ran.out + ran.err) == (2, False), ran.err
    monkeypatch.setenv("NEO4J_URI", address)
    ran = offline("ls")
    assert (ran.status, "hunter2" in ran.out + ran.err) == (2, False), ran.err


def test_a_broken_configuration_is_refused_without_its_lines(offline: Run, tmp_path: Path, monkeypatch: Any) -> None:
    config = tmp_path / "config.toml"
    monkeypatch.setenv("STAGEDB_CONFIG", str(config))
    for line in (
        "password = hunter2",
        "password = 'hunter2",
        "password = 'hunter2'\npassword = 'x'",
        "passwd = 'hunter2'",
    ):
        config.write_text(f"[stores.team]\nuri = 'bolt+s://host'\n{line}\n", encoding="utf-8")
        ran = offline("ls", "--store", "team")
        assert (ran.status, "hunter2" in ran.out + ran.err) == (2, False)
        assert "config.toml" in ran.err


def test_the_engine_shows_its_passwords_to_nobody(stagedb_home: Path, embedded_engine: Store) -> None:
    endpoint = embedded.running(stagedb_home)
    assert endpoint is not None
    process = psutil.Process(endpoint.pid)
    visible = [*process.cmdline(), *process.environ().values(), repr(endpoint)]
    logs = [*stagedb_home.glob("*.log"), *stagedb_home.glob("data/log/*"), *stagedb_home.glob("data/*.log")]
    visible += [each.read_text(encoding="utf-8", errors="replace") for each in logs]
    assert logs
    assert not [text for text in visible if endpoint.password in text or endpoint.reader_password in text]


def test_short_words_are_no_secrets(tmp_path: Path) -> None:
    """Otherwise the password `a` would turn a report into stars."""
    found = known_secrets(["--store=bolt://me:abc@host"], {"NEO4J_PASSWORD": "abcde"}, tmp_path / "none.toml")
    assert found == {"abcde"}
    assert without_secrets("abc abcde xabcdey", found) == "abc *** x***y"
    # Text that is no Unicode, as from a wrong encoding, is hidden too.
    assert without_secrets("x\udcf6yz.", {"x\udcf6yz"}) == "***."
