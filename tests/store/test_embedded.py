"""The embedded engine's process: found again, private to its user, started when it is gone, ended when unused."""

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from stagedb.errors import StagedbError, UsageError
from stagedb.store import Store, _engine, connect, embedded
from tests.store.bare import bare_graph


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """Directory of an engine that a test may do anything to."""
    yield tmp_path / "home"
    embedded.stop(tmp_path / "home")


def process_of(home: Path) -> psutil.Process:
    endpoint = embedded.running(home)
    assert endpoint is not None
    return psutil.Process(endpoint.pid)


def test_one_engine_serves_all_and_is_ended_and_started_again_with_what_it_held(home: Path) -> None:
    assert embedded.running(home) is None
    with connect(environment={}, home=home) as store:
        store.write_rows("build/tensors", [{"id": "x/1", "graph": "x"}], graph=bare_graph(store))
        first = process_of(home)
        with connect(environment={}, home=home) as other:
            assert other.uri == store.uri
            assert other.query("MATCH (t:SymTensor) RETURN t.id AS id").rows == (("x/1",),)
    assert embedded.stop(home)
    assert not first.is_running()
    assert embedded.running(home) is None
    assert not embedded.stop(home)
    with connect(environment={}, home=home) as store:
        assert store.query("MATCH (t:SymTensor) RETURN t.id AS id").rows == (("x/1",),)
    process_of(home).kill()
    with connect(environment={}, home=home) as store:
        assert store.query("MATCH (t:SymTensor) RETURN t.id AS id").rows == (("x/1",),)


def test_a_connection_that_fails_at_its_first_question_is_closed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Store] = []
    close = Store.close

    def version(store: Store) -> int:
        raise StagedbError("the engine is busy")

    def counted(store: Store) -> None:
        closed.append(store)
        close(store)

    monkeypatch.setattr(Store, "version", version)
    monkeypatch.setattr(Store, "close", counted)
    with pytest.raises(StagedbError, match="the engine is busy"):
        connect(environment={}, home=home)
    assert len(closed) == 1


def test_one_that_is_just_ending_is_waited_for(home: Path) -> None:
    for _ in range(2):
        with connect(environment={}, home=home) as store:
            store.write_rows("build/tensors", [{"id": "x/1", "graph": "x"}], graph=bare_graph(store))
            process = process_of(home)
        process.terminate()
        while embedded.running(home) is not None:
            time.sleep(0.01)  # until it has seen that; it ends a while later
    with connect(environment={}, home=home) as store:
        assert store.query("MATCH (t:SymTensor) RETURN t.id AS id").rows == (("x/1",),)


