"""Content of a store by commands: check, dump, load."""

import gzip
import os
from pathlib import Path

from stagedb.store import Store
from tests.cli.conftest import Run
from tests.conftest import empty


def test_a_dump_is_loaded_and_checked(run: Run, store: Store, tiny: str, tmp_path: Path) -> None:
    assert run("instantiate", tiny, "--tp", "2", "--ranks", "4", "--seq-len", "16", "--name", "base").status == 0
    assert run("store", "dump", "one.dump", "base").status == 0
    assert run("store", "dump", "one.dump", "base").status == 2
    rows = run("query", "bytes_by_axis", "--format", "csv").out
    empty(store)
    store.migrate()
    loaded = run("store", "load", "one.dump")
    assert loaded.status == 0
    assert "2 graphs, instances, profiles, searches and runs were new" in loaded.out
    assert run("query", "bytes_by_axis", "--format", "csv").out == rows
    checked = run("store", "check")
    assert checked.status == 0
    assert "nothing is wrong" in checked.err
    text = gzip.decompress((tmp_path / "one.dump").read_bytes())
    (tmp_path / "bad.dump").write_bytes(gzip.compress(text.replace(b'"runs":', b'"runz":', 1)))
    refused = run("store", "load", "bad.dump")
    assert refused.status == 2
    assert "Nothing was written" in refused.err
    with store._session("WRITE") as session:
        session.run("CREATE (:SymTensor {id: 'alone'})").consume()
    found = run("store", "check")
    assert found.status == 1
    assert "alone" in found.out
    assert "--repair" in found.out
    mended = run("store", "check", "--repair")
    assert mended.status == 0
    assert "alone" in mended.out
    assert run("store", "check").status == 0


def test_push_and_pull_name_the_other_store(run: Run, store: Store, tiny: str) -> None:
    """The same store in both places is found by what is in it, whichever address names it."""
    assert run("instantiate", tiny, "--tp", "2", "--ranks", "4", "--seq-len", "16", "--name", "base").status == 0
    here = "embedded" if store.engine == "embedded" else os.environ["NEO4J_URI"]
    for way, option in (("push", "--to"), ("pull", "--from")):
        refused = run("store", way, "base", option, here)
        assert refused.status == 2
        assert "are the same store" in refused.err
        malformed = run("store", way, "base", option, "bolt:/ann:hunter2@host")
        assert malformed.status == 2
        assert f"{option} is neither the URI" in malformed.err
        assert "hunter2" not in malformed.out + malformed.err
    assert "hunter2" not in run("store", "log").out
