"""A trace set on disk: its files, slices of it, its other forms, what it has in addition to the traces."""

import dataclasses
import gzip
import json
import stat
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from stagedb.errors import StagedbError, UsageError
from stagedb.lowering.columns import Groups, Workload
from stagedb.traces import validate_traces
from stagedb.traces.rank_sets import format_ranks, parse_ranks
from stagedb.traces.set_output import Request
from tests.sampling import examples
from tests.traces.plain import parse, plain_nodes
from tests.traces.synthetic import workload
from tests.traces.written import export_workload
from tests.traces.written import traces_of as traces


@settings(max_examples=examples(25), deadline=None)
@given(
    st.sampled_from([1, 2, 4]),
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(1, 6),
    st.sampled_from(["gpipe", "1f1b"]),
)
def test_what_is_exported_is_sound_and_runs(tp: int, dp: int, pp: int, microbatches: int, schedule: str) -> None:
    made = workload(tp=tp, dp=dp, pp=pp, microbatches=microbatches, schedule=schedule)
    with TemporaryDirectory() as scratch:
        out = Path(scratch) / "traces"
        done = export_workload(made, out, replay=False)
        report = validate_traces(out)
        assert report.faults == ()
        assert report.replayed
        assert (report.files, report.nodes) == (done.files, done.nodes) == (tp * dp * pp, report.nodes)
        assert done.bytes == sum(map(len, traces(out).values()))


def test_processes_and_slices_write_the_same_bytes(tmp_path: Path) -> None:
    made = workload(tp=2, dp=3, pp=2, microbatches=3)
    export_workload(made, tmp_path / "alone", processes=1)
    progress: list[tuple[int, int, int]] = []
    done = export_workload(made, tmp_path / "shared", processes=2, progress=lambda *counts: progress.append(counts))
    assert traces(tmp_path / "alone") == traces(tmp_path / "shared")
    assert progress[-1] == (12, 12, done.bytes)
    assert not (tmp_path / "shared" / ".classes").exists()
    for index, only in enumerate(["0-4,7", "5-6", "8-11"]):
        export_workload(made, tmp_path / f"slice{index}", only=only)
    slices = [traces(tmp_path / f"slice{index}") for index in range(3)]
    assert {**slices[0], **slices[1], **slices[2]} == traces(tmp_path / "alone")
    assert [len(each) for each in slices] == [6, 2, 4]
    report = validate_traces(tmp_path / "slice0")
    assert report.faults == ()
    assert (report.files, report.world, report.replayed) == (6, 12, False)


def test_the_manifest_describes_the_files(tmp_path: Path) -> None:
    made = workload(tp=2, dp=2, pp=2, microbatches=2)
    export_workload(made, tmp_path / "traces", only="0-1,6")
    manifest = json.loads((tmp_path / "traces" / "manifest.json").read_text())
    assert (manifest["world"], manifest["only"], manifest["instance"]) == (8, "0-1,6", made.instance)
    assert manifest["plan"] == made.plan
    assert [each["ranks"] for each in manifest["classes"]] == ["0-3", "4-7"]
    assert manifest["classes"][0]["digest"] == workload().classes[0].digest
    for each in manifest["classes"]:
        rank = {"0-3": 0, "4-7": 6}[each["ranks"]]
        raw = (tmp_path / "traces" / f"tiny.{rank}.et").read_bytes()
        metadata, nodes = parse(raw)
        assert (each["bytes"], each["nodes"]) == (len(raw), len(nodes))
        assert {a.name: a.int64_val for a in metadata.attr}["class"] == each["class"]
        spans = [task.split(": ")[1].split("-") for task in each["tasks"]]
        assert [int(first) for first, _ in spans] == [1, *(int(last) + 1 for _, last in spans[:-1])]
        assert int(spans[-1][1]) == len(nodes)


def test_the_simulators_inputs_fit_the_traces(tmp_path: Path) -> None:
    out = tmp_path / "traces"
    export_workload(workload(tp=4, dp=1, pp=2), out)
    network = yaml.safe_load((out / "network.yml").read_text())
    assert network["npus_count"] == [8]
    system = json.loads((out / "system.json").read_text())
    for collective in ("all-reduce", "all-gather", "reduce-scatter", "all-to-all"):
        assert len(system[f"{collective}-implementation"]) == 1
    assert json.loads((out / "memory.json").read_text()) == {"memory-type": "NO_MEMORY_EXPANSION"}
    assert json.loads((out / "tiny.json").read_text()) == {"1": [0, 1, 2, 3], "2": [4, 5, 6, 7]}
    assert (out / "run.sh").stat().st_mode & stat.S_IXUSR