def test_processes_that_start_it_at_once_get_the_same(home: Path) -> None:
    code = "from stagedb.store import connect\nwith connect('embedded') as s: print(s.uri)"
    environment = {**os.environ, "STAGEDB_HOME": str(home)}
    line = [sys.executable, "-c", code]
    starts = [subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    addresses = {start.communicate(timeout=120)[0].strip() for start in starts}
    assert len(addresses) == 1
    assert addresses.pop().startswith("bolt://127.0.0.1:")


def test_only_the_user_can_reach_it(embedded_engine: Store, stagedb_home: Path) -> None:
    endpoint = embedded.running(stagedb_home)
    assert endpoint is not None
    for path in (stagedb_home / "endpoint.json", stagedb_home / "engine.log", stagedb_home / "data" / "config"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    process = psutil.Process(endpoint.pid)
    secrets = (endpoint.password, endpoint.reader_password)
    shown = " ".join([*process.cmdline(), *process.environ().values(), repr(endpoint)])
    shown += (stagedb_home / "engine.log").read_text(encoding="utf-8")
    assert not any(secret in shown for secret in secrets)
    listening = {one.laddr.ip for one in process.net_connections("tcp") if one.status == psutil.CONN_LISTEN}
    assert listening <= {"127.0.0.1", "::ffff:127.0.0.1"}
    wrong = {"NEO4J_USERNAME": "root", "NEO4J_PASSWORD": "wrong-and-secret"}
    with pytest.raises(UsageError, match="refused the account") as refused:
        connect(endpoint.uri, environment=wrong)
    assert "wrong-and-secret" not in str(refused.value)


@pytest.mark.parametrize("what", ["pid of another", "garbage", "old form", "no one listens", "texts", "deep", "a pipe"])
def test_a_stale_endpoint_is_not_believed(home: Path, what: str) -> None:
    home.mkdir()
    me = psutil.Process()
    row = {
        "port": 1,
        "pid": me.pid,
        "started": me.create_time() - (100 if what == "pid of another" else 0),
        **dict.fromkeys(("nonce", "username", "password", "reader", "reader_password", "database"), "x"),
    }
    texts = {"garbage": "{", "old form": "{}", "deep": "[" * 100_000, "texts": json.dumps(dict.fromkeys(row, "1"))}
    if what == "a pipe":
        os.mkfifo(home / "endpoint.json")
    else:
        (home / "endpoint.json").write_text(texts.get(what, json.dumps(row)), encoding="utf-8")
    assert embedded.running(home) is None
    assert not embedded.stop(home)
    assert me.is_running()


@pytest.mark.parametrize("damage", ["cut", "gone", "a link"])
def test_a_damaged_endpoint_heals_while_the_engine_runs(home: Path, tmp_path: Path, damage: str) -> None:
    """The engine writes it again, and whoever asks meanwhile gets the same engine."""
    file, elsewhere = home / "endpoint.json", tmp_path / "elsewhere"
    with connect(environment={}, home=home) as store:
        process, whole = process_of(home), file.read_bytes()
        if damage == "cut":
            file.write_bytes(whole[:30])
        else:
            file.unlink()
        if damage == "a link":
            elsewhere.write_bytes(b"other")
            file.symlink_to(elsewhere)
        with connect(environment={}, home=home) as other:
            assert other.uri == store.uri
        assert process_of(home) == process
        assert file.read_bytes() == whole
        assert stat.S_IMODE(file.lstat().st_mode) == 0o600
        assert not file.is_symlink()
    assert damage != "a link" or elsewhere.read_bytes() == b"other"


def test_only_bolt_listens_and_only_here(stagedb_home: Path, embedded_engine: Store) -> None:
    endpoint = embedded.running(stagedb_home)
    assert endpoint is not None
    listening = {
        (each.laddr.ip.removeprefix("::ffff:"), each.laddr.port)
        for each in psutil.Process(endpoint.pid).net_connections("inet")
        if each.status == psutil.CONN_LISTEN
    }
    assert listening == {("127.0.0.1", endpoint.port)}


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="Windows keeps the data of users apart")
def test_a_directory_that_others_can_write_to_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import grp
    import pwd

    home.mkdir()
    (home / "endpoint.json").write_text("{}", encoding="utf-8")
    monkeypatch.setattr(grp, "getgrgid", lambda number: grp.struct_group(("staff", "x", number, ["ann"])))
    (home / "data").mkdir()
    for part, mode, words in (
        (home, 0o777, "everybody"),
        (home, 0o1777, "everybody"),
        (home / "data", 0o775, "a group"),
    ):
        part.chmod(mode)
        with pytest.raises(UsageError, match=rf"{words} can write to {part}, .*chmod go-w.*STAGEDB_HOME"):
            connect(environment={}, home=home)
        part.chmod(0o755)
    home.chmod(0o775)
    with pytest.raises(UsageError, match=f"a group can write to {home}"):
        embedded.stop(home)
    # The group that has the user's name and nobody else is the user.
    me = pwd.getpwuid(os.geteuid())
    monkeypatch.setattr(grp, "getgrgid", lambda number: grp.struct_group((me.pw_name, "x", me.pw_gid, [])))
    os.chown(home, -1, me.pw_gid)
    assert embedded.running(home) is None


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="Windows keeps the data of users apart")
def test_a_directory_of_somebody_else_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home.mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: home.stat().st_uid + 4242)
    with pytest.raises(UsageError, match=rf"{home} belongs to .*uid {home.stat().st_uid}.*uid \d+.*Set STAGEDB_HOME"):
        connect(environment={}, home=home)
    assert [*home.iterdir()] == []


