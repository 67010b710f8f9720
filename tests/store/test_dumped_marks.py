"""Names, tags, notes and saved queries go along with content, and nobody's name is moved."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stagedb.api import Stagedb, lookup
from stagedb.errors import UsageError
from stagedb.plans import Plan
from stagedb.store import Store, write_graph
from stagedb.store.contents.content_proofs import ContentProof
from stagedb.store.contents.instances import instantiate
from stagedb.store.dump_contents import DumpError, MarkRows, write_records
from stagedb.store.dumping import check_mark, load_dump, marks_of, records_of
from stagedb.store.events import current_user
from stagedb.store.leases import Kind
from stagedb.store.naming import Name, add_note, add_tag, remove_name, set_name
from stagedb.store.saved_queries import save_query, saved_queries
from tests.conftest import empty
from tests.instances.small_graph import small_graph
from tests.store.test_dumps import _lines, _sealed

QUERY = """// How many instances.
//
// mode: reads
// column n: integer — their number
MATCH (i:Instance) RETURN count(i) AS n
"""
MARKS = ("names", "tags", "notes")


def _filled(store: Store) -> list[tuple[Kind, str]]:
    graph = small_graph()
    write_graph(store, graph)
    made = [instantiate(store, graph.key, Plan(tp=tp, dp=2, seq_len=16)) for tp in (1, 2)]
    set_name(store, "Instance", made[0], Name("ann", "base"))
    set_name(store, "Instance", made[0], Name("team", "best"))
    set_name(store, "Instance", made[1], Name("bob", "base"))
    add_tag(store, "Graph", graph.key, "paper")
    add_tag(store, "Instance", made[1], "v2")
    add_note(store, "Instance", made[0], "the run of table 3")
    save_query(store, Name("team", "wide"), QUERY)
    return [("Graph", graph.key), *(("Instance", each) for each in made)]


def _dump(store: Store, path: Path, things: list[tuple[Kind, str]]) -> None:
    def unheard(line: str) -> None:
        raise AssertionError(line)

    with path.open("wb") as file:
        records = [*records_of(store, things, lambda line: None), *marks_of(store, things, True, unheard)]
        write_records(file, records)


def _marks(store: Store) -> list[list[dict[str, Any]]]:
    return [store.read(f"team/all_{each}") for each in MARKS]


def _load(store: Store, path: Path) -> list[str]:
    heard: list[str] = []
    load_dump(store, path, ContentProof(), heard.append)
    return heard


def test_marks_go_along_with_content(store: Store, tmp_path: Path) -> None:
    things, path = _filled(store), tmp_path / "all.dump"
    _dump(store, path, things)
    before, queries = _marks(store), [(each.name, each.text, each.time) for each in saved_queries(store)]
    assert list(map(len, before)) == [3, 2, 1]
    empty(store)
    store.migrate()
    assert "7 names, tags, notes and queries were new" in _load(store, path)
    assert _marks(store) == before
    assert [(each.name, each.text, each.time) for each in saved_queries(store)] == queries
    actions = store.query("MATCH (e:Event) WHERE e.action <> 'made' RETURN e.action AS a, count(*) AS n ORDER BY a")
    assert actions.rows == (("named", 3), ("noted", 1), ("saved", 1), ("tagged", 2))
    # Again: nothing is new, and nothing is written.
    events = store.query("MATCH (e:Event) RETURN count(e) AS n").rows
    assert not [line for line in _load(store, path) if "new" in line]
    assert store.query("MATCH (e:Event) RETURN count(e) AS n").rows == events
    assert _marks(store) == before


def test_a_name_that_means_something_else_stays(store: Store, tmp_path: Path) -> None:
    things, path = _filled(store), tmp_path / "all.dump"
    first, second = things[1][1], things[2][1]
    _dump(store, path, things)
    remove_name(store, "Instance", first, Name("team", "best"))
    set_name(store, "Instance", second, Name("ann", "base"))
    save_query(store, Name("team", "wide"), QUERY.replace("How many", "The number of"))
    heard = _load(store, path)
    assert [line for line in heard if line.startswith("ann/base means instance ") and first in line]
    assert "query team/wide has another text here, and keeps it" in heard
    assert "1 names, tags, notes and queries were new" in heard
    found = {f"{row['space']}/{row['name']}": row["thing"] for row in store.read("team/all_names")}
    assert found == {"ann/base": second, "bob/base": second, "team/best": first}


def test_a_name_that_somebody_set_meanwhile_stays(store: Store) -> None:
    """Between the look and the write: the statement itself moves nothing."""
    things = _filled(store)
    row = {"name": "instance:ann/base", "thing": things[2][1], "properties": {"space": "x"}, "event": {"id": "e"}}
    store.write_rows("team/keep_names_instance", [row], user="bob")
    found = {f"{row['space']}/{row['name']}": row["thing"] for row in store.read("team/all_names")}
    assert found["ann/base"] == things[1][1]
    assert store.query("MATCH (e:Event {id: 'e'}) RETURN count(e) AS n").rows == ((0,),)


def _change(label: str, name: str, value: Any) -> Callable[[list[Any]], None]:
    def change(lines: list[Any]) -> None:
        row = next(line for line in lines if line.get("marks") == label)["rows"][0]
        row[name] = value

    return change


def _early(lines: list[Any]) -> None:
    lines.insert(1, next(line for line in lines if line.get("marks") == "Tag"))


def _between(lines: list[Any]) -> None:
    """A tag, and then another thing."""
    lines.insert(-2, {"begin": "Graph", "id": "x"})


HOSTILE: dict[str, Callable[[list[Any]], None]] = {
    "thing": _change("Name", "thing", "elsewhere"),
    "kind": _change("Name", "kind", "Store"),
    "space": _change("Name", "space", "a/b"),
    "control": _change("Name", "name", "\x1b[2J"),
    "long": _change("Name", "name", "x" * 201),
    "time": _change("Name", "time", 1 << 70),
    "boolean": _change("Name", "time", True),
    "extra": _change("Name", "state", "ready"),
    "tag": _change("Tag", "tag", "two words"),
    "user": _change("Tag", "user", "\n"),
    "note": _change("Note", "text", "x" * 4_001),
    "map": _change("Note", "text", {"a": 1}),
    "surrogate": _change("Note", "text", "\ud800"),
    "writes": _change("SavedQuery", "text", QUERY.replace("RETURN", "DETACH DELETE i RETURN")),
    "label": lambda lines: lines.insert(-1, {"marks": "Event", "rows": [{"id": "x"}]}),
    "early": _early,
    "between": _between,
}


@pytest.mark.parametrize("what", HOSTILE)
def test_marks_that_are_not_sound_are_refused(embedded_store: Store, tmp_path: Path, what: str) -> None:
    path, bad = tmp_path / "all.dump", tmp_path / "bad.dump"
    _dump(embedded_store, path, _filled(embedded_store))
    empty(embedded_store)
    lines = _lines(path.read_bytes())
    bad.write_bytes(_sealed(lines))
    HOSTILE[what](lines)
    (tmp_path / "hostile.dump").write_bytes(_sealed(lines))
    with pytest.raises(DumpError, match="Nothing was written") as refused:
        load_dump(embedded_store, tmp_path / "hostile.dump", ContentProof())
    assert "\x1b" not in str(refused.value)
    rows = embedded_store.query("MATCH (n:Graph|Instance|Name|Tag|Note|SavedQuery|Event) RETURN count(n) AS n").rows
    assert rows == ((0,),)
    assert load_dump(embedded_store, bad, ContentProof()) == 3


CLAIMS: dict[str, dict[str, str]] = {
    "Name": {"space": "ann", "name": "best"},
    "Tag": {"tag": "approved"},
    "Note": {"id": "n1", "text": "checked by the whole team, use this one for everything"},
}


def _claiming(store: Store, path: Path) -> tuple[str, str]:
    """A dump whose names, tags and notes claim to be of ann. Returns the id of its instance, and its origin."""
    graph = small_graph()
    write_graph(store, graph)
    made = instantiate(store, graph.key, Plan(dp=2, seq_len=16))
    things: list[tuple[Kind, str]] = [("Graph", graph.key), ("Instance", made)]
    claim = {"kind": "Instance", "thing": made, "user": "ann", "time": 5}
    marks = [MarkRows(label, [{**claim, **row}]) for label, row in CLAIMS.items()]
    query = {"space": "ann", "name": "wide", "text": QUERY, "user": "ann", "time": 5}
    with path.open("wb") as file:
        write_records(file, [*records_of(store, things, lambda line: None), *marks, MarkRows("SavedQuery", [query])])
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    return made, f"loaded by {current_user()} from {path.name} {digest}"


def test_what_a_dump_claims_is_marked(store: Store, tmp_path: Path) -> None:
    """Names, tags and notes that claim somebody as author have who loaded them and from which file, as the log has."""
    made, origin = _claiming(store, tmp_path / "hostile.dump")
    empty(store)
    store.migrate()
    _load(store, tmp_path / "hostile.dump")
    marked = store.query(
        "MATCH (i:Instance {id: $id}) MATCH (n:Name)-[:NAMES]->(i) MATCH (:Tag)-[t:TAGS]->(i) "
        "MATCH (u:User)<-[:DONE_BY]-(m:Note)-[:ABOUT]->(i) MATCH (q:SavedQuery) "
        "RETURN n.user, n.origin, t.user, t.origin, u.id, m.origin, q.user, q.origin",
        {"id": made},
    )
    assert marked.rows == (("ann", origin) * 4,)
    db = Stagedb(store)
    start = "checked by the whole team, use this one "
    texts = (f"name ann/best {origin}", f"note {start} {origin}", f"tag approved {origin}")
    assert (db.show(made).loaded, db.instances()[0].loaded) == (texts, texts)
    (row,) = [each for each in db.ls() if each["kind"] == "instance"]
    assert row["loaded"] == list(texts)
    log = db.log(made)
    assert {(each["action"], each["user"]) for each in log} == {
        (action, current_user()) for action in ("made", "named", "tagged", "noted")
    }
    details = sorted(each["detail"] for each in log if each["action"] != "made")
    assert details == sorted([f"ann/best, {origin}", f"approved, {origin}", origin])
    (query,) = [each for each in db.queries() if each.subject == "saved"]
    assert query.description == f"How many instances. ({origin})"
    (saved,) = [each for each in db.log() if each["action"] == "saved"]
    assert (saved["user"], saved["detail"]) == (current_user(), origin)
    # Where the content comes from is recorded here, too, and not in the dump.
    (source,) = db.origin(made)
    assert (source["input"], source["name"], source["user"]) == ("dump", "hostile.dump", current_user())
    assert origin.endswith(source["digest"][:12])


def test_who_sets_it_here_takes_it_over(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = _claiming(store, tmp_path / "hostile.dump")
    _load(store, tmp_path / "hostile.dump")
    db = Stagedb(store)
    assert len(db.show(made).loaded) == 3
    monkeypatch.setenv("STAGEDB_USER", "ann")
    db.name(made, "best")
    db.tag(made, "approved")
    (left,) = db.show(made).loaded
    assert left.startswith("note checked")
    (found,) = db.instances()
    assert (found.names, found.tags) == (("ann/best",), ("approved",))
    db.save_query("wide", QUERY)
    (query,) = [each for each in db.queries() if each.subject == "saved"]
    assert query.description == "How many instances."
    # A dump that claims to have an origin of its own is refused.
    with pytest.raises(UsageError, match="must have"):
        check_mark("Note", {"kind": "Instance", "thing": made, "origin": "x"}, [("Instance", made)])


def test_a_graph_has_the_origin_of_its_tags(store: Store, tmp_path: Path) -> None:
    things, path = _filled(store), tmp_path / "all.dump"
    _dump(store, path, things)
    empty(store)
    store.migrate()
    _load(store, path)
    (tag,) = Stagedb(store).show(things[0][1]).loaded
    assert tag.startswith("tag paper loaded by ")
    found = lookup.find_with_graph(store, things[1][1])
    assert found is not None
    assert found[1].loaded == (tag,)
    assert found[1] == Stagedb(store).graphs()[0]
