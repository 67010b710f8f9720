"""`store add`, `use`, `list` and `remove`, as a new user calls them; passwords stay out of files and output."""

import io
import json
import multiprocessing
import os
import stat
import sys
import tomllib
from pathlib import Path
from typing import Any

import keyring
import keyring.backend
import pytest

from stagedb.api import stores
from stagedb.errors import UsageError
from stagedb.store import Store
from stagedb.store.store_settings import config_file, split_uri
from tests.cli.conftest import Run

SECRET = "hunter2-of-the-team"


class DictKeyring(keyring.backend.KeyringBackend):
    """A keyring in memory."""

    priority = 1

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kept: dict[tuple[str, str], str] = {}

    def get_password(self, service: str, username: str) -> str | None:
        return self.kept.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self.kept[service, username] = password

    def delete_password(self, service: str, username: str) -> None:
        del self.kept[service, username]


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> DictKeyring:
    made = DictKeyring()
    for name in ("get_password", "set_password", "delete_password"):
        monkeypatch.setattr(keyring, name, getattr(made, name))
    return made


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(f"{SECRET}\n".encode())))


def config() -> dict[str, Any]:
    return tomllib.loads(config_file(os.environ).read_text(encoding="utf-8"))


def test_from_nothing_to_a_default_and_back(offline: Run) -> None:
    added = offline(
        *("store", "add", "team", "bolt+s://ann@graphs.example.org", "--password-env", "TEAM", "--database", "traces"),
        *("--workspace", "lab"),
    )
    assert added.status == 0, added.err
    assert "stagedb store use team" in added.err
    entry = {"uri": "bolt+s://graphs.example.org:7687", "username": "ann", "password_env": "TEAM"}
    assert config() == {"stores": {"team": {**entry, "database": "traces", "workspace": "lab"}}}
    assert stat.S_IMODE(config_file(os.environ).stat().st_mode) == 0o600
    assert offline("store", "use", "team").status == 0
    rows = json.loads(offline("store", "list", "-f", "json").out)
    assert [(row["name"], row["used"]) for row in rows] == [
        ("team", f"default in {config_file(os.environ)}"),
        ("embedded", None),
    ]
    assert rows[0]["password"] == "variable TEAM"
    ran = offline("ls")
    assert (ran.status, "variable TEAM, which is not set" in ran.err) == (2, True), ran.err
    removed = offline("store", "remove", "team")
    assert "your default" in removed.err
    assert config() == {}


def test_a_change_keeps_comments_and_what_else_is_there(offline: Run) -> None:
    text = "# mine\nworkspace = 'lab'  # ours\n\n[stores.old]\n# the first one\nuri = 'bolt://localhost'\n"
    config_file(os.environ).write_text(text, encoding="utf-8")
    assert offline("store", "add", "new", "bolt://localhost:7688").status == 0
    assert offline("store", "use", "new").status == 0
    kept = config_file(os.environ).read_text(encoding="utf-8")
    assert [line for line in text.splitlines() if line not in kept.splitlines()] == []
    assert (config()["default"], config()["workspace"]) == ("new", "lab")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("team", f"bolt+s://me:{SECRET}@host"), "URI has a password, which everybody on this machine can see"),
        (("team", "host"), "URI is not the URI of a store"),
        (("a/b", "bolt://localhost"), "NAME is not a name for a store"),
        (("embedded", "bolt://localhost"), "NAME is not a name for a store"),
        (("team", "bolt+s://host", "--username", "me"), "an account needs its password: add --keyring"),
        (("team", "bolt+s://a@host", "--username", "b", "--keyring"), "leave one out"),
        (("team", "bolt://host", "--password-env", "X"), "cross the network unencrypted"),
        (("team", "bolt+s://host", "--keyring", "--password-env", "X"), "give one of"),
        (("team", "bolt+s://host", "--password-file", "none"), "cannot read the password file none of --password-file"),
        (("team", "bolt+s://host", "--database", "a b"), "--database is not the name of a database"),
        (("team", "bolt+s://host", "--workspace", "a/b"), "--workspace must be one word"),
    ],
)
def test_what_cannot_be_added_is_refused(offline: Run, arguments: tuple[str, ...], expected: str) -> None:
    ran = offline("store", "add", *arguments)
    assert (ran.status, SECRET in ran.out + ran.err) == (2, False)
    assert expected in ran.err
    assert not config_file(os.environ).exists()


