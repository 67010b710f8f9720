"""An instance that somebody changed in the store is refused with its name, its class and what differs."""

from pathlib import Path
from typing import Any

import pytest

from stagedb.api import Stagedb
from stagedb.errors import StagedbError
from stagedb.store import Store, write_rank_nodes
from stagedb.store.contents.instance_digests import edges_digest, ops_digest, tasks_digest
from stagedb.store.plan_labels import LAYOUT
from tests.ir.tiny import card

PLAN = {"tp": 2, "pp": 2, "dp": 2, "zero": 1}
OF_CLASS = "MATCH (:Instance {name: 'changed'})-[:HAS_CLASS]->(:RankClass {class: 1})"
OPS = f"{OF_CLASS}-[:RUNS]->(o:Op)"
CHANGES = {
    "the FLOPs of an op": (f"{OPS} WHERE o.flops > 0 WITH o LIMIT 1 SET o.flops = o.flops + 1", "ops"),
    "the bytes of an op": (f"{OPS} WITH o LIMIT 1 SET o.bytes_read = o.bytes_read + 1", "ops"),
    "the name of an op": (f"{OPS} WITH o LIMIT 1 SET o.name = o.name + 'x'", "ops"),
    "the axis of a collective": (f"{OPS} WHERE o.axis = 'tp' WITH o LIMIT 1 SET o.axis = 'dp'", "ops"),
    "the size of a message": (f"{OPS} WHERE o.comm_bytes > 0 WITH o LIMIT 1 SET o.comm_bytes = 0", "ops"),
    "no name of an op": (f"{OPS} WITH o LIMIT 1 REMOVE o.name", "ops"),
    "the FLOPs of two ops": (
        f"{OPS} WHERE o.index < 2 WITH collect(o) AS both WITH both[0] AS a, both[1] AS b, both[0].flops AS flops "
        "SET a.flops = b.flops + 3, b.flops = flops + 3",
        "ops",
    ),
    "an edge less": (f"{OPS}-[d:DEP]->() WITH d LIMIT 1 DELETE d", "edges"),
    "an edge more": (f"{OPS} WHERE o.index < 2 WITH collect(o) AS both WITH both[0] AS a, both[1] AS b "
                     "CREATE (a)-[:DEP {kind: 'limit'}]->(b)", "edges"),
    "the kind of an edge": (f"{OPS}-[d:DEP {{kind: 'data'}}]->() WITH d LIMIT 1 SET d.kind = 'program'", "edges"),
    "a task": (f"{OF_CLASS}-[:SCHEDULES]->(t:Task) WHERE t.microbatch = 0 SET t.microbatch = 1", "tasks"),
    "a task less": (f"{OF_CLASS}-[:SCHEDULES]->(t:Task) WITH t LIMIT 1 DETACH DELETE t", "tasks"),
    "two things": (f"{OPS} WITH o LIMIT 1 SET o.temporary = o.temporary + 8 WITH o MATCH (t:Task {{class: 1}}) "
                   "SET t.chunk = 5", "ops and the tasks"),
}  # fmt: skip


def change(store: Store, text: str) -> None:
    with store._session("WRITE") as session:
        assert session.run(text).consume().counters.contains_updates


def make(store: Store) -> Stagedb:
    db = Stagedb(store)
    db.instantiate(card("llama", layers=2), name="changed", **PLAN)  # type: ignore[arg-type]
    return db


@pytest.mark.parametrize("what", list(CHANGES))
def test_what_was_changed_is_named(store: Store, tmp_path: Path, what: str) -> None:
    db = make(store)
    db.export("changed", out=tmp_path / "before")
    text, parts = CHANGES[what]
    change(store, text)
    with pytest.raises(StagedbError) as refused:
        db.export("changed", out=tmp_path / "after")
    message = str(refused.value)
    (instance,) = db.instances()
    assert f"instance {instance.id[:12]} ('changed') is damaged in the store" in message
    assert f"the {parts} of rank class 1 were changed after the instance was made" in message
    assert "remove it with `db.rm()`, and make it again" in message
    assert not (tmp_path / "after").exists()
    # The way out works, and gives what there was.
    db.rm("changed")
    make(store)
    db.export("changed", out=tmp_path / "after")
    assert contents(tmp_path / "after") == contents(tmp_path / "before")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix == ".et"}


WHOLE = "MATCH (i:Instance {name: 'changed'})"
OF_INSTANCE = {
    "the members of a group": (f"{WHOLE}-[:HAS_GROUP]->(g:Group) WITH g LIMIT 1 SET g.ranks = [0, 5]", "groups"),
    "the order of a ring": (f"{WHOLE}-[:HAS_GROUP]->(g:Group) SET g.ranks = [g.ranks[1], g.ranks[0]]", "groups"),
    "a group less": (f"{WHOLE}-[:HAS_GROUP]->(g:Group) WITH g LIMIT 1 DETACH DELETE g", "groups"),
    "the class of a rank": (f"{WHOLE} MATCH (r:Rank {{instance: i.id, `rank`: 3}}) SET r.class = 1 - r.class", "ranks"),
}
OF_LAYOUT = {
    "the classes of stages": (f"{WHOLE} SET i.class_table = [1, 0]", "ranks"),
    "the ids of groups": (f"{WHOLE} SET i.group_firsts = [x IN i.group_firsts | x + 1]", "groups"),
    "an axis": (f"{WHOLE} SET i.group_axes = ['kv'] + i.group_axes[1..]", "groups"),
}


