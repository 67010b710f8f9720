"""Named stores and projects: what the two files may hold, who may own them, and what a hostile one cannot do."""

import os
from pathlib import Path

import pytest

from stagedb.errors import UsageError
from stagedb.mentions import Word
from stagedb.store.store_settings import project_file
from stagedb.store.store_targets import StoreTarget, choose, select

CONFIG = """
default = "team"
[stores.team]
uri = "bolt+s://graphs:7687"
username = "ann"
password_env = "TEAM"
database = "traces"

[stores.other]
uri = "bolt+s://other"
username = "bob"
password_env = "OTHER"

[stores.twin]
uri = "bolt+s://other"
username = "eve"
password_env = "OTHER"
"""
PASSWORDS = {"TEAM": "of-team", "OTHER": "of-other", "NEO4J_PASSWORD": "of-somebody", "NEO4J_USERNAME": "me"}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(CONFIG, encoding="utf-8")
    return path


def with_project(config: Path, text: str, word: str | None = None, database: str | None = None) -> StoreTarget | None:
    path = config.parent / ".stagedb.toml"
    path.write_text(text, encoding="utf-8")
    return choose(word, PASSWORDS, config, project=path, database=database)


@pytest.mark.parametrize(
    ("text", "uri", "username", "password", "database"),
    [
        ('store = "other"', "bolt+s://other:7687", "bob", "of-other", "neo4j"),
        ('uri = "bolt+s://graphs"', "bolt+s://graphs:7687", "ann", "of-team", "traces"),
        ('store = "theirs"\nuri = "bolt+s://graphs"', "bolt+s://graphs:7687", "ann", "of-team", "traces"),
        ('uri = "bolt+s://other"\nusername = "eve"', "bolt+s://other:7687", "eve", "of-other", "neo4j"),
        ('store = "team"\ndatabase = "old.runs"', "bolt+s://graphs:7687", "ann", "of-team", "old.runs"),
        ('database = "old.runs"', "bolt+s://graphs:7687", "ann", "of-team", "old.runs"),
    ],
)
def test_a_project_chooses_among_the_stores_of_the_user(
    config: Path, text: str, uri: str, username: str, password: str, database: str
) -> None:
    target = with_project(config, text)
    assert target is not None
    assert (target.uri, target.username, target.password) == (uri, username, password)
    assert target.database == database


def test_the_option_goes_first_then_the_environment_the_project_and_the_user(config: Path) -> None:
    path = config.parent / ".stagedb.toml"
    path.write_text('store = "other"\n', encoding="utf-8")
    steps: tuple[tuple[str | None, dict[str, str]], ...] = (
        ("team", {"NEO4J_URI": "bolt://env"}),
        (None, {"NEO4J_URI": "bolt://env"}),
        (None, {}),
    )
    assert [select(word, env, config, project=path).by for word, env in steps] == [
        str(Word("store")),
        "NEO4J_URI",
        f"{path}, line 1",
    ]
    assert select(None, {}, config).by == f"default in {config}"
    assert select(None, {}, config.parent / "none").is_embedded


def test_the_database_has_the_same_order(config: Path) -> None:
    text = 'store = "team"\ndatabase = "of-project"'
    target = with_project(config, text, database="of-option")
    assert target is not None
    assert target.database == "of-option"
    path = config.parent / ".stagedb.toml"
    env = PASSWORDS | {"NEO4J_DATABASE": "of-environment"}
    found = choose(None, env, config, project=path)
    assert found is not None
    assert found.database == "of-environment"
    # It belongs to the server of NEO4J_URI, if there is one.
    found = choose("team", env | {"NEO4J_URI": "bolt://env"}, config)
    assert found is not None
    assert found.database == "traces"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('uri = "bolt+s://attacker"', r"line 1 wants the store at bolt\+s://attacker:7687, which you have not added"),
        ('uri = "bolt://graphs"', r"wants the store at bolt://graphs:7687, which you have not added"),
        ('uri = "bolt+ssc://graphs"', r"which you have not added"),
        ('uri = "bolt+s://graphs:7688"', r"which you have not added"),
        ('store = "team"\nuri = "bolt+s://attacker"', r"line 2 wants 'bolt\+s://attacker:7687', and \[stores.team\]"),
        ('store = "team"\nusername = "root"', r"line 2 wants 'root', and \[stores.team\] .* has 'ann'"),
        ('uri = "bolt+s://other"', r"fits several of your stores \(other, twin\)"),
        ('store = "tema"', r"no store named 'tema' .*\(did you mean team\?\)"),
        ('store = "team"\npassword = "hunter2"', r"\.stagedb\.toml, line 2: a project file has no 'password'"),
        ('\npassword_file = "/home/me/key"', r"line 2: a project file has no 'password_file'"),
        ('password_env = "AWS_SECRET"', r"line 1: a project file has no 'password_env'"),
        ("insecure = true", r"line 1: a project file has no 'insecure'"),
        ('[stores.team]\nuri = "bolt+s://attacker"', r"a project file has no 'stores'"),
        ('uri = "bolt+s://me:hunter2@graphs"', r"line 1: the uri of a project file has no account"),
        ('store = "bolt+s://me:hunter2@graphs"', r"line 1 is not a name for a store"),
        ('store = "team"\ndatabase = "a b"', r"database in .*line 2 is not the name of a database: 'a b'"),
        ("store = 7", r"line 1: store must be a text, not 7"),
        ('store = "embedded"\ndatabase = "traces"', r"line 2 names the database 'traces', and the embedded store"),
        ("store = \n", r"the project file .*\.stagedb\.toml: not TOML: .*line 1"),
    ],
)
def test_a_hostile_or_broken_project_sends_nothing_elsewhere(config: Path, text: str, expected: str) -> None:
    with pytest.raises(UsageError, match=expected) as refused:
        with_project(config, text)
    assert not [word for word in ("hunter2", *PASSWORDS.values()) if len(word) > 2 and word in str(refused.value)]


