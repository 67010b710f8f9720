"""Look-ups of one thing: the rows of their statements, the thing that a list would give, and what a command reads."""

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from stagedb.api import Stagedb, catalog, lookup
from stagedb.api.plan_texts import describe
from stagedb.errors import UsageError
from stagedb.plans.short_plans import short_plan
from stagedb.store import Store
from tests.ir.tiny import card
from tests.store.many import copies

MODEL = card("llama", layers=2)
PLAN: dict[str, Any] = {"tp": 2, "dp": 2}


@pytest.fixture
def shared(store: Store, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Things of ann and bob, some of one name: ids by what they are."""
    db = Stagedb(store)
    monkeypatch.setenv("STAGEDB_USER", "bob")
    bobs = db.instantiate(MODEL, name="base", tp=2)
    bobs_profile = db.profile("base", name="timed").info
    monkeypatch.setenv("STAGEDB_USER", "ann")
    monkeypatch.setenv("STAGEDB_WORKSPACE", "team")
    anns = db.instantiate(MODEL, name="base", **PLAN)
    profile = db.profile("base", name="timed").info
    plain = db.instantiate(MODEL, tp=4)
    db.name(plain.id, "team/best")
    nameless = db.instantiate(MODEL, tp=2, pp=2)
    db.tag(anns.id, "good", "cheap")
    db.note(anns.id, "first try")
    db.tag(anns.graph, "model")
    db.instantiate(MODEL, tp=2)  # asked for by ann, who has no name for it
    return {
        "bobs": bobs.id,
        "anns": anns.id,
        "plain": plain.id,
        "nameless": nameless.id,
        "graph": anns.graph,
        "profile": profile.id,
        "bobs profile": bobs_profile.id,
    }


def test_rows_of_the_look_ups(store: Store, shared: dict[str, str]) -> None:
    """(graph, query, rows), by the columns that a list does not have in the same row."""
    found = {each["id"]: each for each in store.read("lookup/instance", word="base", user="ann")}
    assert found.keys() == {shared["bobs"], shared["anns"]}
    anns, bobs = found[shared["anns"]], found[shared["bobs"]]
    assert (anns["names"], sorted(anns["tags"]), anns["notes"]) == (["ann/base"], ["cheap", "good"], ["first try"])
    assert (bobs["names"], bobs["tags"], bobs["notes"]) == (["bob/base"], [], [])
    assert (anns["asked"], isinstance(bobs["asked"], int)) == (None, True)
    assert (anns["graph_tags"], anns["graph_notes"], anns["model"]) == (["model"], [], MODEL.name)
    assert [row["classes"] for row in store.read("lookup/instance", word=shared["nameless"], user="ann")] == [2]

    def ids(statement: str, **params: str) -> list[str]:
        return sorted(row["id"] for row in store.read(f"lookup/{statement}", **params))

    for word, wanted in {
        "bob/base": ["bobs"],
        "team/best": ["plain"],
        "best": ["plain"],
        shared["anns"][:4]: ["anns"],
        shared["anns"]: ["anns"],
        shared["anns"][:3]: [],
        "": [],
        "timed": [],
        shared["profile"]: [],
        MODEL.name: ["nameless", "plain"],
    }.items():
        assert ids("instance", word=word, user="ann") == sorted(shared[each] for each in wanted), word
    assert ids("profile", word="timed", user="ann") == sorted([shared["profile"], shared["bobs profile"]])
    assert ids("profile", word="ann/timed", user="ann") == [shared["profile"]]
    assert ids("profile", word=shared["anns"], user="ann") == []
    (row,) = store.read("lookup/profile", word=shared["profile"][:8], user="ann")
    assert (row["instance"], row["names"], row["instance_names"]) == (shared["anns"], ["ann/timed"], ["ann/base"])
    assert ids("profiles_of", instance=shared["anns"], user="ann") == [shared["profile"]]
    assert ids("profiles_of", instance=shared["plain"], user="ann") == []
    instances = ("bobs", "anns", "plain", "nameless")
    assert ids("instances_of", graph=shared["graph"], user="ann") == sorted(shared[each] for each in instances)
    for word in (shared["graph"][:4], shared["graph"], MODEL.name):
        assert ids("graph", word=word) == [shared["graph"]]
    assert ids("graph", word="base") == ids("graph", word=shared["graph"][:3]) == []


def test_what_is_unfinished_is_not_found(store: Store, shared: dict[str, str]) -> None:
    for label, kind in (("Profile", "profile"), ("Instance", "instance"), ("Graph", "graph")):
        with store._session("WRITE") as session:
            session.run(f"MATCH (n:{label} {{id: $id}}) SET n.state = 'building'", id=_one(shared, kind)).consume()
        user = {} if kind == "graph" else {"user": "ann"}
        assert store.read(f"lookup/{kind}", word=_one(shared, kind), **user) == []
    assert store.read("lookup/profiles_of", instance=shared["anns"], user="ann") == []
    assert shared["anns"] not in str(store.read("lookup/instances_of", graph=shared["graph"], user="ann"))


def _one(shared: dict[str, str], kind: str) -> str:
    return shared["anns" if kind == "instance" else kind]


@pytest.mark.parametrize("user", ["ann", "bob", "eve"])
def test_a_look_up_gives_what_the_list_has(
    store: Store, shared: dict[str, str], monkeypatch: pytest.MonkeyPatch, user: str
) -> None:
    """The reference takes the words out of whole lists."""
    monkeypatch.setenv("STAGEDB_USER", user)
    words = [text for id in shared.values() for text in (id, id[:4], id[:12])]
    words += ["base", "timed", "best", "ann/base", "bob/base", "team/best", "bob/timed", MODEL.name, "none", "x", ""]
    graphs, instances, profiles = catalog.graphs(store), catalog.instances(store), catalog.profiles(store)
    for word in words:
        found = _outcome(lookup.find_instance, store, word)
        assert found == _outcome(_in_list, store, instances, word, "instance"), word
        found = _outcome(lookup.find_profile, store, word)
        assert found == _outcome(_in_list, store, profiles, word, "profile"), word
        found = _outcome(lookup.find_graph, store, word)
        assert found == _outcome(lookup.by_id, graphs, word, "graph"), word
    for id in (shared["anns"], shared["bobs"]):
        of = [each for each in profiles if each.instance == id]
        assert lookup.profiles_of(store, id) == of
        (mine,) = of
        assert lookup.find_profile(store, "timed", id) == mine
    assert lookup.instances_of(store, shared["graph"]) == instances
    assert lookup.find_with_graph(store, shared["anns"]) == (lookup.find_instance(store, shared["anns"]), *graphs)


def _in_list(store: Store, known: list[Any], word: str, what: str) -> object:
    return lookup.named(store, known, word, what) or lookup.by_id(known, word, what)


def _outcome(find: Callable[..., object], *words: object) -> object:
    """What is found, or the text of the refusal."""
    try:
        return find(*words)
    except UsageError as error:
        return str(error)


@pytest.fixture
def sent(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """The statements that are sent: mode and name."""
    found: list[tuple[str, str]] = []
    prepared = Store._statement

    def noted(self: Store, name: str, mode: str, params: Mapping[str, Any]) -> Any:
        found.append((mode, name))
        return prepared(self, name, mode, params)

    monkeypatch.setattr(Store, "_statement", noted)
    return found


CONTENT = {
    "workload/instance": 2,
    "workload/classes": 1,
    "workload/facts": 1,
    "workload/ops": 1,
    "workload/tasks": 1,
    "workload/edges": 1,
    "lifecycle/version_instance": 2,
}
"""What a shard of an instance with one rank class reads of it: its content, and twice which one it is."""


@pytest.mark.parametrize("many", [0, 300])
def test_a_shard_is_one_look_up_and_the_content(
    store: Store, sent: list[tuple[str, str]], tmp_path: Path, many: int
) -> None:
    """By name and by id; a model's graph is one more, and a profile is one more with its inputs. No write.

    It is the same with many instances in the store.
    """
    db = Stagedb(store)
    made = db.profile(model=MODEL, **PLAN)
    db.name(made.instance.id, "mine")
    db.name(made.info.id, "timed")
    if many:
        copies(store, made.instance.id, many)
    db.instantiate(MODEL, tp=2)  # the shard of an older instance does not become the newest
    profile = {"lookup/profile": 1, "lifecycle/version_profile": 2, "profile/inputs": 1, "profile/durations": 1}
    for number, (target, words, more) in enumerate(
        (
            ("mine", {}, {}),
            (made.instance.id, {}, {}),
            (None, {"model": MODEL, **PLAN}, {"lookup/graph": 1}),
            (None, {"profile": "timed"}, profile),
        )
    ):
        sent.clear()
        done = db.export(target, shard="1/4", out=tmp_path / str(number), **words)
        assert done.files == 1
        assert Counter(sent) == {("reads", name): n for name, n in {**CONTENT, "lookup/instance": 1, **more}.items()}
    assert db.instances()[0].id != made.instance.id


def test_no_command_that_names_one_thing_lists_all(store: Store, sent: list[tuple[str, str]], tmp_path: Path) -> None:
    db = Stagedb(store)
    made = db.profile(model=MODEL, **PLAN)
    db.name(made.instance.id, "mine")
    db.name(made.info.id, "timed")
    other = db.instantiate(MODEL, name="other", tp=2)
    verbs: Mapping[str, Callable[[], object]] = {
        "build": lambda: db.build(MODEL),
        "instantiate": lambda: db.instantiate(MODEL, name="again", **PLAN),
        "export": lambda: db.export("mine", out=tmp_path / "traces"),
        "profile": lambda: db.profile("mine", system="b200"),
        "memory": lambda: db.memory("mine"),
        "timeline": lambda: db.timeline("mine", out=tmp_path / "timeline.json"),
        "report": lambda: db.report("timed", out=tmp_path / "report.html"),
        "report of two": lambda: db.report("mine", "other", out=tmp_path / "two.html"),
        "query": lambda: db.query("bytes_by_axis", instance="mine"),
        "query of a profile": lambda: db.query("critical_path", profile="timed", instance="mine"),
        "show": lambda: db.show("mine"),
        "diff": lambda: db.diff("mine", "other"),
        "name": lambda: db.name("mine", "second"),
        "tag": lambda: db.tag("mine", "good"),
        "note": lambda: db.note("timed", "a text"),
        "log": lambda: db.log("mine"),
        "origin": lambda: db.origin("mine"),
        "dump": lambda: db.dump(tmp_path / "a.dump", "timed", "mine"),
    }
    lists = {f"catalog/{name}" for name in ("graphs", "instances", "profiles", "names", "tags", "notes", "asked")}
    for verb, run in verbs.items():
        sent.clear()
        run()
        assert not lists & {name for _, name in sent}, verb
        assert any(name.startswith("lookup/") for _, name in sent), verb
    sent.clear()
    db.rm(other.id)
    db.rm(made.instance.graph, force=True)
    assert not lists & {name for _, name in sent}
    assert db.ls().rows == ()


def test_a_plan_is_described_by_its_degrees_first_and_never_by_a_whole_order() -> None:
    words = {"dp": 4, "zero": 1, "ep": 2, "cp": 2, "pp": 2, "tp": 8, "task_order": ["F0 F1 F2 B0 B1 B2"] * 50}
    text = describe(words)
    assert text.startswith("tp 8 pp 2 cp 2 ep 2 dp 4 zero 1 task-order F0 F1 F2 B0 B1 B2,F0")
    assert text.endswith("…")
    assert len(text) < 110
    assert short_plan(words) == "tp8 pp2 cp2 ep2 dp4"
    assert short_plan({"tp": 1}) == "1 rank"
