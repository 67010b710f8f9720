"""Packed trace sets: what is unpacked is what would have been exported, and a file that is not sound is refused."""

import dataclasses
import hashlib
import io
import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagedb.errors import StagedbError, UsageError
from stagedb.systems import load_system
from stagedb.traces import Request, unpack_traces, validate_traces
from stagedb.traces.exporting import trace_set
from stagedb.traces.packed_file import COLUMNS, FORMAT, INDEX, SEAL, Packed, seal, write_packed
from stagedb.traces.simulators import DEFAULT
from tests.sampling import ALL, examples
from tests.traces.synthetic import workload
from tests.traces.written import export_workload, files_of, timing


def pack(path: Path, only: str | None = None, granularity: str = "op", **words: Any) -> Path:
    write_packed(path, trace_set(workload(**words), only, granularity))
    return path


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack(tmp_path_factory.mktemp("packed") / "tiny.packed", microbatches=3)


@pytest.mark.parametrize("granularity", ["op", "block"])
@pytest.mark.parametrize("processes", [1, 2])
def test_unpacked_is_what_is_exported(tmp_path: Path, granularity: str, processes: int) -> None:
    words: dict[str, Any] = {"tp": 2, "dp": 3, "pp": 2, "microbatches": 4}
    packed = pack(tmp_path / "tiny.packed", granularity=granularity, **words)
    done = unpack_traces(packed, Request(tmp_path / "unpacked", processes=processes))
    wanted = export_workload(workload(**words), tmp_path / "exported", granularity=granularity)
    assert files_of(tmp_path / "unpacked") == files_of(tmp_path / "exported")
    assert (done.files, done.nodes, done.bytes, done.world) == (wanted.files, wanted.nodes, wanted.bytes, 12)
    assert validate_traces(tmp_path / "unpacked").faults == ()


@pytest.mark.parametrize("only", ["5", "0-3", "1,6-7", "0-7:3"])
def test_some_ranks_are_what_is_exported_of_them(tmp_path: Path, file: Path, only: str) -> None:
    unpack_traces(file, Request(tmp_path / "unpacked"), only=only)
    export_workload(workload(microbatches=3), tmp_path / "exported", only=only)
    assert files_of(tmp_path / "unpacked") == files_of(tmp_path / "exported")


def test_a_part_can_be_packed_and_has_no_more(tmp_path: Path) -> None:
    packed = pack(tmp_path / "part.packed", only="2-6")
    unpack_traces(packed, Request(tmp_path / "unpacked"))
    export_workload(workload(), tmp_path / "exported", only="2-6")
    assert files_of(tmp_path / "unpacked") == files_of(tmp_path / "exported")
    with pytest.raises(UsageError, match="holds 1 of the 2 ranks"):
        unpack_traces(packed, Request(tmp_path / "more"), only="0,2")
    with pytest.raises(UsageError, match="not within the ranks 0-7"):
        unpack_traces(packed, Request(tmp_path / "more"), only="8")
    assert not (tmp_path / "more").exists()


def test_the_same_set_is_the_same_file(tmp_path: Path) -> None:
    assert pack(tmp_path / "one").read_bytes() == pack(tmp_path / "other").read_bytes()


def test_other_forms_are_unpacked_too(tmp_path: Path, file: Path) -> None:
    unpack_traces(file, Request(tmp_path / "json", format="json"), only="0")
    export_workload(workload(microbatches=3), tmp_path / "plain", only="0", format="json")
    assert files_of(tmp_path / "json") == files_of(tmp_path / "plain")


def test_it_does_not_grow_with_ranks_or_microbatches(tmp_path: Path) -> None:
    small, large = (
        pack(tmp_path / f"{ranks}.packed", tp=2, dp=ranks, pp=2, microbatches=many)
        for ranks, many in ((2, 12), (64, 120))
    )
    traces = trace_set(workload(tp=2, dp=64, pp=2, microbatches=120))
    assert large.stat().st_size < traces.bytes / 200
    assert large.stat().st_size < 5 * small.stat().st_size


def repacked(file: Path, to: Path, change: Callable[[dict[str, bytes]], None], *, sums: bool = True) -> Path:
    """The file with some members changed, and checksums that agree with them."""
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    described: Any = json.loads(members[INDEX]) if sums and members.get(INDEX, b"{") != b"{" else {}
    if described:
        for name in described["members"].keys() & members.keys():
            described["members"][name]["sha256"] = hashlib.sha256(members[name]).hexdigest()
        members[INDEX] = json.dumps(described).encode()
    with to.open("w+b") as made:
        with zipfile.ZipFile(made, "w") as archive:
            for name, data in members.items():
                archive.writestr(name, data)
            archive.comment = SEAL + b"0" * 64
        seal(made)
    return to


