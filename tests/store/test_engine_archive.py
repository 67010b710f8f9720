"""The archive of the embedded engine's classes: made once nobody is connected, and used by the next engine."""

import time
from pathlib import Path

import psutil
import pytest

from stagedb.store import connect, embedded
from stagedb.store._engine_archive import ClassArchive

WAIT = 300.0


def mapped(home: Path) -> list[str]:
    """The archives that the engine of a store uses."""
    engine = embedded.running(home)
    assert engine is not None
    return [each.path for each in psutil.Process(engine.pid).memory_maps() if each.path.endswith(".jsa")]


@pytest.mark.skipif(not psutil.LINUX, reason="only Linux lists the files that a process has mapped")
def test_the_second_engine_starts_from_an_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    cache = tmp_path / "cache" / "stagedb" / "engine"
    for home, expected in ((tmp_path / "first", 0), (tmp_path / "second", 1)):
        try:
            with connect(environment={}, home=home) as store:
                assert store.query("RETURN 1 AS one").rows == ((1,),)
                assert len(mapped(home)) == expected
            deadline = time.monotonic() + WAIT
            while not [*cache.glob("*.jsa")] and time.monotonic() < deadline:
                time.sleep(0.2)
        finally:
            embedded.stop(home)
    assert [path.suffix for path in sorted(cache.iterdir())] == [".lock", ".jsa"]
    assert cache.stat().st_mode & 0o077 == 0


def test_what_an_archive_depends_on_is_in_its_name(tmp_path: Path) -> None:
    one, other = (ClassArchive.of(str(tmp_path), arguments) for arguments in ("-Xmx1g", "-Xmx2g"))
    assert one is not None and other is not None
    assert one.path != other.path
    assert ClassArchive.of("", "-Xmx1g") is None
    assert ClassArchive.of(str(tmp_path / "a b"), "-Xmx1g") is None


def test_lists_of_killed_engines_are_removed(tmp_path: Path) -> None:
    archive = ClassArchive.of(str(tmp_path), "-Xmx1g")
    assert archive is not None
    left = tmp_path / "classes-0123456789abcdef.4194303.list"
    left.write_text("java/lang/Object\n", encoding="utf-8")
    assert archive.arguments().startswith("-XX:DumpLoadedClassList=")
    assert not left.exists()
