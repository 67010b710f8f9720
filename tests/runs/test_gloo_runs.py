"""Runs of real PyTorch over gloo, recorded by `scripts/record_runs`: what they communicate is known from elsewhere."""

import gzip
import json
import random
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from stagedb.api.importing import trace_files
from stagedb.collectives import REDUCE_SCATTER
from stagedb.errors import UsageError
from stagedb.runs import MeasuredRun, TraceFileError
from stagedb.runs.clocks import MESSAGES
from stagedb.runs.lane_rows import ELEMENT_BYTES
from stagedb.runs.rank_trace import BACKGROUND, CATEGORIES, HOST, NONE, PHASES, RankTrace, RecordedCollective
from stagedb.runs.run_files import RunFiles
from tests.runs.recordings import measured

FOLDER = Path(__file__).parent / "gloo"
RUNS = sorted(path.name for path in FOLDER.iterdir())
CLOSE = 100_000
"""Ns by which a clock may be wrong."""


@cache
def run_of(name: str) -> MeasuredRun:
    return read([FOLDER / name])


def read(paths: Sequence[Path]) -> MeasuredRun:
    return measured(RunFiles.of(trace_files(paths)))


def sent_in(name: str) -> dict[int, Any]:
    """What each rank communicated, as the program itself listed it."""
    _, *ranks = (FOLDER / name / "expected.jsonl").read_text(encoding="utf-8").splitlines()
    return dict(enumerate(map(json.loads, ranks)))


def test_gradients_of_fsdp_are_reduced_in_the_backward() -> None:
    """FSDP calls gloo in annotations such as `FSDP::post_backward_reduce`."""
    for trace in run_of("fsdp").ranks.values():
        places = [at for at, each in enumerate(trace.ops.collective) if each != NONE]
        kinds = {at: trace.collectives[trace.ops.collective[at]].kind for at in places}
        reduced = [at for at, kind in kinds.items() if kind == REDUCE_SCATTER.name]
        assert reduced and {PHASES[trace.ops.phase[at]] for at in reduced} == {"backward"}


def about(name: str) -> Any:
    """What was asked of the recorder."""
    return json.loads((FOLDER / name / "expected.jsonl").read_text(encoding="utf-8").splitlines()[0])


def asked_for(trace: RankTrace) -> list[RecordedCollective]:
    """What a rank communicated, in the order of the calls."""
    ops = trace.ops
    places = sorted((ops.collective != NONE).nonzero()[0].tolist(), key=lambda at: int(ops.launched[at]))
    return [trace.collectives[ops.collective[place]] for place in places]


def communicated(trace: RankTrace) -> list[dict[str, Any]]:
    """The same in the words of `expected.jsonl`."""
    rows = []
    for each in asked_for(trace):
        row: dict[str, Any] = {"kind": each.kind, "ranks": list(each.ranks)}
        if each.kind != "barrier":
            row["bytes"] = max(each.sent or 0, each.received or 0) * ELEMENT_BYTES[each.dtype]
        if each.kind in MESSAGES:
            assert each.peer is not None
            row["peer"] = each.ranks[each.peer]
        rows.append(row)
    return rows


@pytest.mark.parametrize("name", RUNS)
def test_all_that_the_program_communicates_is_found(name: str) -> None:
    assert {rank: communicated(trace) for rank, trace in run_of(name).ranks.items()} == sent_in(name)


@pytest.mark.parametrize("name", RUNS)
def test_all_members_of_a_collective_are_matched(name: str) -> None:
    for call in run_of(name).calls:
        wanted = 2 if call.collective.kind in MESSAGES else len(call.collective.ranks)
        assert len(call.members) == wanted, call
        assert not call.by_order


def rewritten(source: Path, target: Path, content: Mapping[str, Any]) -> None:
    (target / source.name).write_bytes(gzip.compress(json.dumps(content).encode(), 1, mtime=0))


@pytest.mark.parametrize("name", RUNS)
def test_clocks_that_differ_by_up_to_a_second_are_found(name: str, tmp_path: Path) -> None:
    chance = random.Random(name)
    shifts = {}
    for path in sorted((FOLDER / name).glob("rank*.json.gz")):
        content = json.loads(gzip.decompress(path.read_bytes()))
        if "traceEvents" in content:
            shift = chance.randrange(-1_000_000, 1_000_000)
            shifts[content["distributedInfo"]["rank"]] = shift * 1000
            for event in content["traceEvents"]:
                event["ts"] += shift
        rewritten(path, tmp_path, content)
    clocks = read([tmp_path]).clocks
    found = {rank: clock.offset - (shifts[rank] - shifts[0]) for rank, clock in clocks.items()}
    assert {rank: wrong for rank, wrong in found.items() if abs(wrong) > CLOSE} == {}


def waited_for(run: MeasuredRun) -> Counter[int]:
    """Ns that members of collectives waited, by the member that began last."""
    found: Counter[int] = Counter()
    for call in run.calls:
        begins = {rank: int(run.ops[rank].timed.start[place]) for rank, place in call.members.items()}
        last = max(begins, key=lambda rank: begins[rank])
        found[last] += sum(begins[last] - begin for begin in begins.values())
    return found


def on_links(run: MeasuredRun) -> Counter[tuple[int, int]]:
    """Ns of the critical path in messages, by source and target."""
    found: Counter[tuple[int, int]] = Counter()
    for piece in run.path:
        trace = run.ranks[piece.rank]
        number = trace.ops.collective[piece.op]
        if number != NONE and (each := trace.collectives[number]).kind in MESSAGES:
            assert each.peer is not None
            ends = (piece.rank, each.ranks[each.peer])
            found[ends if each.kind == MESSAGES[0] else ends[::-1]] += piece.end - piece.start
    return found