def column(name: str, at: int, value: int) -> Callable[[dict[str, bytes]], None]:
    def change(members: dict[str, bytes]) -> None:
        values = np.frombuffer(members[f"classes/0/{name}"], COLUMNS[name].dtype).copy()
        values[at] = value
        members[f"classes/0/{name}"] = values.tobytes()

    return change


def shorter(name: str) -> Callable[[dict[str, bytes]], None]:
    def change(members: dict[str, bytes]) -> None:
        size = np.dtype(COLUMNS[name].dtype).itemsize
        members[f"classes/0/{name}"] = members[f"classes/0/{name}"][:-size]

    return change


def index(**changes: Any) -> Callable[[dict[str, bytes]], None]:
    def change(members: dict[str, bytes]) -> None:
        members[INDEX] = json.dumps({**json.loads(members[INDEX]), **changes}).encode()

    return change


def in_set(**changes: Any) -> Callable[[dict[str, bytes]], None]:
    """Other words of the set; None leaves one out."""

    def change(members: dict[str, bytes]) -> None:
        described = {**json.loads(members[INDEX])["set"], **changes}
        index(set={word: value for word, value in described.items() if value is not None})(members)

    return change


def in_class(number: int, **changes: Any) -> Callable[[dict[str, bytes]], None]:
    """Other words of a class; None leaves one out."""

    def change(members: dict[str, bytes]) -> None:
        rows = json.loads(members[INDEX])["classes"]
        changed = {**rows[number], **changes}
        rows[number] = {word: value for word, value in changed.items() if value is not None}
        index(classes=rows)(members)

    return change


def in_files(**changes: Any) -> Callable[[dict[str, bytes]], None]:
    """More files, or others."""

    def change(members: dict[str, bytes]) -> None:
        index(files={**json.loads(members[INDEX])["files"], **changes})(members)

    return change


def replaced(old: str, new: str) -> Callable[[dict[str, bytes]], None]:
    """Another text in the index."""

    def change(members: dict[str, bytes]) -> None:
        assert old.encode() in members[INDEX]
        members[INDEX] = members[INDEX].replace(old.encode(), new.encode(), 1)

    return change


def twice(members: dict[str, bytes]) -> None:
    rows = json.loads(members[INDEX])["classes"]
    index(classes=[*rows, rows[0]])(members)


def more_members(members: dict[str, bytes]) -> None:
    held = json.loads(members[INDEX])["members"]
    index(members={**held, "classes/7/data": held["classes/0/data"]})(members)


def in_system(**changes: Any) -> Callable[[dict[str, bytes]], None]:
    def change(members: dict[str, bytes]) -> None:
        system = json.loads(members[INDEX])["set"]["system"]
        in_set(system={**system, **changes})(members)

    return change


SMALL = {"name": "x", "size": 4, "kind": "switch", "bandwidth": 1, "latency": 0, "efficiency": [[1, 1]]}

BREACHES = {
    "a wide id": column("width", 0, 10),
    "no width": shorter("width"),
    "a template beyond the data": column("data_starts", -1, 1 << 40),
    "a template that ends before it begins": column("data_starts", 1, 1 << 20),
    "a slot beyond its template": column("slots", 0, 1 << 30),
    "a slot before its template": column("slots", 0, -1),
    "an id of no task": column("slot_refs", 0, 1000),
    "a patch beyond its template": column("patches", 0, 1 << 30),
    "a patch of no byte": column("patch_sources", 0, 1000),
    "a task of no template": column("tasks", 1, 1000),
    "a negative task": column("tasks", 1, -1),
    "a rank beyond the world": column("ranks", 0, 8),
    "a rank twice": column("ranks", 0, 1),
    "one offset less": shorter("slot_offsets"),
    "one task less": shorter("tasks"),
    "one byte less": shorter("data"),
    "one value less": shorter("values"),
    "a member less": lambda members: void(members.pop("classes/0/data")),
    "no index": lambda members: void(members.pop(INDEX)),
    "an index that is no JSON": lambda members: members.update({INDEX: b"{"}),
    "an index of a list": lambda members: members.update({INDEX: b"[]"}),
    "no classes": index(classes=None),
}