def test_the_nearest_project_counts_and_can_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    assert project_file({}) is None
    (tmp_path / ".stagedb.toml").touch()
    assert project_file({}) == tmp_path / ".stagedb.toml"
    (tmp_path / "a" / ".stagedb.toml").touch()
    assert project_file({}) == tmp_path / "a" / ".stagedb.toml"
    assert project_file({"STAGEDB_PROJECT": "/x.toml"}) == Path("/x.toml")
    assert project_file({"STAGEDB_PROJECT": ""}) is None


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="this system keeps files of users apart by other means")
def test_files_that_others_can_write_are_refused(config: Path) -> None:
    for mode, who in ((0o666, "everybody"), (0o664, "a group")):
        config.chmod(mode)
        if mode == 0o664:
            os.chown(config, -1, next(iter({*os.getgroups()} - {os.getgid()}), 12_345)) if os.geteuid() == 0 else None
        if mode == 0o664 and os.geteuid() != 0:
            continue
        with pytest.raises(UsageError, match=rf"^{who} can write to the configuration file .*chmod go-w"):
            choose(None, {}, config)
    config.chmod(0o644)
    project = config.parent / ".stagedb.toml"
    project.write_text('store = "team"', encoding="utf-8")
    project.chmod(0o646)
    with pytest.raises(UsageError, match=r"^everybody can write to the project file"):
        choose(None, PASSWORDS, config, project=project)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root makes files of others")
def test_a_project_of_somebody_else_is_refused_unless_it_is_named(config: Path) -> None:
    project = config.parent / ".stagedb.toml"
    project.write_text('store = "team"', encoding="utf-8")
    os.chown(project, 12_345, -1)
    with pytest.raises(
        UsageError, match=r"belongs to uid 12345, who could send you to another store: .*STAGEDB_PROJECT"
    ):
        choose(None, PASSWORDS, config, project=project)
    assert choose(None, PASSWORDS | {"STAGEDB_PROJECT": str(project)}, config, project=project) is not None
    assert choose("team", PASSWORDS, config, project=project) is not None
    mine, link = config.parent / "mine.toml", config.parent / "link.toml"
    mine.write_text('store = "team"', encoding="utf-8")
    link.symlink_to(mine)
    os.chown(link, 12_345, -1, follow_symlinks=False)
    with pytest.raises(UsageError, match="belongs to uid 12345"):
        choose(None, PASSWORDS, config, project=link)


@pytest.mark.parametrize(
    ("content", "mode", "expected"),
    [
        ("hunter2\n", 0o600, None),
        ("hunter2", 0o400, None),
        ("hunter2\n", 0o640, "others can open the password file .*chmod 600"),
        ("hunter2\n", 0o604, "others can open"),
        ("hunter2\nmore\n", 0o600, "has 2 lines"),
        ("", 0o600, "has 0 lines"),
        ("h" * 5000, 0o600, "longer than 4096 bytes"),
        (None, 0o600, "cannot read the password file .*: No such file"),
    ],
)
def test_a_password_file_is_of_the_user_alone(
    tmp_path: Path, content: str | None, mode: int, expected: str | None
) -> None:
    secret, config = tmp_path / "secret", tmp_path / "config.toml"
    if content is not None:
        secret.write_text(content, encoding="utf-8")
        secret.chmod(mode)
    config.write_text(f"[stores.s]\nuri = 'bolt+s://h'\nusername = 'u'\npassword_file = '{secret}'", encoding="utf-8")
    if expected is None:
        target = choose("s", {}, config)
        assert target is not None
        assert target.password == "hunter2"
        return
    with pytest.raises(UsageError, match=expected) as refused:
        choose("s", {}, config)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("password_file = 'secret'", "must be a whole path, not 'secret'"),
        ("password_file = '/x'\nkeyring = true", "names several places of its password"),
        ("keyring = 'yes'", r"keyring of \[stores.s\] .* must be true or false"),
        ("port = 7", r"\[stores.s\] of .* \(.*config.toml, line 2\) needs uri"),
        ("database = 'no/such'", "database of .* is not the name of a database"),
    ],
)
def test_an_entry_that_cannot_be_used_is_refused(tmp_path: Path, line: str, expected: str) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f"default = 's'\n[stores.s]\nuri = 'bolt+s://h'\n{line}\n", encoding="utf-8")
    with pytest.raises(UsageError, match=expected):
        choose(None, {}, config)


def test_the_embedded_store_has_no_database_to_choose(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--database names the database 'x_y', and the embedded store has only one"):
        choose(None, {}, tmp_path / "none", database="x_y")
