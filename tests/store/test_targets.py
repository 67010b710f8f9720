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
uri = "bolt://me:hunter2@other:7000"

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
    assert chosen("other", environment, config).uri == "bolt://other:7000"
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
    target = chosen("bolt://given", environment, config)
    assert (target.username, target.password, target.database) == ("bob", "p", "d")


def test_an_account_in_a_uri_is_used_and_not_shown(config: Path) -> None:
    target = chosen("bolt://me:hun%2Fter2@host", {}, config)
    assert (target.uri, target.username, target.password) == ("bolt://host:7687", "me", "hun/ter2")
    assert "hun" not in repr(target)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("http://me:hunter2@host", "bolt://host:7687"),
        ("bolt://me:hunter2@host:port", "bolt://host:7687"),
        ("bolt://me:hunter2@", "bolt://host:7687"),
        ("bolt://me:hunter2@host/db", "bolt://host:7687"),
        ("nowhere", r"no store named 'nowhere' .* other, team, wrong"),
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