SHA = "0" * 64
WRONG: dict[str, tuple[Callable[[dict[str, bytes]], None], str]] = {
    "format 0": (index(format=0), "no name of a format"),
    "a negative format": (index(format=-1), "no name of a format"),
    "a format that is true": (index(format=True), "no name of a format"),
    "a format that is NaN": (index(format=float("nan")), "NaN is not of JSON"),
    "a format with a point": (index(format=1.0), "no name of a format"),
    "nothing but a format": (
        lambda members: members.update({INDEX: f'{{"format": {FORMAT}}}'.encode()}),
        "it has no what, set",
    ),
    "another word": (index(more=1), "it has 'more'"),
    "deep nesting": (
        replaced('"classes": ', '"deep": ' + "[" * 5000 + "]" * 5000 + ', "classes": '),
        "nested too deep|'deep'",
    ),
    "deeper nesting": (lambda members: members.update({INDEX: b"[" * 200_000}), "nested too deep"),
    "no classes": (index(classes=[]), r"classes is \[\]"),
    "classes that are none": (index(classes=[3]), r"classes is \[3\]"),
    "a world of wrong type": (in_set(world="8"), "world is '8'"),
    "a world that is true": (in_set(world=True), "world is True"),
    "a world beyond memory": (in_set(world=1 << 60), "world is"),
    "a world that the plan does not make": (in_set(world=16), "the plan is of 8 ranks"),
    "no plan": (in_set(plan=None), "the set has no plan"),
    "a plan of no degrees": (in_set(plan={"rank_order": ["tp"]}), "names no degrees"),
    "a plan of no order": (in_set(plan={}), "names no degrees"),
    "a plan with a script in it": (in_set(plan={"rank_order": ["tp"], "tp": "8; rm"}), "names no degrees"),
    "a plan of plans": (in_set(plan={"tp": {"tp": 8}}), "plan is"),
    "a plan beyond numbers": (replaced('"plan": {', '"plan": {"limit": 1e999, '), "plan is"),
    "no versions": (in_set(versions=None), "the set has no versions"),
    "versions of nothing": (in_set(versions={}), "versions is"),
    "an unknown granularity": (in_set(granularity="atom"), "granularity is 'atom'"),
    "no system": (in_set(system=None), "the set has no system"),
    "a system that is none": (in_set(system={"name": "x"}), "the system, line 1: the system has no sources"),
    "a system of wrong type": (in_set(system="h100"), "system is 'h100'"),
    "a system of half a character": (in_system(name="\ud800"), "the system"),
    "a key of half a character": (in_system(**{"\ud800": 1}), "the system"),
    "a key as long as a file": (in_system(**{"k" * 100_000: 1}), "the system"),
    "a system with a command in it": (in_system(name="x\n; rm"), "name is 'x.*n; rm'"),
    "a system that is too small": (in_system(network=[SMALL]), "4 places, and the job has 8 ranks"),
    "a system that no simulator takes": (in_system(network=[{**SMALL, "size": 8, "bandwidth": ".inf"}]), "cannot take"),
    "a system written in another way": (in_system(network=[{**SMALL, "size": 8.0}]), "not in the form of systems"),
    "a system of nests": (
        replaced('"launch": ', '"deep": ' + "[" * 900 + "]" * 900 + ', "launch": '),
        "nested too deep|accelerator.deep",
    ),
    "another word of the set": (in_set(traces="et"), "the set has 'traces'"),
    "a way out": (in_set(name="../tiny", model="../tiny"), "name is"),
    "an absolute way out": (in_set(name="/etc/tiny", model="/etc/tiny"), "name is"),
    "a hidden name": (in_set(name=".tiny", model=".tiny"), "name is"),
    "a name with a command in it": (in_set(name="a;b", model="a;b"), "name is"),
    "the name of another model": (in_set(name="other"), "is called 'other'"),
    "a class twice": (twice, "two classes have one number"),
    "two classes of one digest": (
        in_class(1, digest=hashlib.sha256(b"class 0").hexdigest()),
        "two classes have one digest",
    ),
    "a digest that is none": (in_class(0, digest="any"), "digest is 'any'"),
    "a digest of wrong type": (in_class(0, digest=3), "digest is 3"),
    "no digest": (in_class(0, digest=None), "class 0 has no digest"),
    "a class that is true": (in_class(0, **{"class": True}), "class is True"),
    "a negative class": (in_class(0, **{"class": -1}), "class is -1"),
    "another encoding": (in_class(0, encoding=SHA), "digest of its encoding"),
    "one node more": (in_class(0, nodes=10**6), "nodes, not 1,000,000"),
    "nodes that are none": (in_class(0, nodes=-1), "nodes is -1"),
    "other tasks": (in_class(0, tasks=["forward 0: 1-2"]), "its tasks are not those"),
    "tasks with an end beyond numbers": (in_class(0, tasks=["forward 0: 1-" + "9" * 5000]), "its tasks are not those"),
    "tasks that are none": (in_class(0, tasks=[["forward"]]), "tasks is"),
    "stages that are none": (in_class(0, stages="0"), "stages is '0'"),
    "a class of no ranks": (in_class(0, ranks="9-1"), "ranks are '9-1'"),
    "ranks written in another way": (in_class(0, ranks=" 0, 1-3"), "in another form than 0-3"),
    "a rank in two classes": (in_class(0, ranks="0-4"), "a rank is in two classes"),
    "ranks of another class": (in_class(0, ranks="0-2"), "a rank is not of the class"),
    "a file's way out": (in_files(**{"../../run.sh": "rm"}), "which no trace set has"),
    "an absolute file": (in_files(**{"/etc/passwd": "rm"}), "which no trace set has"),
    "another script": (in_files(**{"run.sh": "#!/bin/sh\nrm -r ~\n"}), "its run.sh is not the one"),
    "a script of its own": (in_files(**{"more.sh": "#!/bin/sh\n"}), "which no trace set has"),
    "a manifest": (in_files(**{"manifest.json": "{}"}), "which no trace set has"),
    "a file in a trace's place": (in_files(**{"tiny.0.et": ""}), "which no trace set has"),
    "a file that is no text": (in_files(**{"run.sh": 3}), "its run.sh is not the one"),
    "a file of half a character": (in_files(**{"network.yml": "\ud800"}), "its network.yml is not the one"),
    "a name of half a character": (in_files(**{"\ud800": ""}), "which no trace set has"),
    "groups of half a character": (in_files(**{"tiny.json": "\ud800"}), "holds no communicator groups"),
    "no groups": (index(files={}), "no communicator groups"),
    "groups that are a script": (in_files(**{"tiny.json": "#!/bin/sh\n"}), "holds no communicator groups"),
    "groups beyond the world": (in_files(**{"tiny.json": '{"10": [0, 8]}\n'}), "holds no communicator groups"),
    "a group twice": (in_files(**{"tiny.json": '{"10": [0], "10": [1]}\n'}), "holds no communicator groups"),
    "groups with more behind them": (in_files(**{"tiny.json": '{"10": [0, 1]}\n\n'}), "holds no communicator groups"),
    "nested groups": (in_files(**{"tiny.json": "[" * 100_000}), "holds no communicator groups"),
    "a member of no class": (more_members, "which no class has"),
    "a member of no kind": (index(members={}), "it does not state classes/0/width"),
}