def as_before(store: Store) -> None:
    """Make instances what an older stagedb makes: all nodes of ranks and groups, and no numbers to compute them."""
    for row in store.read("ranks/unwritten"):
        write_rank_nodes(store, row["id"])
    names = [each.name for each in LAYOUT]
    change(store, f"MATCH (i:Instance) REMOVE {', '.join(f'i.{name}' for name in names)}")


@pytest.mark.parametrize("what", [*OF_INSTANCE, *OF_LAYOUT])
def test_ranks_and_groups_have_digests_too(store: Store, tmp_path: Path, what: str) -> None:
    db = make(store)
    if what in OF_INSTANCE:
        as_before(store)
    text, part = {**OF_INSTANCE, **OF_LAYOUT}[what]
    change(store, text)
    for verb in (lambda: db.export("changed", out=tmp_path / "out"), lambda: db.profile("changed")):
        with pytest.raises(StagedbError, match=rf"\('changed'\) is damaged .*: its {part} were changed after the inst"):
            verb()


def test_an_op_less_is_counted(store: Store, tmp_path: Path) -> None:
    db = make(store)
    change(store, f"{OPS} WITH o LIMIT 1 DETACH DELETE o")
    with pytest.raises(StagedbError, match=r"instance \w+ \('changed'\) is damaged .*: rank class 1 has \d+ of its"):
        db.export("changed", out=tmp_path / "out")


def test_times_and_memory_are_not_computed_from_what_was_changed(store: Store) -> None:
    db = make(store)
    change(store, CHANGES["the FLOPs of an op"][0])
    for verb in (lambda: db.profile("changed"), lambda: db.memory("changed")):
        with pytest.raises(StagedbError, match="the ops of rank class 1 were changed"):
            verb()


def test_an_instance_from_before_the_digests_is_taken_as_it_is(store: Store, tmp_path: Path) -> None:
    db = make(store)
    change(store, "MATCH (c:RankClass) REMOVE c.ops_digest, c.edges_digest, c.tasks_digest")
    change(store, "MATCH (i:Instance) REMOVE i.ranks_digest, i.groups_digest")
    change(store, CHANGES["the FLOPs of an op"][0])
    as_before(store)
    change(store, OF_INSTANCE["the order of a ring"][0])
    assert db.export("changed", out=tmp_path / "out").files == 8


def test_an_instance_with_nodes_and_no_layout_gives_the_same(store: Store, tmp_path: Path) -> None:
    db = make(store)
    profiled = db.profile("changed", name="timed")
    db.export("changed", out=tmp_path / "computed")
    rows = db.query("exposed_collectives").rows
    as_before(store)
    db.export("changed", out=tmp_path / "read")
    assert contents(tmp_path / "read") == contents(tmp_path / "computed")
    assert db.query("exposed_collectives").rows == rows != ()
    db.rm("timed")
    assert db.profile("changed").step == profiled.step


def some(count: int) -> dict[str, Any]:
    """Columns of ops, as the statement returns them."""
    numbers = ("index", "position", "layer", "chunk", "order", "flops", "bytes", "temporary", "size", "result", "peer")
    texts = ("id", "sym", "name", "block", "template", "type", "when", "kind", "phase", "axis", "dtype")
    return {
        **{name: [at * 7 + place for at in range(count)] for place, name in enumerate(numbers)},
        **{name: [f"{name}{at}" for at in range(count)] for name in texts},
    }


def test_the_order_of_the_store_does_not_matter() -> None:
    for count in (1, 2, 9):
        ops = some(count)
        assert ops_digest({name: values[::-1] for name, values in ops.items()}) == ops_digest(ops)
    edges: dict[str, Any] = {"source": [0, 1, 1, 0], "target": [2, 2, 2, 1], "kind": ["data", "data", "limit", "data"]}
    assert edges_digest({name: values[::-1] for name, values in edges.items()}) == edges_digest(edges)


@pytest.mark.parametrize("column", some(0))
def test_every_column_counts(column: str) -> None:
    ops = some(3)
    other = "x" if isinstance(ops[column][1], str) else 1 << 62
    changed = {**ops, column: [ops[column][0], other, ops[column][2]]}
    shorter = {**ops, column: ops[column][:2]}
    assert len({ops_digest(ops), ops_digest(changed), ops_digest(shorter)}) == 3


def test_stored_digests_keep_their_meaning() -> None:
    """Digests in stores were made by this definition. If one of these changes, sound instances look damaged."""
    tasks: dict[str, Any] = {
        "index": [1, 0],
        "id": ["b", "a"],
        "kind": ["step", "forward"],
        "microbatch": [0, 0],
        "chunk": [0, 0],
    }
    ends = {"first": [True, False], "last": [True, True]}
    edges: dict[str, Any] = {"source": [0, 1], "target": [2, 2], "kind": ["data", "program"]}
    assert [ops_digest(some(3))[:16], tasks_digest({**tasks, **ends})[:16], edges_digest(edges)[:16]] == [
        "117aa11d9fe4f7b9",
        "63ac69643fd2a44e",
        "b8bc00480594669c",
    ]