def test_json_has_what_the_binary_trace_has(tmp_path: Path) -> None:
    made = workload()
    export_workload(made, tmp_path / "traces", format="json")
    document = json.loads((tmp_path / "traces" / "tiny.5.json").read_text())
    assert document["rank"] == 5
    for ours, node in zip(document["workload_graph"], plain_nodes(made, 5), strict=True):
        assert (ours["Id"], ours["Name"], ours["NodeType"]) == (node.id, node.name, node.type)
        assert (ours["ctrl_deps"], ours["data_deps"]) == (list(node.ctrl_deps), list(node.data_deps))
        for each in node.attr:
            assert ours[each.name] == getattr(each, each.WhichOneof("value") or "")


def test_compressed_traces_hold_the_same(tmp_path: Path) -> None:
    export_workload(workload(), tmp_path / "plain")
    export_workload(workload(), tmp_path / "packed", compress=True)
    plain, packed = traces(tmp_path / "plain"), traces(tmp_path / "packed")
    assert {name: gzip.decompress(data) for name, data in packed.items()} == plain
    assert validate_traces(tmp_path / "packed").faults == ()


@given(st.sets(st.integers(0, 40), min_size=1))
def test_ranks_are_read_as_they_are_written(ranks: set[int]) -> None:
    assert parse_ranks(format_ranks(np.array(sorted(ranks))), 41).tolist() == sorted(ranks)


@pytest.mark.parametrize("only", ["", "a", "3-1", "8", "0-8", "-1", "1,,2", "1-2-3", "٣", "0-7:0", "0:2"])
def test_ranks_that_are_none_are_refused(tmp_path: Path, only: str) -> None:
    with pytest.raises(UsageError, match="--only"):
        Request(tmp_path / "traces").check(8, only)


def test_requests_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--format"):
        export_workload(workload(), tmp_path / "traces", format="xml")
    with pytest.raises(UsageError, match="--replay"):
        export_workload(workload(), tmp_path / "traces", only="0", replay=True)
    assert list(tmp_path.iterdir()) == []


def changed(made: Workload, number: int, op: str, **values: object) -> Workload:
    """The workload with an op of a class changed."""
    each = made.classes[number]
    row = each.ops.name.index(op)
    columns: dict[str, object] = {}
    for name, value in values.items():
        column = getattr(each.ops, name)
        if isinstance(column, tuple):
            columns[name] = (*column[:row], value, *column[row + 1 :])
        else:
            columns[name] = np.concatenate([column[:row], [value], column[row + 1 :]])
    ops = dataclasses.replace(each.ops, **columns)  # type: ignore[arg-type]
    classes = [*made.classes]
    classes[number] = dataclasses.replace(each, ops=ops)
    return dataclasses.replace(made, classes=tuple(classes))


def without_group(made: Workload) -> Workload:
    groups = made.groups
    return dataclasses.replace(made, groups=Groups(groups.gid[:1], groups.axis[:1], groups.sizes[:1], groups.ranks[:2]))


def spread_over_stages(made: Workload) -> Workload:
    """The groups of axis dp span both stages, which issue different collectives."""
    shape = Groups(np.array([1, 2, 3, 4]), ("tp", "tp", "tp", "tp"), np.full(4, 2), np.array([0, 4, 1, 5, 2, 6, 3, 7]))
    groups = Groups(
        np.arange(10, 18),
        (*shape.axis, "dp", "dp", "dp", "dp"),
        np.full(8, 2),
        np.concatenate([shape.ranks, [0, 2, 1, 3, 4, 6, 5, 7]]),
    )
    return changed(dataclasses.replace(made, groups=groups), 1, "layer.0.gather", size=4096)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (changed(workload(), 0, "layer.0.gather", size=0), "layer.0.gather of class 0 moves 0 bytes"),
        (changed(workload(), 0, "layer.0.gather", size=8), "gathers 8 bytes"),
        (changed(workload(), 1, "bucket.1", kind="broadcast"), "is a broadcast"),
        (changed(workload(), 0, "cut.send_forward", size=512), "class 0 sends messages of other sizes"),
        (changed(workload(), 0, "cut.send_forward", towards=-1), "sends"),
        (without_group(workload()), "has no group"),
        (spread_over_stages(workload()), "issue different collectives"),
    ],
    ids=["nothing", "tiny", "unknown", "size", "peer", "group", "order"],
)
def test_what_would_break_a_rule_is_not_written(tmp_path: Path, made: Workload, message: str) -> None:
    with pytest.raises(StagedbError, match=message):
        export_workload(made, tmp_path / "traces")
    assert list(tmp_path.iterdir()) == []


def test_a_group_of_one_is_not_written(tmp_path: Path) -> None:
    made = workload()
    groups = made.groups
    alone = Groups(
        np.append(groups.gid, groups.gid[-1] + 1),
        (*groups.axis, "dp"),
        np.append(groups.sizes, 1),
        np.append(groups.ranks, 0),
    )
    with pytest.raises(StagedbError, match="one member"):
        export_workload(dataclasses.replace(made, groups=alone), tmp_path / "traces")