def test_a_link_does_not_redirect_what_is_written(home: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_bytes(b"mine")
    (home / "data" / "config").mkdir(parents=True)
    for name in ("endpoint.new", "data/config/server-users.jsonl", "data/config/server-users.new"):
        (home / name).symlink_to(mine)
    with connect(environment={}, home=home):
        assert mine.read_bytes() == b"mine"
    assert embedded.stop(home)
    (home / "engine.log").unlink()
    (home / "engine.log").symlink_to(mine)
    with pytest.raises(StagedbError, match=r"engine\.log"):
        connect(environment={}, home=home)
    assert mine.read_bytes() == b"mine"


def test_it_ends_when_nobody_is_connected(home: Path) -> None:
    with connect(environment={"STAGEDB_IDLE": "1"}, home=home):
        process = process_of(home)
        time.sleep(4)
        assert process.is_running()
    process.wait(60)
    assert embedded.running(home) is None
    assert not (home / "endpoint.json").exists()


@pytest.mark.skipif(not hasattr(psutil.Process, "rlimit"), reason="only Linux limits the files of a running process")
def test_a_write_that_the_files_do_not_take_is_reported_and_changes_nothing(home: Path) -> None:
    with connect(environment={}, home=home) as store:
        store.write_rows("build/tensors", [{"id": "x/1", "graph": "x"}], graph=bare_graph(store))
        process = process_of(home)
        process.rlimit(psutil.RLIMIT_FSIZE, (2_000_000, 2_000_000))
        rows = [{"id": f"y/{n}", "graph": "y", "text": "y" * 50_000} for n in range(80)]
        with pytest.raises(UsageError, match="disk is full"):
            store.write_rows("build/tensors", rows, graph="x")
        assert store.query("MATCH (t:SymTensor) RETURN t.id AS id").rows == (("x/1",),)
    assert embedded.stop(home)
    with connect(environment={}, home=home) as store:
        store.write_rows("build/tensors", rows, graph=bare_graph(store))
        assert store.query("MATCH (t:SymTensor) RETURN count(t) AS n").rows == ((81,),)


def test_messages_of_many_megabytes_pass(embedded_store: Store) -> None:
    rows = [{"id": f"x/{n}", "graph": "x", "text": "x" * 240_000} for n in range(100)]
    embedded_store.write_rows("build/tensors", rows, graph=bare_graph(embedded_store))
    table = embedded_store.query("MATCH (t:SymTensor) RETURN sum(size(t.text)) AS n")
    assert table.rows == ((100 * 240_000,),)


def test_an_engine_that_cannot_start_gives_the_reason(home: Path) -> None:
    with pytest.raises(StagedbError, match="while starting") as failed:
        connect(environment={"STAGEDB_HEAP": "900000g"}, home=home)
    assert "heap" in str(failed.value)
    assert str(home / "engine.log") in str(failed.value)
    assert "\n" not in str(failed.value)
    assert "Traceback" not in str(failed.value)
    with connect(environment={}, home=home) as store:
        assert store.version() > 0


def test_an_engine_that_cannot_start_on_a_full_disk_names_the_disk(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1_000))
    with pytest.raises(UsageError, match="disk of the embedded store is full"):
        connect(environment={"STAGEDB_HEAP": "900000g"}, home=home)


def test_a_directory_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StagedbError, match="STAGEDB_HOME"):
        connect(environment={}, home=tmp_path / "file" / "home")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("STAGEDB_IDLE", "soon"),
        ("STAGEDB_IDLE", "-1"),
        ("STAGEDB_HEAP", "1x"),
        ("STAGEDB_HEAP", ""),
        ("STAGEDB_HEAP", "1g -version"),
        ("STAGEDB_HEAP", "1k"),
        ("STAGEDB_HEAP", "-1g"),
        ("STAGEDB_HEAP", "64"),
    ],
)
def test_settings_that_make_no_sense_are_refused(home: Path, name: str, value: str) -> None:
    with pytest.raises(UsageError, match=name):
        connect(environment={name: value}, home=home)


def test_load_file_and_other_readers_of_the_machine_are_off(embedded_engine: Store) -> None:
    with embedded_engine._session("WRITE") as session, pytest.raises(Exception, match=r"(?i)disabled|not allowed|csv"):
        session.run("LOAD CSV FROM 'file:///etc/hostname' AS line RETURN line").data()


def test_an_engine_whose_disk_is_full_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it could not write to its pages is in its log of transactions, which the next one applies."""
    ended: list[int] = []

    def end(process: int, number: int) -> None:
        ended.append(number)
        raise SystemExit

    monkeypatch.setattr(_engine, "POLL", 0.0)
    monkeypatch.setattr(os, "kill", end)
    endpoint = _engine._EndpointFile(Path("endpoint.json"), "", Path().stat())
    monkeypatch.setattr(_engine._EndpointFile, "repair", lambda self: None)
    stopping = _engine._Stopping()
    cases: tuple[tuple[int, list[int]], ...] = ((_engine.FULL, []), (_engine.FULL - 1, [signal.SIGKILL]))
    for free, found in cases:
        monkeypatch.setattr(shutil, "disk_usage", lambda path, free=free: SimpleNamespace(free=free))
        with suppress(SystemExit):
            _engine._serve(1, -1.0, stopping, endpoint, None)
        assert ended == found