def test_a_name_that_is_taken_or_unknown(offline: Run) -> None:
    offline("store", "add", "team", "bolt://localhost")
    assert "add --force to replace it" in offline("store", "add", "team", "bolt://localhost:1").err
    assert offline("store", "add", "team", "bolt://localhost:1", "--force").status == 0
    assert config()["stores"]["team"] == {"uri": "bolt://localhost:1"}
    for words in (("use", "tem"), ("remove", "tem"), ("status", "--store", "tem")):
        ran = offline("store", *words)
        assert (ran.status, "did you mean team?" in ran.err) == (2, True)


@pytest.mark.usefixtures("typed")
def test_the_keyring_keeps_it_by_server_and_user(offline: Run, memory: DictKeyring, monkeypatch: Any) -> None:
    ran = offline("store", "add", "team", "bolt+s://127.0.0.1:1", "--username", "ann", "--keyring")
    assert ran.status == 0, ran.err
    assert memory.kept == {("stagedb bolt+s://127.0.0.1:1", "ann"): SECRET}
    assert SECRET not in ran.out + ran.err + config_file(os.environ).read_text(encoding="utf-8")
    sent = []

    def failing(uri: str, auth: tuple[str, str], *rest: object) -> None:
        sent.append((uri, auth))
        raise RuntimeError(f"shows too much: {auth!r}")

    monkeypatch.setattr("stagedb.store.opening.open_driver", failing)
    monkeypatch.setattr("tempfile.tempdir", os.fspath(Path.cwd()))
    ran = offline("ls", "--store", "team")
    details = [each.read_text(encoding="utf-8") for each in Path.cwd().glob("stagedb-error-*")]
    assert sent == [("bolt+s://127.0.0.1:1", ("ann", SECRET))]
    assert details
    assert SECRET not in "".join((ran.out, ran.err, *details))
    # The same name for another server finds no password.
    text = config_file(os.environ).read_text(encoding="utf-8")
    config_file(os.environ).write_text(text.replace("127.0.0.1:1", "attacker"), encoding="utf-8")
    ran = offline("ls", "--store", "team")
    assert "the keyring has no password of ann for bolt+s://attacker:7687" in ran.err
    assert len(sent) == 1
    config_file(os.environ).write_text(text, encoding="utf-8")
    assert "and its password from the keyring" in offline("store", "remove", "team").out
    assert memory.kept == {}


@pytest.mark.usefixtures("typed")
def test_a_keyring_that_is_missing_or_keeps_nothing(offline: Run, memory: DictKeyring, monkeypatch: Any) -> None:
    monkeypatch.setattr(keyring, "set_password", lambda *words: None)
    ran = offline("store", "add", "team", "bolt+s://host", "--keyring")
    assert "the keyring did not keep the password" in ran.err
    monkeypatch.setitem(sys.modules, "keyring", None)
    ran = offline("store", "add", "team", "bolt+s://host", "--keyring")
    assert (ran.status, "pip install keyring" in ran.err) == (2, True)
    assert not config_file(os.environ).exists()


