"""Dumps: content moves to a store unchanged. A file that is not sound is refused before anything is written."""

import gzip
import hashlib
import io
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stagedb.plans import Plan
from stagedb.store import Store, write_graph
from stagedb.store.contents.content_proofs import ContentProof
from stagedb.store.contents.instances import instantiate
from stagedb.store.contents.memory import analyse, record
from stagedb.store.contents.profiles import record_profile
from stagedb.store.contents.stored_programs import read_workload
from stagedb.store.dump_contents import DumpError, check_dump, write_records
from stagedb.store.dumping import load_dump, records_of
from stagedb.store.leases import Kind
from stagedb.timing import profile_job
from tests.conftest import empty
from tests.instances.small_graph import small_graph
from tests.timing.plain import PLAIN

EIGHT = Plan(tp=2, dp=2, pp=2, seq_len=16)


def _filled(store: Store) -> list[tuple[Kind, str]]:
    graph = small_graph()
    write_graph(store, graph)
    made = instantiate(store, graph.key, EIGHT)
    record(store, made, analyse(store, made))
    profile, _ = record_profile(store, profile_job(read_workload(store, made), PLAIN))
    return [("Graph", graph.key), ("Instance", made), ("Profile", profile)]


def _dump(store: Store, things: list[tuple[Kind, str]]) -> bytes:
    file = io.BytesIO()
    write_records(file, records_of(store, things, lambda line: None))
    return file.getvalue()


def _lines(dump: bytes) -> list[Any]:
    return [json.loads(line) for line in gzip.decompress(dump).splitlines()]


def _rows(dump: bytes) -> list[Any]:
    """The lines without what each store gives its own: who made a thing, and when."""
    lines = _lines(dump)
    for line in lines:
        if line.get("nodes") in ("Graph", "Instance", "Profile"):
            for _, _, values in line["rows"]:
                values.pop("builder"), values.pop("created")
    return lines[:-1]


def _sealed(lines: list[Any]) -> bytes:
    """The lines as a dump, with right numbers and a right checksum, as somebody who means harm would write them."""
    body = b"".join(json.dumps(line).encode() + b"\n" for line in lines[:-1])
    end: dict[str, dict[str, int]] = {"nodes": {}, "edges": {}}
    for line in lines[:-1]:
        for what, key in (("nodes", line.get("nodes")), ("edges", (line.get("edges") or [None])[0])):
            if isinstance(key, str) and isinstance(line.get("rows"), list):
                end[what][key] = end[what].get(key, 0) + len(line["rows"])
    last = {"end": end, "sha256": hashlib.sha256(body).hexdigest()}
    return gzip.compress(body + json.dumps(last).encode() + b"\n")


def test_a_loaded_dump_gives_the_same_rows(store: Store, tmp_path: Path) -> None:
    things = _filled(store)
    dump = _dump(store, things)
    path = tmp_path / "small.dump"
    path.write_bytes(dump)
    empty(store)
    store.migrate()
    assert load_dump(store, path, ContentProof()) == 3
    assert _rows(_dump(store, things)) == _rows(dump)
    assert load_dump(store, path, ContentProof()) == 0


def _node_rows(lines: list[Any], chance: random.Random) -> list[Any]:
    rows: list[Any] = chance.choice([line for line in lines if line.get("nodes") and line["rows"]])["rows"]
    return rows


def _edge_rows(lines: list[Any], chance: random.Random) -> list[Any]:
    rows: list[Any] = chance.choice([line for line in lines if line.get("edges") and line["rows"]])["rows"]
    return rows


def _unknown_label(lines: list[Any], chance: random.Random) -> None:
    chance.choice([line for line in lines if "nodes" in line])["nodes"] = "Op) DETACH DELETE n //"


def _unknown_property(lines: list[Any], chance: random.Random) -> None:
    chance.choice(_node_rows(lines, chance))[2]["\x1b[2J"] = 1


def _wrong_type(lines: list[Any], chance: random.Random) -> None:
    values = chance.choice(_node_rows(lines, chance))[2]
    values[chance.choice(sorted(values))] = {"a": "map"}


def _lost_id(lines: list[Any], chance: random.Random) -> None:
    del chance.choice(_node_rows(lines, chance))[2]["id"]


def _twice(lines: list[Any], chance: random.Random) -> None:
    rows = _node_rows(lines, chance)
    rows.append(chance.choice(rows))


def _no_parent(lines: list[Any], chance: random.Random) -> None:
    chance.choice(_node_rows(lines, chance))[1] = "elsewhere"


def _no_end(lines: list[Any], chance: random.Random) -> None:
    chance.choice(_edge_rows(lines, chance))[chance.choice((0, 1))] = "elsewhere"


def _lost_begin(lines: list[Any], chance: random.Random) -> None:
    lines.remove(chance.choice([line for line in lines if "begin" in line]))


def _huge_number(lines: list[Any], chance: random.Random) -> None:
    chance.choice(_node_rows(lines, chance))[2]["id"] = 1 << 70