def void(_: object) -> None:
    """For calls whose result nobody wants."""


@pytest.mark.parametrize("breach", BREACHES)
def test_a_file_that_reaches_beyond_itself_is_refused(tmp_path: Path, file: Path, breach: str) -> None:
    broken = repacked(file, tmp_path / "broken.packed", BREACHES[breach])
    with pytest.raises(StagedbError, match="is damaged"):
        unpack_traces(broken, Request(tmp_path / "out"))
    assert [path.name for path in tmp_path.iterdir()] == ["broken.packed"]


@pytest.mark.parametrize("case", WRONG)
def test_an_index_that_cannot_be_right_is_refused(tmp_path: Path, file: Path, case: str) -> None:
    change, reason = WRONG[case]
    broken = repacked(file, tmp_path / "broken.packed", change, sums=False)
    with pytest.raises(StagedbError, match=f"broken.packed is damaged: .*(?:{reason})") as refused:
        unpack_traces(broken, Request(tmp_path / "out"))
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 400
    assert [path.name for path in tmp_path.iterdir()] == ["broken.packed"]


def test_a_packed_file_holds_no_script(tmp_path: Path, file: Path) -> None:
    with Packed(file) as packed:
        assert list(packed.index["files"]) == ["tiny.json"]
        assert "run.sh" in packed.traces().files(DEFAULT)
    with zipfile.ZipFile(file) as archive:
        assert b"#!" not in archive.read(INDEX)