def test_a_password_in_a_file_is_in_no_details(offline: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(f"{SECRET}\n", encoding="utf-8")
    secret.chmod(0o600)
    assert offline("store", "add", "team", "bolt://127.0.0.1:1", "--password-file", "secret").status == 0
    assert config()["stores"]["team"]["password_file"] == str(secret)

    def failing(uri: str, auth: tuple[str, str], *rest: object) -> None:
        raise RuntimeError(f"shows too much: {auth!r}")

    monkeypatch.setattr("stagedb.store.opening.open_driver", failing)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ran = offline("ls", "--store", "team")
    details = "".join(each.read_text(encoding="utf-8") for each in tmp_path.glob("stagedb-error-*"))
    assert "shows too much" in details
    assert SECRET not in ran.out + ran.err + details


def test_an_expected_error_hides_it_too(offline: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(f"{SECRET}\n", encoding="utf-8")
    (tmp_path / "secret").chmod(0o600)
    assert offline("store", "add", "team", "bolt://127.0.0.1:1", "--password-file", "secret").status == 0

    def failing(uri: str, auth: tuple[str, str], *rest: object) -> None:
        raise UsageError(f"a server that repeats {auth[1]}")

    monkeypatch.setattr("stagedb.store.opening.open_driver", failing)
    ran = offline("ls", "--store", "team")
    assert (ran.status, ran.err) == (2, "Error: a server that repeats ***\n")


def test_a_project_that_a_colleague_lacks(offline: Run) -> None:
    offline("store", "add", "team", "bolt+s://graphs", "--password-env", "TEAM", "--database", "traces")
    ran = offline("store", "use", "team", "--project")
    assert ran.status == 0, ran.err
    project = Path(".stagedb.toml")
    wanted = {"store": "team", "uri": "bolt+s://graphs:7687", "database": "traces"}
    assert tomllib.loads(project.read_text(encoding="utf-8")) == wanted
    assert "variable TEAM, which is not set" in offline("ls").err
    offline("store", "remove", "team")
    ran = offline("store", "status")
    assert "which you have not added: if you trust that server, run `stagedb store add team bolt+s://graphs" in ran.err
    assert offline("store", "use", "embedded", "--project").status == 0
    assert tomllib.loads(project.read_text(encoding="utf-8")) == {"store": "embedded"}
    rows = json.loads(offline("store", "list", "-f", "json").out)
    assert [(row["name"], row["used"]) for row in rows] == [("embedded", f"{project.absolute()}, line 1")]


def _add(place: str, number: int) -> None:
    os.environ["STAGEDB_CONFIG"] = place
    for each in range(5):
        stores.add(stores.NewStore(f"s{number}-{each}", "bolt://localhost"))


def test_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    place = str(tmp_path / "config.toml")
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_add, args=(place, number)) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert [writer.exitcode for writer in writers] == [0] * 4
    kept = tomllib.loads(Path(place).read_text(encoding="utf-8"))["stores"]
    assert sorted(kept) == sorted(f"s{number}-{each}" for number in range(4) for each in range(5))
    assert sorted(each.name for each in tmp_path.iterdir() if each.suffix != ".lock") == ["config.toml"]


def test_a_broken_configuration_is_left_as_it_is(offline: Run) -> None:
    config_file(os.environ).write_text("default = \n", encoding="utf-8")
    ran = offline("store", "add", "team", "bolt://localhost")
    assert (ran.status, "line 1" in ran.err) == (2, True), ran.err
    assert config_file(os.environ).read_text(encoding="utf-8") == "default = \n"


def test_the_database_of_a_command(run: Run, store: Store) -> None:
    ran = run("ls", "--database", "neo4j")
    if store.engine == "embedded":
        assert (ran.status, "the embedded store has only one" in ran.err) == (2, True)
        return
    assert ran.status == 0, ran.err
    for words in (("ls",), ("store", "status"), ("store", "up"), ("store", "dump", "x.dump"), ("serve", "--port", "0")):
        ran = run(*words, "--database", "no-such")
        assert (ran.status, "has no such database" in ran.err) == (2, True), (words, ran)


def test_a_named_store_answers_and_status_shows_why(
    run: Run, store: Store, store_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if store.engine == "neo4j":
        monkeypatch.delenv("NEO4J_URI")
        monkeypatch.setenv("STAGEDB_CONFIG", str(tmp_path / "config.toml"))
        address, user, password = split_uri(store_environment["NEO4J_URI"], "NEO4J_URI")
        monkeypatch.setenv("OF_TEAM", password or store_environment.get("NEO4J_PASSWORD", ""))
        user = user or store_environment.get("NEO4J_USERNAME")
        account = ("--username", user, "--password-env", "OF_TEAM", "--insecure") if user else ()
        assert run("store", "add", "team", address, *account).status == 0
        assert run("store", "use", "team").status == 0
    ran = run("store", "status", "-f", "json")
    assert ran.status == 0, ran.err
    found = {row["property"]: row["value"] for row in json.loads(ran.out)}
    if store.engine == "neo4j":
        by = f"default in {tmp_path / 'config.toml'}"
        assert (found["name"], found["chosen_by"], found["database"]) == ("team", by, "neo4j")
    else:
        assert (found["name"], found["chosen_by"]) == ("embedded", "nothing names another one")