def _newer(lines: list[Any], chance: random.Random) -> None:
    lines[0][chance.choice(("version", "schema"))] = chance.choice((0, 99, "1", True, None))


def _lost_op(lines: list[Any], chance: random.Random) -> None:
    rows = chance.choice([line for line in lines if line.get("nodes") in ("Op", "Task")])["rows"]
    rows.remove(chance.choice(rows))


HOSTILE: tuple[Callable[[list[Any], random.Random], None], ...] = (
    *(_unknown_label, _unknown_property, _wrong_type, _lost_id, _twice, _no_parent, _no_end, _lost_begin),
    *(_huge_number, _newer, _lost_op),
)


def _of(lines: list[Any], kind: str, what: str | list[str]) -> Any:
    """The rows of a label or of a kind of relationship, of which there is at least one."""
    return next(line["rows"] for line in lines if line.get(kind) == what and line["rows"])


LABELS_OF_NUMBERS = (
    *("SymTensor", "SymOp", "Instance", "RankClass", "Op", "Task", "MemoryLevel", "Memory"),
    *("LaneTime", "OpTime", "TaskTime", "Leg", "Segment"),
)


@pytest.fixture(scope="module")
def small_dump(tmp_path_factory: pytest.TempPathFactory, embedded_engine: Store) -> bytes:
    empty(embedded_engine)
    return _dump(embedded_engine, _filled(embedded_engine))


def _refused(store: Store, path: Path, lines: list[Any]) -> str:
    path.write_bytes(_sealed(lines))
    with pytest.raises(DumpError) as refused:
        load_dump(store, path, ContentProof())
    rows = store.query("MATCH (n:Graph|SymOp|SymTensor|Instance|Op|Rank|Profile|Event) RETURN count(n) AS n")
    assert rows.rows == ((0,),)
    return str(refused.value)


def _edges_of(dump: bytes) -> list[list[str]]:
    return [line["edges"] for line in _lines(dump) if "edges" in line and line["rows"]]


@pytest.mark.parametrize("how", ["lost", "twice"])
def test_a_sealed_dump_with_a_lost_or_repeated_relationship_is_refused(
    embedded_store: Store, small_dump: bytes, tmp_path: Path, how: str
) -> None:
    empty(embedded_store)
    kinds = _edges_of(small_dump)
    assert {kind[0] for kind in kinds} >= {"DEP", "NEXT", "FEEDS", "COPY_OF", "CARRIES", "CONTAINS", "OF"}
    for kind in kinds:
        for at in (0, -1):
            lines = _lines(small_dump)
            rows = _of(lines, "edges", kind)
            if how == "twice":
                rows.append(rows[at])
            else:
                rows.pop(at)
            _refused(embedded_store, tmp_path / "bad.dump", lines)


@pytest.mark.parametrize("label", LABELS_OF_NUMBERS)
def test_a_sealed_dump_with_a_changed_number_is_refused(
    embedded_store: Store, small_dump: bytes, tmp_path: Path, label: str
) -> None:
    empty(embedded_store)
    values = _of(_lines(small_dump), "nodes", label)[-1][2]
    numbers = sorted(name for name, value in values.items() if type(value) is int)
    assert numbers
    for name in numbers:
        if name == "created":
            continue
        lines = _lines(small_dump)
        changed = _of(lines, "nodes", label)[-1][2]
        changed[name] += 1
        _refused(embedded_store, tmp_path / "bad.dump", lines)


def _damaged(dump: bytes, chance: random.Random) -> bytes:
    """Bytes that are lost, or the content of another file."""
    at = chance.randrange(len(dump) - 1)
    text = bytearray(gzip.decompress(dump))
    place = chance.randrange(len(text))
    text[place] ^= 1 << chance.randrange(7)
    return chance.choice((dump[:at], gzip.compress(text), gzip.compress(text[:place]), dump[at + 1 :]))


@pytest.mark.parametrize("count", [40, 300])
def test_a_dump_that_is_not_sound_is_refused_and_nothing_is_written(
    embedded_store: Store, tmp_path: Path, count: int
) -> None:
    good = _dump(embedded_store, _filled(embedded_store))
    empty(embedded_store)
    path, chance = tmp_path / "bad.dump", random.Random(18)
    path.write_bytes(_sealed(_lines(good)))
    with path.open("rb") as file:
        check_dump(str(path), file, ContentProof())  # the seal itself is right
    for number in range(count):
        bad = _damaged(good, chance)
        if number % 2:
            lines = _lines(good)
            HOSTILE[number // 2 % len(HOSTILE)](lines, chance)
            bad = _sealed(lines)
        path.write_bytes(bad)
        with pytest.raises(DumpError) as refused:
            load_dump(embedded_store, path, ContentProof())
        assert "\x1b" not in str(refused.value)
    rows = embedded_store.query("MATCH (n:Graph|SymOp|SymTensor|Instance|Op|Rank|Profile|Event) RETURN count(n) AS n")
    assert rows.rows == ((0,),)