def test_files_that_follow_from_the_set_may_be_in_the_index(tmp_path: Path, file: Path) -> None:
    export_workload(workload(microbatches=3), tmp_path / "exported")
    names = ("run.sh", "system.json", "network.yml", "memory.json")
    texts = {name: (tmp_path / "exported" / name).read_text() for name in names}
    more = repacked(file, tmp_path / "more.packed", in_files(**texts))
    unpack_traces(more, Request(tmp_path / "unpacked"))
    assert files_of(tmp_path / "unpacked") == files_of(tmp_path / "exported")


@pytest.mark.parametrize("name", ["system", "memory", "manifest"])
def test_a_model_with_the_name_of_another_file_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=f"two files {name}.json"):
        trace_set(dataclasses.replace(workload(), model=name))


def test_a_packed_set_keeps_its_system(tmp_path: Path) -> None:
    system = dataclasses.replace(load_system("mi300x"), name="ours", sources=("Grüße 🙂",))
    write_packed(tmp_path / "tiny.packed", trace_set(workload(), system=system))
    unpack_traces(tmp_path / "tiny.packed", Request(tmp_path / "unpacked"))
    export_workload(workload(), tmp_path / "exported", system=system)
    assert files_of(tmp_path / "unpacked") == files_of(tmp_path / "exported")
    assert json.loads((tmp_path / "unpacked" / "manifest.json").read_text())["system"] == system.to_dict()


def test_a_checksum_that_does_not_agree_is_named(tmp_path: Path, file: Path) -> None:
    broken = repacked(file, tmp_path / "broken.packed", column("data", 7, 1), sums=False)
    with pytest.raises(StagedbError, match="classes/0/data is not what was written"):
        unpack_traces(broken, Request(tmp_path / "out"))


TIMED: dict[str, tuple[Callable[[dict[str, bytes]], None], str]] = {
    "no profile": (in_set(profile=None), "class 0 has 'lanes', which this format does not know"),
    "a profile that is none": (in_set(profile="mine"), "profile is 'mine'"),
    "a profile of no step": (in_set(profile={"id": "a", "system": "h100"}), "profile is"),
    "a profile of a negative step": (in_set(profile={"id": "a", "system": "h100", "step": -1}), "profile is"),
    "a profile on another system": (in_set(profile={"id": "a", "system": "b", "step": 1}), "is of another system"),
    "a class of no lanes": (in_class(0, lanes=[]), r"lanes is \[\]"),
    "no lanes": (in_class(0, lanes=None), "class 0 has no lanes"),
    "lanes that are none": (in_class(0, lanes=["0"]), "lanes is"),
    "a lane twice": (in_class(0, lanes=[0, 1]), "a lane is there twice"),
    "another digest in one class": (in_class(0, digest=SHA), "two classes have one number"),
    "a part of another class": (in_class(0, **{"class": 1}), "two classes have one"),
}


