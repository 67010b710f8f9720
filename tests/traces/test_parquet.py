"""Parquet tables hold the same nodes for every rank as the binary traces, and grow with classes alone."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from stagedb.errors import UsageError
from stagedb.lowering.columns import Workload
from stagedb.traces import Request, read_trace, unpack_traces, validate_traces
from stagedb.traces.bundle import CHECKSUMS
from stagedb.traces.exporting import trace_set
from stagedb.traces.formats import PACKED, OneFile
from stagedb.traces.formats.parquet_tables import NODE_COLUMNS, PARQUET, find
from stagedb.traces.trace_reading import TraceColumns
from tests.traces.synthetic import workload
from tests.traces.written import export_workload, files_of, timing

MANY = {"tp": 2, "dp": 32, "pp": 3}
"""So many ranks that one of them takes two bytes in a trace."""


def both(made: Workload, tmp_path: Path, **words: Any) -> tuple[Path, Path]:
    """A workload as binary traces and as tables."""
    for name, format in (("et", "et"), ("parquet", "parquet")):
        export_workload(made, tmp_path / name, format=format, **words)
    return tmp_path / "et", tmp_path / "parquet"


def content(trace: TraceColumns) -> dict[str, object]:
    return {field.name: getattr(trace, field.name) for field in fields(trace) if field.name != "path"}


def assert_same_nodes(traces: Path, tables: Path) -> None:
    files = {int(path.suffixes[-2][1:]): path for path in traces.glob("*.et")}
    found = find(tables)
    assert found is not None
    assert found.prefix == "tiny"
    assert sorted(found.read) == sorted(files)
    for rank, path in files.items():
        assert content(found.read[rank]()) == content(read_trace(path))


@pytest.mark.parametrize(
    "plan", [{"tp": 2, "dp": 2, "pp": 2}, {"tp": 1, "dp": 1, "pp": 4}, {"tp": 1, "dp": 1, "pp": 1}, MANY]
)
@pytest.mark.parametrize("granularity", ["op", "block"])
def test_every_rank_reads_back_as_its_binary_trace(tmp_path: Path, plan: dict[str, Any], granularity: str) -> None:
    assert_same_nodes(*both(workload(**plan, microbatches=3), tmp_path, granularity=granularity))


def test_durations_are_exact(tmp_path: Path) -> None:
    made = workload()
    traces, tables = both(made, tmp_path, times=timing(made))
    assert_same_nodes(traces, tables)
    assert any("." in path.name.split("class-")[1].removesuffix(".parquet") for path in tables.glob("*class-*"))


def test_some_ranks_have_the_classes_that_they_are_of(tmp_path: Path) -> None:
    traces, tables = both(workload(tp=2, dp=2, pp=2), tmp_path, only="0,3")
    assert_same_nodes(traces, tables)
    (file,) = tables.glob("*.class-*.parquet")
    assert set(pq.read_table(file)["ranks"].to_pylist()) == {2}


def test_a_packed_set_unpacks_to_the_same_tables(tmp_path: Path) -> None:
    made = workload()
    assert isinstance(PACKED.files, OneFile)
    PACKED.files.write(tmp_path / "all.packed", trace_set(made))
    unpack_traces(tmp_path / "all.packed", Request(tmp_path / "unpacked", format="parquet"))
    export_workload(made, tmp_path / "written", format="parquet")
    assert files_of(tmp_path / "unpacked") == files_of(tmp_path / "written")


def test_files_grow_with_classes_and_not_with_ranks(tmp_path: Path) -> None:
    few = export_workload(workload(tp=2, dp=2, pp=2), tmp_path / "few", format="parquet")
    many = export_workload(workload(tp=2, dp=64, pp=2), tmp_path / "many", format="parquet")
    assert (few.world, many.world) == (8, 256)
    assert {path.name for path in few.directory.iterdir()} == {path.name for path in many.directory.iterdir()}
    for path in few.directory.glob("*.class-*.parquet"):
        rows = [pq.read_metadata(each / path.name).num_rows for each in (few.directory, many.directory)]
        assert rows[0] == rows[1]
    assert pq.read_metadata(many.directory / "tiny.ranks.parquet").num_rows == 256


def test_a_tables_columns_have_types_and_descriptions(tmp_path: Path) -> None:
    _, tables = both(workload(), tmp_path)
    schema = pq.read_schema(tables / "tiny.class-0.parquet")
    types = {"list<int64>": "list<element: int64>"}
    assert [(each.name, str(each.type)) for each in schema] == [
        (each.name, types.get(each.type, each.type)) for each in NODE_COLUMNS
    ]
    assert all(each.metadata[b"description"] for each in schema)


def test_the_tables_answer_what_pandas_asks(tmp_path: Path) -> None:
    """FLOPs of the whole job, and the members of a group, without a trace of each rank."""
    traces, tables = both(workload(tp=2, dp=2, pp=2), tmp_path)
    nodes = pq.read_table(sorted(tables.glob("*.class-*.parquet"))).to_pandas()
    all_traces = list(traces.glob("*.et"))
    compute = nodes[nodes.type == "COMP_NODE"]
    flops = int((compute.flops * compute.ranks).sum())
    # A trace has 1 where an op has no FLOPs, which a sum must not count.
    written = [sum(each for each in read_trace(path).attributes["num_ops"] if (each or 1) > 1) for path in all_traces]
    assert flops == sum(written)
    assert 0 in compute.flops.tolist()
    ranks = pq.read_table(tables / "tiny.ranks.parquet").to_pandas()
    assert sorted(map(sorted, ranks.groupby("group_tp")["rank"].apply(list))) == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_a_set_of_tables_is_validated_like_one_of_traces(tmp_path: Path) -> None:
    _, tables = both(workload(), tmp_path)
    report = validate_traces(tables)
    assert (report.faults, report.replayed) == ((), True)
    table = pq.read_table(tables / "tiny.class-0.parquet")
    sizes = [size and size + 8 for size in table["comm_bytes"].to_pylist()]
    broken = table.set_column(table.column_names.index("comm_bytes"), table.field("comm_bytes"), [sizes])
    pq.write_table(broken, tables / "tiny.class-0.parquet")
    assert {each.rule for each in validate_traces(tables).faults} == {"checksum"}
    (tables / CHECKSUMS).unlink()
    assert {each.rule for each in validate_traces(tables).faults} == {"message"}


def test_a_damaged_table_is_named(tmp_path: Path) -> None:
    _, tables = both(workload(), tmp_path)
    (tables / "tiny.class-0.parquet").write_bytes(b"nothing")
    assert "tiny.class-0.parquet" in validate_traces(tables).faults[0].message


def test_tables_come_without_a_simulators_files(tmp_path: Path) -> None:
    _, tables = both(workload(), tmp_path)
    names = {path.name for path in tables.iterdir() if path.suffix != ".parquet"}
    assert names == {"manifest.json", "tiny.json", CHECKSUMS}


@pytest.mark.parametrize("words", [{"compress": True}, {"resume": True}, {"replay": True}, {"packed": True}])
def test_what_tables_cannot_do_is_refused(tmp_path: Path, words: dict[str, Any]) -> None:
    (option,) = ("format" if word == "packed" else word for word in words)
    with pytest.raises(UsageError, match=f"leave out --{option}"):
        export_workload(workload(), tmp_path / "traces", format=PARQUET.name, **words)
    assert list(tmp_path.iterdir()) == []


def test_the_size_of_the_tables_is_known(tmp_path: Path) -> None:
    done = export_workload(workload(), tmp_path / "tables", format="parquet")
    assert done.packed == sum(path.stat().st_size for path in done.directory.glob("*.parquet"))
    assert export_workload(workload(), tmp_path / "traces").packed is None
