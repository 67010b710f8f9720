"""The schema table, and what the store holds of it."""

import itertools
import re
from typing import Any

import pytest

from stagedb.frameworks import find_framework
from stagedb.graphs.graph_identity import model_sizes
from stagedb.models import card_names, load_card
from stagedb.places import statements_directory
from stagedb.plans import WORDS, Plan
from stagedb.plans.written_words import OPTION_WORDS
from stagedb.store import LABELS, RELATIONSHIPS, Store, delete, load, names, naming, schema, write_graph
from stagedb.store.contents.instances import instantiate
from stagedb.store.contents.matches import record_match
from stagedb.store.contents.memory import analyse, record
from stagedb.store.contents.profiles import record_profile
from stagedb.store.contents.run_reading import read_run
from stagedb.store.contents.runs import record_run
from stagedb.store.contents.searches import record_search
from stagedb.store.contents.stored_programs import read_program, read_workload
from stagedb.store.label_statements import label_statements
from stagedb.store.leases import Kind
from stagedb.store.plan_labels import OPTIONS, PLAN_WORDS, SIZES
from stagedb.store.saved_queries import save_query
from stagedb.store.schema_forms import words_of
from stagedb.store.team_labels import TEAM_LABELS
from stagedb.timing import profile_job
from tests.instances.small_graph import small_graph
from tests.matching.small_match import small_match
from tests.runs.execution_traces import untimed_step
from tests.runs.recordings import served_run, small_run
from tests.store.searches import small_request, working
from tests.timing.plain import PLAIN

EIGHT = Plan(tp=2, dp=2, pp=2, seq_len=16)

TEAM = {label.name for label in TEAM_LABELS}

PYTHON: dict[str, type] = {"string": str, "integer": int, "float": float, "boolean": bool}


def fits(value: Any, declared: str) -> bool:
    if declared.endswith("?"):
        declared = declared[:-1]
    if declared.endswith("[]"):
        return isinstance(value, list) and all(fits(each, declared[:-2]) for each in value)
    return type(value) is PYTHON[declared]