def test_the_path_names_the_rank_that_sleeps() -> None:
    run = run_of("fsdp-sleep")
    sleep = about("fsdp-sleep")["sleep"]
    assert waited_for(run).most_common(1)[0][0] == sleep["rank"]
    longest = max(run.path, key=lambda piece: piece.idle)
    trace = run.ranks[longest.rank]
    assert longest.rank == sleep["rank"] and longest.idle >= sleep["seconds"] * 1e9
    assert trace.annotations[trace.ops.annotation[longest.op]].name == f"layer {sleep['layer']}"
    # Without a sleep, no gap of the path is as long.
    assert max(piece.idle for piece in run_of("fsdp").path) < longest.idle / 2


def test_the_path_names_the_link_that_is_slow() -> None:
    slow = about("pp-slow-link")["slow_link"]
    (link, length), (_, second) = on_links(run_of("pp-slow-link")).most_common(2)
    assert link == (slow["source"], slow["target"]) and length > 10 * second
    # Four messages went through it, at its rate.
    size = next(each["bytes"] for each in sent_in("pp-slow-link")[slow["source"]] if each["kind"] == "send")
    assert length > 3 * size / slow["rate"] * 1e9
    assert on_links(run_of("pp"))[link] < length / 10


def copied(tmp_path: Path, *names: str, run: str = "fsdp") -> list[Path]:
    return [Path(shutil.copy(FOLDER / run / name, tmp_path)) for name in names]


def test_an_execution_trace_without_its_profile_is_refused(tmp_path: Path) -> None:
    alone = copied(tmp_path, "rank1.et.json.gz")
    with pytest.raises(UsageError, match=r"rank1\.et\.json\.gz has no profiler trace of its rank .*leave it out"):
        read([*alone, *copied(tmp_path, "rank0.json.gz", "rank0.et.json.gz")])


@pytest.mark.parametrize(("schema", "read_as"), [("1.0.2-chakra.0.0.4", True), ("1.0.0", False), ("1.2.0", False)])
def test_versions_of_execution_traces(schema: str, read_as: bool, tmp_path: Path) -> None:
    paths = copied(tmp_path, "rank0.json.gz", "rank0.et.json.gz")
    content = json.loads(gzip.decompress(paths[1].read_bytes()))
    # What this version does not have yet.
    for node in content["nodes"]:
        del node["inputs"]["strides"], node["outputs"]["strides"]
    rewritten(paths[1], tmp_path, content | {"schema": schema})
    if read_as:
        assert communicated(read(paths).ranks[0]) == sent_in("fsdp")[0]
    else:
        with pytest.raises(TraceFileError, match=r"schemas 1\.0\.1 to 1\.1\.1 are read"):
            read(paths)


def test_a_damaged_execution_trace_is_refused(tmp_path: Path) -> None:
    paths = copied(tmp_path, "rank0.json.gz", "rank0.et.json.gz")
    whole = gzip.decompress(paths[1].read_bytes())
    for damaged in (whole[: len(whole) // 2], whole.replace(b'"nodes":[', b'"nodes":[7,')):
        paths[1].write_bytes(gzip.compress(damaged))
        with pytest.raises(TraceFileError, match=r"the execution trace .*rank0\.et\.json\.gz is damaged"):
            read(paths)
    paths[1].write_bytes(gzip.compress(whole)[:-40])
    with pytest.raises(TraceFileError, match="cannot read the execution trace"):
        read(paths)


@pytest.mark.parametrize("name", ["hsdp", "fsdp-tp", "ep-8"])
def test_without_execution_traces_kinds_and_members_are_found(name: str) -> None:
    """Neither bytes nor groups that only they name are there then."""
    run = read(sorted(path for path in (FOLDER / name).glob("rank*.json.gz") if ".et." not in path.name))
    for rank, trace in run.ranks.items():
        assert [each.kind for each in asked_for(trace)] == [each["kind"] for each in sent_in(name)[rank]]


@pytest.mark.parametrize("name", RUNS)
def test_threads_run_one_op_after_the_other_and_waits_are_none(name: str) -> None:
    for trace in run_of(name).ranks.values():
        ops = trace.ops
        for place, stream in enumerate(trace.streams):
            mine = ops.stream == place
            if stream.startswith("thread"):
                assert (ops.start[mine][1:] >= ops.end[mine][:-1]).all()
        assert not {"_c10d_functional::wait_tensor"} & {trace.names[each] for each in ops.name.tolist()}
        # What a thread of gloo does for a collective is part of it.
        assert len({stream for stream in ops.stream.tolist() if trace.streams[stream].startswith("thread")}) == 1
        communicates = ops.collective != NONE
        assert (ops.category[communicates] == CATEGORIES.index(BACKGROUND)).all()
        assert (ops.category[~communicates] == CATEGORIES.index(HOST)).all()


@pytest.mark.parametrize("name", ["pp", "hsdp"])
def test_processes_of_one_number_on_several_machines(name: str, tmp_path: Path) -> None:
    for path in (FOLDER / name).glob("rank*.json.gz"):
        content = json.loads(gzip.decompress(path.read_bytes()))
        for event in content.get("traceEvents", ()):
            event["pid"] = 7 if isinstance(event["pid"], int) else event["pid"]
        rewritten(path, tmp_path, content if "traceEvents" in content else content | {"pid": 7})
    found = read([tmp_path])
    assert {rank: communicated(trace) for rank, trace in found.ranks.items()} == sent_in(name)
