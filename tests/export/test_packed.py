"""Packed trace sets: what is unpacked is what would have been exported, and a file that is not sound is refused."""

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
from stagedb.export import Request, unpack_traces, validate_traces
from stagedb.export.exporting import trace_set
from stagedb.export.packed import COLUMNS, INDEX, Packed, write_packed
from tests.export.synthetic import workload
from tests.export.written import export_workload, files_of


def pack(path: Path, only: str | None = None, granularity: str = "op", **said: Any) -> Path:
    write_packed(path, trace_set(workload(**said), only, granularity))
    return path


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack(tmp_path_factory.mktemp("packed") / "tiny.packed", microbatches=3)


@pytest.mark.parametrize("granularity", ["op", "block"])
@pytest.mark.parametrize("processes", [1, 2])
def test_unpacked_is_what_is_exported(tmp_path: Path, granularity: str, processes: int) -> None:
    said: dict[str, Any] = {"tp": 2, "dp": 3, "pp": 2, "microbatches": 4}
    packed = pack(tmp_path / "tiny.packed", granularity=granularity, **said)
    done = unpack_traces(packed, Request(tmp_path / "unpacked", processes=processes))
    wanted = export_workload(workload(**said), tmp_path / "exported", granularity=granularity)
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
    said: Any = json.loads(members[INDEX]) if sums and members.get(INDEX, b"{") != b"{" else {}
    if said:
        for name in said["members"].keys() & members.keys():
            said["members"][name]["sha256"] = hashlib.sha256(members[name]).hexdigest()
        members[INDEX] = json.dumps(said).encode()
    with zipfile.ZipFile(to, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
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


def index(**said: Any) -> Callable[[dict[str, bytes]], None]:
    def change(members: dict[str, bytes]) -> None:
        members[INDEX] = json.dumps({**json.loads(members[INDEX]), **said}).encode()

    return change


def named(name: str) -> Callable[[dict[str, bytes]], None]:
    def change(members: dict[str, bytes]) -> None:
        said = json.loads(members[INDEX])
        members[INDEX] = json.dumps({**said, "set": {**said["set"], "name": name}}).encode()

    return change


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
    "a class of no ranks": index(classes=[{"class": 0, "nodes": 1, "bytes": 1, "ranks": "9-1"}]),
    "a world of wrong type": index(set={"name": "tiny", "world": "8"}),
    "a world beyond memory": index(set={"name": "tiny", "world": 1 << 60}),
    "a way out": named("../tiny"),
    "an absolute way out": named("/etc/tiny"),
    "a hidden name": named(".tiny"),
    "a file's way out": index(files={"../../run.sh": "rm"}),
    "a file that is no text": index(files={"run.sh": 3}),
}


def void(_: object) -> None:
    """For calls whose result nobody wants."""


@pytest.mark.parametrize("breach", BREACHES)
def test_a_file_that_reaches_beyond_itself_is_refused(tmp_path: Path, file: Path, breach: str) -> None:
    broken = repacked(file, tmp_path / "broken.packed", BREACHES[breach])
    with pytest.raises(StagedbError, match="is damaged"):
        unpack_traces(broken, Request(tmp_path / "out"))
    assert [path.name for path in tmp_path.iterdir()] == ["broken.packed"]


def test_a_checksum_that_does_not_agree_is_told(tmp_path: Path, file: Path) -> None:
    broken = repacked(file, tmp_path / "broken.packed", column("data", 7, 1), sums=False)
    with pytest.raises(StagedbError, match="classes/0/data is not what was written"):
        unpack_traces(broken, Request(tmp_path / "out"))


def test_a_newer_format_is_told(tmp_path: Path, file: Path) -> None:
    newer = repacked(file, tmp_path / "newer.packed", index(format=2))
    with pytest.raises(UsageError, match="use a newer one"):
        unpack_traces(newer, Request(tmp_path / "out"))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_damage_is_told_or_does_no_harm(file: Path, data: st.DataObject) -> None:
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


def test_a_member_that_says_it_is_huge_is_not_unpacked(tmp_path: Path, file: Path) -> None:
    buffer = io.BytesIO(file.read_bytes())
    shutil.copy(file, tmp_path / "huge.packed")
    data = bytearray(buffer.getvalue())
    entry = data.rindex(b"PK\x01\x02")  # the index, which is written last
    data[entry + 24 : entry + 28] = (0xFFFFFFF0).to_bytes(4, "little")
    (tmp_path / "huge.packed").write_bytes(data)
    with pytest.raises(StagedbError, match="says that it has 4,294,967,280 bytes"):
        unpack_traces(tmp_path / "huge.packed", Request(tmp_path / "out"))
