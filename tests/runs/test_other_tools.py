"""How ranks spend their time, next to a plain count and to what other tools found in the same traces."""

import json
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from stagedb.runs import MeasuredRun, file_digest, measured_run, read_kineto, run_rows
from stagedb.runs.rank_trace import CATEGORIES, rows_of
from tests.runs.recordings import Recording
from tests.runs.timed_recordings import JOBS, RECORDED, digest

CLOSE = 0.01
"""Share by which a number of another tool may be different."""

WHOLE_US = 0.001
"""Ms by which numbers of HolisticTraceAnalysis are different, which adds up whole microseconds."""

COMPUTE, NEITHER, EXPOSED, COPIES, IDLE = (
    "a kernel computes",
    "only communication or copies",
    "only communication",
    "copies, and no kernel computes",
    "idle",
)
FILLING, NOT_COPIES, LEFT, SHARE = (
    "... or fills",
    "... communication, or with copies",
    "... only copies",
    "communication below kernels %",
)
PARTS = COMPUTE, NEITHER, EXPOSED, COPIES, IDLE
OWN_RULES = COMPUTE, NEITHER, EXPOSED, COPIES, SHARE
"""Parts for which TraceLens has rules of its own: fills compute, and copies hide no communication."""

DIFFERENT = {
    # A stream that waits for another one does no work.
    ("HTA", "waits"): {NEITHER, IDLE},
    # With several steps, a kernel whose call was not recorded is left out, though the device was busy.
    ("HTA", "not_launched"): {COMPUTE, IDLE},
    # An operator that has the number of a stream is no work of a device.
    ("HTA", "compiled"): {COMPUTE, IDLE},
    # What DeepEP and symmetric memory send is no computing.
    ("HTA", "experts"): {COMPUTE, NEITHER, EXPOSED},
    ("HTA", "symmetric"): {COMPUTE, NEITHER, EXPOSED},
    ("TraceLens", "experts"): {FILLING, NOT_COPIES},
    ("TraceLens", "symmetric"): {FILLING, NOT_COPIES},
    # Each piece is cut to whole microseconds: the parts do not add up to what is neither computing nor idle.
    ("HTA", "short_kernels"): {EXPOSED, COPIES},
}
"""Parts in which the other tool is wrong, and why."""


def plain_times(recording: Recording) -> Counter[str]:
    """Ns of each set of kinds of ops that runs at the same time, counted at each begin and end of one."""
    moments: list[tuple[int, int, str]] = []
    for kind, start, end, _ in _device_events(recording):
        moments += [(start, 1, kind), (end, -1, kind)]
    found: Counter[str] = Counter()
    running: Counter[str] = Counter()
    before = None
    for moment, change, kind in sorted(moments):
        if before is not None:
            found[" ".join(sorted(+running))] += moment - before
        running[kind] += change
        before = moment
    return found


def _device_events(recording: Recording) -> Iterator[tuple[str, int, int, str]]:
    """Kind, start and end in ns, and name of what a device did, straight from the file."""
    for event in json.loads(recording.text(), parse_float=Decimal)["traceEvents"]:
        category, name = event["cat"], event["name"]
        if category in ("kernel", "gpu_memcpy", "gpu_memset"):
            talks = any(word in name for word in ("nccl", "dispatch", "combine", "multimem_all_reduce"))
            kind = {"gpu_memcpy": "copy", "gpu_memset": "fill"}.get(category, "talk" if talks else "compute")
            start = int(event["ts"] * 1000)
            yield kind, start, start + int(event["dur"] * 1000), name