@pytest.mark.parametrize("breach", TIMED)
def test_a_timed_set_that_cannot_be_right_is_refused(tmp_path: Path, breach: str) -> None:
    change, reason = TIMED[breach]
    made = workload(microbatches=3)
    write_packed(tmp_path / "timed.packed", trace_set(made, timing=timing(made)))
    broken = repacked(tmp_path / "timed.packed", tmp_path / "broken.packed", change)
    with pytest.raises(StagedbError, match=reason):
        unpack_traces(broken, Request(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("processes", [1, 2])
def test_a_timed_set_is_what_is_exported(tmp_path: Path, processes: int) -> None:
    made = workload(dp=3, microbatches=3)
    times = timing(made, load_system("a100-80gb"))
    write_packed(tmp_path / "timed.packed", trace_set(made, timing=times))
    unpack_traces(tmp_path / "timed.packed", Request(tmp_path / "unpacked", processes=processes))
    export_workload(made, tmp_path / "exported", times=times)
    assert files_of(tmp_path / "unpacked") == files_of(tmp_path / "exported")
    manifest = json.loads((tmp_path / "unpacked" / "manifest.json").read_text())
    assert manifest["system"]["name"] == manifest["profile"]["system"] == "a100-80gb"
    assert validate_traces(tmp_path / "unpacked").faults == ()


TRAFFIC: dict[str, tuple[Callable[[dict[str, bytes]], None], str]] = {
    "no traffic": (in_set(traffic=None), "the set has no traffic"),
    "traffic of no kind": (in_set(traffic=[{"kind": "gossip", "group": "1", "bytes": 1, "count": 1}]), "traffic is"),
    "traffic of no bytes": (
        in_set(traffic=[{"kind": "all_reduce", "group": "1", "bytes": 0, "count": 1}]),
        "traffic is",
    ),
    "traffic of no group": (
        in_set(traffic=[{"kind": "all_reduce", "group": "0", "bytes": 1, "count": 1}]),
        "such place",
    ),
    "a message to itself": (in_set(traffic=[{"kind": "send", "ends": [1, 1], "bytes": 1, "count": 1}]), "such place"),
    "a message to nobody": (in_set(traffic=[{"kind": "send", "ends": [0, 99], "bytes": 1, "count": 1}]), "such place"),
}


@pytest.mark.parametrize("breach", TRAFFIC)
def test_traffic_that_cannot_be_right_is_refused(tmp_path: Path, file: Path, breach: str) -> None:
    change, reason = TRAFFIC[breach]
    with pytest.raises(StagedbError, match=reason):
        unpack_traces(repacked(file, tmp_path / "broken.packed", change), Request(tmp_path / "out"))


@pytest.mark.parametrize(
    ("format_", "way"),
    [(FORMAT + 1, "use a newer one"), *((old, "`stagedb export --packed`") for old in range(1, FORMAT))],
)
def test_another_format_is_refused_with_the_way_out(tmp_path: Path, file: Path, format_: int, way: str) -> None:
    other = repacked(file, tmp_path / "other.packed", index(format=format_))
    with pytest.raises(UsageError, match=f"is of format {format_}") as refused:
        unpack_traces(other, Request(tmp_path / "out"))
    assert way in str(refused.value)


def test_a_flip_of_any_byte_is_refused(tmp_path: Path) -> None:
    """Dates, attributes and lengths of the archive too, which no checksum of a ZIP archive covers. Every third byte, or
    every 29th in the usual run."""
    file = pack(tmp_path / "tiny.packed", only="0", granularity="block")
    whole, path = file.read_bytes(), tmp_path / "flipped.packed"
    for at in range(0, len(whole), 3 if ALL else 29):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        with pytest.raises((StagedbError, UsageError), match="flipped"), Packed(path):
            pass


def test_the_checksum_is_that_of_other_tools(file: Path) -> None:
    data = file.read_bytes()
    assert hashlib.sha256(data[:-64]).hexdigest().encode() == data[-64:]
    with zipfile.ZipFile(file) as archive:
        assert archive.testzip() is None
        assert archive.comment == SEAL + data[-64:]


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_any_damage_is_named_or_does_no_harm(file: Path, data: st.DataObject) -> None:
    """Bytes changed, cut or added anywhere: a clear error, or the same traces."""
    whole = file.read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    how = data.draw(st.sampled_from(["change", "cut", "add"]))
    broken = {
        "change": whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :],
        "cut": whole[:at],
        "add": whole[:at] + b"more" + whole[at:],
    }[how]
    path = file.with_name("broken")
    path.write_bytes(broken)
    try:
        with Packed(path) as packed:
            found = packed.traces()
    except StagedbError:
        return
    with Packed(file) as packed:
        expected = packed.traces()
    assert [each.encoded.digest for each in found.classes] == [each.encoded.digest for each in expected.classes]
    assert [each.ranks.values.tolist() for each in found.classes] == [
        each.ranks.values.tolist() for each in expected.classes
    ]


@pytest.mark.parametrize("content", [b"", b"text", b"PK\x05\x06" + bytes(18)])
def test_what_is_no_packed_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "other").write_bytes(content)
    with pytest.raises(StagedbError, match="other is"):
        unpack_traces(tmp_path / "other", Request(tmp_path / "out"))
    with pytest.raises(UsageError, match="cannot read"):
        unpack_traces(tmp_path / "none", Request(tmp_path / "out"))
    with pytest.raises(UsageError, match="cannot read"):
        unpack_traces(tmp_path, Request(tmp_path / "out"))


def test_a_member_that_claims_to_be_huge_is_not_unpacked(tmp_path: Path, file: Path) -> None:
    buffer = io.BytesIO(file.read_bytes())
    shutil.copy(file, tmp_path / "huge.packed")
    data = bytearray(buffer.getvalue())
    entry = data.rindex(b"PK\x01\x02")  # the index, which is written last
    data[entry + 24 : entry + 28] = (0xFFFFFFF0).to_bytes(4, "little")
    (tmp_path / "huge.packed").write_bytes(data)
    with pytest.raises(StagedbError, match="states 4,294,967,280 bytes"):
        unpack_traces(tmp_path / "huge.packed", Request(tmp_path / "out"))