def _fill(store: Store) -> None:
    """Some nodes of every label."""
    write_graph(store, small_graph())
    made = instantiate(store, small_graph().key, EIGHT)
    record(store, made, analyse(store, made))
    profile, _ = record_profile(store, profile_job(read_workload(store, made), PLAIN))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STAGEDB_USER", "ada")
        instantiate(store, small_graph().key, EIGHT)
        record_profile(store, profile_job(read_workload(store, made), PLAIN))
    naming.set_name(store, "Instance", made, naming.wanted_name(store, "base"))
    naming.set_name(store, "Profile", profile, naming.wanted_name(store, "base"))
    request = small_request()
    record_search(store, request, working(request), lambda each: made)
    run = small_run()
    record_run(store, run)
    record_run(store, served_run())
    record_run(store, untimed_step())
    naming.set_name(store, "Run", run.id, naming.wanted_name(store, "base"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STAGEDB_USER", "ada")
        record_run(store, run)
    record_match(store, made, small_match(read_run(store, run.id), read_program(store, made)))
    ids: dict[Kind, str] = {"Graph": small_graph().key, "Instance": made, "Profile": profile, "Search": request.id}
    ids["Run"] = run.id
    for kind, id in ids.items():
        naming.add_tag(store, kind, id, "kept")
        naming.add_note(store, kind, id, "why")
    save_query(store, naming.wanted_name(store, "mine"), QUERY)
    write_job(store, instance=made, profile=profile, search=request.id, run=run.id)


def write_job(store: Store, **links: str) -> None:
    texts = dict.fromkeys(("kind", "what", "host", "user", "unit", "detail"), "word")
    properties = {**texts, "state": "running", "done": 1, "of": 2}
    store.write("jobs/write", id="job", properties=properties, ago=1_500, **links)


QUERY = """// All graphs.
//
// mode: reads
// column id: string — its id
MATCH (g:Graph) RETURN g.id AS id
"""


def test_every_property_of_every_node_is_in_the_table_with_its_type(store: Store) -> None:
    _fill(store)
    for label in LABELS:
        table = {row.name: row.type for row in label.properties}
        wanted = {name for name, kind in table.items() if not kind.endswith("?")}
        nodes = store.query(f"MATCH (n:{label.name}) RETURN properties(n) AS p, labels(n) AS l").rows
        assert nodes, label.name
        for properties, labels in nodes:
            assert set(labels) <= {label.name, *label.also}
            assert set(properties) <= set(table), label.name
            assert wanted <= set(properties), label.name
            for name, value in properties.items():
                assert fits(value, table[name]), (label.name, name, value)


def test_the_edges_of_the_store_are_those_of_the_table(store: Store) -> None:
    _fill(store)
    mains = {label.name for label in LABELS}
    known = {(edge.source, edge.type, edge.target) for edge in RELATIONSHIPS}
    found = set()
    for label in LABELS:
        rows = store.query(
            f"MATCH (a:{label.name})-[r]->(b) RETURN DISTINCT labels(a) AS a, type(r) AS t, labels(b) AS b"
        ).rows
        found |= {((set(source) & mains).pop(), kind, (set(target) & mains).pop()) for source, kind, target in rows}
    # The small graph has operators without tensors that they read or write.
    no_tensors = {
        (*ends, "SymTensor") for ends in (("SymOp", "READS"), ("SymOp", "WRITES"), ("SymTensor", "GRADIENT_OF"))
    }
    assert found == known - no_tensors
    connected = {label for source, _, target in found for label in (source, target)}
    assert mains - connected == {"Store", "Rank", "SavedQuery"}
    for edge in RELATIONSHIPS:
        allowed = {row.name for row in edge.properties}
        rows = store.query(
            f"MATCH (:{edge.source})-[r:{edge.type}]->(:{edge.target}) UNWIND keys(r) AS k RETURN DISTINCT k AS k"
        ).rows
        assert {key for (key,) in rows} <= allowed, edge


def test_every_word_of_a_plan_and_every_size_of_a_model_is_a_property(store: Store) -> None:
    assert {row.name for row in PLAN_WORDS} == WORDS.keys() - {"ranks"}
    assert OPTIONS.keys() == OPTION_WORDS.keys()
    for name in card_names():
        card = load_card(name)
        # A kind with heads or a width of its own has sizes of its own, such as `D_local`.
        own = {f"{symbol}_{kind}" for symbol in ("A", "KV", "D", "DV", "F") for kind in card.kinds}
        assert model_sizes(card, find_framework("torch")).keys() <= SIZES.keys() | own, name
    write_graph(store, small_graph())
    made = instantiate(store, small_graph().key, EIGHT, name="eight")
    rows = store.query(
        "MATCH (i:Instance {tp: 2, dp: 2, pp: 2, zero: 0, schedule: '1f1b'})-[:OF]->(g:Graph {layers: 2, hidden: 8}) "
        "RETURN i.id AS id, i.seq_len AS s, i.global_batch_size AS b, i.layers_per_stage AS l, i.microbatches AS m, "
        "i.scatter_gather AS o, g.recipe AS r"
    ).rows
    assert rows == ((made, 16, 2, [1, 1], 1, False, "torch"),)


def test_every_label_has_its_statements_and_none_is_written_twice() -> None:
    made = label_statements()
    assert {f"around/{label.name.lower()}" for label in LABELS if label.unique == "id" and label.name != "Store"} == {
        name for name in made if name.startswith("around/")
    }
    for owner in schema.OWNERS:
        assert f"lifecycle/claim_{owner.lower()}" in made
        for label, _ in schema.members(owner):
            assert f"lifecycle/clear_{label.name.lower()}" in made
        low, many = owner.lower(), words_of(owner)["plural"]
        assert {f"team/keep_tags_{low}", f"team/keep_notes_{low}", f"team/unnamed_{many}"} <= set(made)
        assert {f"catalog/{many}", f"lookup/{low}"} <= set(made)
    assert [name for name in made if name.startswith("team/keep_names_")] == [
        f"team/keep_names_{label.lower()}" for label in schema.NAMED
    ]
    assert not [name for name in made if (statements_directory() / f"{name}.cypher").exists()]
    assert set(made) <= set(names())


def test_lists_show_properties_of_the_schema() -> None:
    """Statements of lists do not import the schema, and have the types that it has."""
    for owner in schema.OWNERS:
        statement = load(f"catalog/{words_of(owner)['plural']}")
        (label,) = (label for label in LABELS if label.name == owner)
        types = {row.name: row.type for row in label.properties}
        shown = {
            each.name: each.type for each in statement.columns if f"n.{each.name} AS {each.name}" in statement.text
        }
        assert len(shown) >= 7
        assert shown.items() <= types.items()
        if (parent := schema.parent_of(owner)) is not None:
            assert f"(n:{owner} {{state: 'ready'}})-[:OF]->(of:{parent}" in statement.text


def test_nodes_that_are_drawn_next_to_each_other_differ_in_colour() -> None:
    colours = {label.name: label.style[0] for label in LABELS}
    joined = [(each.source, each.target) for each in RELATIONSHIPS if each.source != each.target]
    # What Explore begins with.
    joined += itertools.combinations(("OpTime", "Op", "SymOp", "Segment", "Leg", "TaskTime", "LaneTime"), 2)
    assert [pair for pair in joined if colours[pair[0]] == colours[pair[1]]] == []


def test_what_is_deleted_with_an_owner_is_all_that_it_made(store: Store) -> None:
    """Every label of content belongs to one owner; nothing of an instance and its profiles is left."""
    owned = [label.name for owner in schema.OWNERS for label, _ in schema.members(owner)]
    assert sorted(owned) == sorted(label.name for label in LABELS if label.name not in ("Store", *TEAM, *schema.OWNERS))
    write_graph(store, small_graph())
    made = instantiate(store, small_graph().key, EIGHT)
    record(store, made, analyse(store, made))
    record_profile(store, profile_job(read_workload(store, made), PLAIN))
    delete(store, "Instance", made)
    kept = {"Store", "Graph", "SymOp", "SymTensor", "User", "Event", "Input"}
    for label in LABELS:
        (left,) = store.query(f"MATCH (n:{label.name}) RETURN count(n) AS n").rows[0]
        assert bool(left) == (label.name in kept), label.name
    delete(store, "Graph", small_graph().key)
    (left,) = store.query("MATCH (n:Graph|SymOp|SymTensor) RETURN count(n) AS n").rows[0]
    assert left == 0


def test_constraints_and_indexes_are_there_and_may_be_made_again(store: Store) -> None:
    store.migrate()
    with store._session("WRITE") as session:
        for text in schema.definitions():
            session.run(text).consume()
        found = {
            (tuple(row["labelsOrTypes"] or ()), tuple(row["properties"] or ())) for row in session.run("SHOW INDEXES")
        }
    for label in LABELS:
        for keys in (*(() if label.unique is None else ((label.unique,),)), *label.indexes):
            assert ((label.name,), keys) in found


def test_the_page_has_everything() -> None:
    page = schema.page()
    for label in LABELS:
        assert f"## :{label.name}\n" in page
        for row in label.properties:
            assert f"| `{row.name}` | {row.type} | {row.unit or ''} | {row.description} |" in page
    for edge in RELATIONSHIPS:
        assert f"(:{edge.source})-[:{edge.type}]->(:{edge.target})" in page


SCAN = re.compile(r"(Nodes?By(Any)?Labels?|AllNodes|AllRelationships|RelationshipTypes?)Scan")
"""Operators that read all nodes of a label, or all relationships of a type."""

SCANS = {
    # A list of everything: no property and no relationship chooses what is in it.
    "catalog/graphs": "all graphs",
    "catalog/instances": "all instances",
    "catalog/profiles": "all profiles",
    "catalog/searches": "all searches",
    "catalog/runs": "all runs",
    "catalog/profile_names": "all profiles",
    "catalog/names": "all names",
    "catalog/tags": "all tags",
    "catalog/notes": "all notes",
    "catalog/newest_instances": "all instances, of which the newest are wanted",
    "catalog/newest_profiles": "all profiles, of which the newest are wanted",
    "catalog/plans": "all instances: any words of a plan, most of which have no index",
    "jobs/forget_old": "all jobs, of which a store keeps 200",
    "jobs/newest": "all jobs, of which a store keeps 200",
    "catalog/peaks": "all instances that have a memory",
    "schema/older_instances": "all instances of a store that is refused",
    "lifecycle/asked_instance": "all instances of a user",
    "lifecycle/asked_profile": "all profiles of a user",
    "lifecycle/asked_run": "all runs of a user",
    "ranks/unwritten": "all instances some of whose ranks have no node",
    "team/all_names": "all names",
    "team/all_notes": "all notes",
    "team/all_tags": "all tags",
    "team/find_under_plan": "all profiled instances: any words of a plan, most of which have no index",
    "team/saved_queries": "all saved queries",
    "team/unknown_memory": "all profiled instances, to find those of an older version",
    "team/unnamed_graphs": "all graphs that are older than a time",
    "team/unnamed_instances": "all instances that are older than a time",
    "team/unnamed_profiles": "all profiles that are older than a time",
    "team/unnamed_searches": "all searches that are older than a time",
    "team/unnamed_runs": "all runs that are older than a time",
    # What an interrupted run left: a handful of nodes have these labels, and `state` has no index.
    "catalog/unfinished": "all that is not whole",
    # It stops at the first node.
    "schema/is_empty": "whether there is any node",
    **{name: "all that may belong to nothing" for name in names() if name.startswith("check/lost_")},
    "check/things": "all complete things",
}
"""Statements that scan a label, each with what it wants all of. No named query (`analyze/`) is among them."""


def test_neo4j_plans_every_statement_without_scanning_the_store(neo4j_store: Store) -> None:
    """Every statement finds its nodes by an index or along relationships, except those that list everything."""
    _fill(neo4j_store)
    found = {}
    for name in sorted({*names()} - {*SCANS}):
        statement = load(name)
        with neo4j_store._session("READ") as session:
            params = {field.name: _example(field.type) for field in statement.params}
            plan = session.run(f"EXPLAIN {statement.text}", params).consume().plan
        assert plan is not None
        scans = [f"{operator} {details}" for operator, details in _operators(plan) if SCAN.search(operator)]
        if scans:
            found[name] = scans
    assert found == {}
    assert not any(name.startswith("analyze/") for name in SCANS)
    assert set(SCANS) <= set(names())


def _example(declared: str) -> Any:
    if declared.endswith("?"):
        return _example(declared[:-1])
    if declared.endswith("[]"):
        return [_example(declared[:-2])]
    return {"string": "x", "integer": 1, "float": 1.0, "boolean": True, "map": {}}[declared]


def _operators(plan: dict[str, Any]) -> list[tuple[str, str]]:
    here = [(plan["operatorType"], plan["args"].get("Details", ""))]
    return here + [each for child in plan.get("children", ()) for each in _operators(child)]
