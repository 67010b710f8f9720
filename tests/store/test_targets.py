"""Which store is meant: the option, the environment, the configuration file, the embedded engine. Secrets stay so."""

from pathlib import Path

import pytest

from stagedb.errors import UsageError
from stagedb.store.store_targets import StoreTarget, choose, home

CONFIG = """
default = "team"

[stores.team]
uri = "neo4j+s://team.example.org"
username = "ann"
password_env = "TEAM_PASSWORD"
database = "traces"

[stores.other]
uri = "bolt+s://me:hunter2@other:7000"

[stores.plain]
uri = "bolt://me:hunter2@plain"

[stores.private]
uri = "bolt://me:hunter2@private"
insecure = true

[stores.maybe]
uri = "bolt://me:hunter2@maybe"
insecure = "yes"

[stores.wrong]
uri = "bolt://x"
port = 7
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(CONFIG, encoding="utf-8")
    return path


def chosen(word: str | None, environment: dict[str, str], config: Path) -> StoreTarget:
    target = choose(word, environment, config)
    assert target is not None
    return target


def test_without_a_choice_it_is_the_embedded_engine(tmp_path: Path) -> None:
    assert choose(None, {}, tmp_path / "none.toml") is None


def test_the_option_goes_before_the_environment_and_that_before_the_file(config: Path) -> None:
    environment = {"NEO4J_URI": "bolt://env", "TEAM_PASSWORD": "secret"}
    assert chosen("bolt://given:1234", environment, config).uri == "bolt://given:1234"
    assert chosen("other", environment, config).uri == "bolt+s://other:7000"
    assert chosen(None, environment, config).uri == "bolt://env:7687"
    del environment["NEO4J_URI"]
    team = chosen(None, environment, config)
    assert (team.uri, team.username, team.password, team.database) == (
        "neo4j+s://team.example.org:7687",
        "ann",
        "secret",
        "traces",
    )
    assert choose("embedded", {"NEO4J_URI": "bolt://env"}, config) is None


def test_account_and_database_come_from_the_environment(config: Path) -> None:
    environment = {"NEO4J_USERNAME": "bob", "NEO4J_PASSWORD": "p", "NEO4J_DATABASE": "d"}
    target = chosen("bolt+s://given", environment, config)
    assert (target.username, target.password, target.database) == ("bob", "p", "d")


def test_an_account_in_a_uri_is_used_and_not_shown(config: Path) -> None:
    target = chosen("bolt+s://me:hun%2Fter2@host", {}, config)
    assert (target.uri, target.username, target.password) == ("bolt+s://host:7687", "me", "hun/ter2")
    assert "hun" not in repr(target)


SECRET = {"NEO4J_USERNAME": "me", "NEO4J_PASSWORD": "hunter2"}


@pytest.mark.parametrize("scheme", ["bolt", "neo4j"])
@pytest.mark.parametrize("host", ["10.0.0.7", "db.example.org:7000", "[2001:db8::1]", "localhost.example.org", "127.1"])
def test_a_password_to_another_machine_is_encrypted(scheme: str, host: str, config: Path) -> None:
    for word, environment in (
        (f"{scheme}://{host}", SECRET),
        (f"{scheme}://me:hunter2@{host}", {}),
        (None, {**SECRET, "NEO4J_URI": f"{scheme}://{host}", "STAGEDB_INSECURE": "0"}),
    ):
        with pytest.raises(
            UsageError, match=rf"unencrypted: use {scheme}\+s://.*--insecure, STAGEDB_INSECURE=1"
        ) as refused:
            choose(word, environment, config)
        assert "hunter2" not in str(refused.value)
        assert ("NEO4J_URI" if word is None else "--store") in str(refused.value)
        for kind in ("+s", "+ssc"):
            encrypted = f"{scheme}{kind}://{host}"
            assert chosen(encrypted, SECRET, config).password == "hunter2"
    assert chosen(f"{scheme}://{host}", SECRET | {"STAGEDB_INSECURE": "1"}, config).password == "hunter2"
    allowed = choose(f"{scheme}://{host}", SECRET, config, insecure=True)
    assert allowed is not None
    assert allowed.password == "hunter2"


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.9.10:7000", "[::1]", "LOCALHOST"])
def test_this_machine_needs_no_encryption(host: str, config: Path) -> None:
    assert chosen(f"bolt://{host}", SECRET, config).password == "hunter2"


def test_without_a_password_nothing_is_refused(config: Path) -> None:
    assert chosen("bolt://host", {"NEO4J_USERNAME": "me"}, config).password is None


def test_the_file_allows_it_for_one_store(config: Path) -> None:
    assert chosen("private", {}, config).password == "hunter2"
    with pytest.raises(UsageError, match=r"\[stores.plain\] of .*bolt://plain:7687, and the password would"):
        choose("plain", {}, config)
    with pytest.raises(UsageError, match=r"insecure of \[stores.maybe\] .* true or false, not 'yes'"):
        choose("maybe", {}, config)


def test_the_switch_of_the_environment_is_1_or_0(config: Path) -> None:
    with pytest.raises(UsageError, match="STAGEDB_INSECURE must be 1 or 0, not 'true'"):
        choose("bolt://host", {"STAGEDB_INSECURE": "true"}, config)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("http://me:hunter2@host", "bolt://host:7687"),
        ("bolt://me:hunter2@host:port", "bolt://host:7687"),
        ("bolt://me:hunter2@", "bolt://host:7687"),
        ("bolt://me:hunter2@host/db", "bolt://host:7687"),
        ("me:hunter2@host", "neither the URI of a store nor the name of one"),
        ("hunter2@host", "neither the URI"),
        ("bolt:me:hunter2@host:7687", "neither the URI"),
        ("bolt:/me:hunter2@host", "neither the URI"),
        ("bolt//me:hunter2@host", "neither the URI"),
        ("nowhere", r"no store named 'nowhere' .* maybe, other, plain, private, team, wrong"),
        ("n" * 10_000, r"^.{,500}$"),
        ("team", "TEAM_PASSWORD, which is not set"),
        ("wrong", r"\[stores.wrong\]"),
    ],
)
def test_what_cannot_be_used_is_refused_without_its_secrets(word: str, expected: str, config: Path) -> None:
    with pytest.raises(UsageError, match=expected) as refused:
        choose(word, {}, config)
    assert "hunter2" not in str(refused.value)
    assert refused.value.exit_status == 2


def test_a_file_that_is_not_toml_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("default = ", encoding="utf-8")
    with pytest.raises(UsageError, match=r"config\.toml"):
        choose(None, {}, path)


def test_the_directory_of_the_embedded_store(tmp_path: Path) -> None:
    assert home({"STAGEDB_HOME": str(tmp_path)}) == tmp_path
    assert home({}).name == "stagedb"