def parts_of(times: Counter[str]) -> dict[str, float]:
    """The numbers that tools have, in ms, of how long each set of kinds ran."""

    def ms(*chosen: str, without: tuple[str, ...] = ()) -> float:
        sets = {text: set(text.split()) for text in times}
        return sum(times[text] for text, kinds in sets.items() if kinds & {*chosen} and not kinds & {*without}) / 1e6

    copies = ms("copy", "fill", without=("compute",))
    exposed = ms("talk", without=("compute", "copy", "fill"))
    return {
        COMPUTE: ms("compute"),
        NEITHER: exposed + copies,
        EXPOSED: exposed,
        COPIES: copies,
        IDLE: times[""] / 1e6,
        FILLING: ms("compute", "fill"),
        NOT_COPIES: ms("talk", without=("compute", "fill")),
        LEFT: ms("copy", without=("compute", "fill", "talk")),
    }


def run_of(job: str, directory: Path) -> MeasuredRun:
    paths = [each.write(directory) for each in JOBS[job]()]
    return measured_run([read_kineto(path, file_digest(path)) for path in paths])


@pytest.mark.parametrize("job", JOBS)
def test_times_of_ranks_are_those_of_a_plain_count(job: str, tmp_path: Path) -> None:
    run = run_of(job, tmp_path)
    rows = {row["rank"]: row for _, row in run_rows(run, {}).nodes["RunRank"]}
    for recording in JOBS[job]():
        row, parts = rows[recording.rank], parts_of(plain_times(recording))
        before_and_after = run.window - (row["finish"] - row["start"])
        assert {
            COMPUTE: row["busy"] - row["copying"],
            NEITHER: row["exposed"] + row["bubble"] + row["copying"],
            EXPOSED: row["exposed"] + row["bubble"],
            COPIES: row["copying"],
            IDLE: row["idle"] - before_and_after,
        } == {name: round(parts[name] * 1e6) for name in PARTS}


@pytest.mark.parametrize("job", JOBS)
def test_kernels_have_the_times_of_a_plain_count(job: str, tmp_path: Path) -> None:
    run = run_of(job, tmp_path)
    found: Counter[str] = Counter()
    for rank, trace in run.ranks.items():
        timed = run.ops[rank].timed
        for name, category, start, end in rows_of(trace.ops.name, trace.ops.category, timed.start, timed.end):
            if CATEGORIES[category] == "kernel":
                found[trace.names[name]] += end - start
    events = [event for recording in JOBS[job]() for event in _device_events(recording)]
    plain: Counter[str] = Counter()
    for kind, start, end, name in events:
        if kind in ("talk", "compute"):
            plain[name] += end - start
    assert found == plain
    recorded = _recorded(job)
    for tool in ("HTA", "TraceLens"):
        if (tool, job) not in (("HTA", "not_launched"), ("HTA", "compiled")):
            assert {name: round(ms * 1e6) for name, ms in recorded[tool]["kernels"].items()} == pytest.approx(
                plain, rel=CLOSE
            )


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("tool", ("HTA", "TraceLens"))
def test_other_tools_found_the_same_but_for_known_mistakes(tool: str, job: str) -> None:
    recorded = _recorded(job)
    assert recorded["digest"] == digest(job), "the trace is a new one: run tests/runs/timed_recordings.py"
    ranks = [plain_times(each) for each in JOBS[job]()]
    parts: Counter[str] = Counter()
    for each in ranks:
        parts.update(parts_of(each))
    shares = [_hidden(each) for each in ranks if any("talk" in kinds for kinds in each)]
    expected = {**parts, **({SHARE: 100 * sum(shares) / len(shares)} if shares else {})}
    theirs = recorded[tool]["times"]
    compared = {*expected} & {*theirs} - ({*OWN_RULES} if tool == "TraceLens" else set())
    wrong = {
        name
        for name in compared
        if theirs[name] != pytest.approx(expected[name], rel=CLOSE, abs=WHOLE_US if tool == "HTA" else 1e-9)
    }
    assert wrong == DIFFERENT.get((tool, job), set())


def _hidden(times: Counter[str]) -> float:
    """The share of the communication below which a kernel computes."""
    talks = {text: ns for text, ns in times.items() if "talk" in text}
    return sum(ns for text, ns in talks.items() if "compute" in text) / sum(talks.values())


def _recorded(job: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RECORDED.read_text(encoding="utf-8"))["jobs"][job]
    return found
