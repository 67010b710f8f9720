"""What each registered format and simulator promises is so, whichever is added."""

from pathlib import Path
from typing import Any

import pytest

from stagedb.errors import UsageError
from stagedb.traces import Request, validate_traces
from stagedb.traces.bundle import CHECKSUMS
from stagedb.traces.formats import DEFAULT, FORMATS, PACKED, TraceFormat
from stagedb.traces.output_places import is_trace_set
from stagedb.traces.simulators import DEFAULT as DEFAULT_SIMULATOR
from stagedb.traces.simulators import SIMULATORS
from tests.traces.synthetic import workload
from tests.traces.written import export_workload

WORDS: dict[str, dict[str, Any]] = {
    "compress": {"compress": True},
    "replay": {"replay": True},
    "resume": {"resume": True},
    "simulator": {"simulator": DEFAULT_SIMULATOR.name},
}
FORMAT = [pytest.param(each, id=each.name) for each in (*FORMATS.values(), PACKED)]


def words_of(format: TraceFormat) -> dict[str, Any]:
    return {"packed": True} if format is PACKED else {"format": format.name}


@pytest.mark.parametrize("format", FORMAT)
@pytest.mark.parametrize("option", WORDS)
def test_an_option_is_taken_or_refused_before_anything_is_made(
    tmp_path: Path, format: TraceFormat, option: str
) -> None:
    request = Request(tmp_path / "out", **words_of(format), **WORDS[option])
    if option in format.takes:
        request.check(8, None)
        export_workload(workload(), tmp_path / "out", **words_of(format), **WORDS[option])
        assert is_trace_set(tmp_path / "out")
    else:
        with pytest.raises(UsageError, match=rf"leave out --{option}"):
            request.check(8, None)
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", FORMATS)
def test_a_directory_is_of_one_format_or_cannot_be_read(tmp_path: Path, name: str) -> None:
    export_workload(workload(), tmp_path / "out", format=name)
    finders = {other.name for other in FORMATS.values() if other.find and other.find(tmp_path / "out") is not None}
    assert finders == ({name} if FORMATS[name].find else set())
    if FORMATS[name].find:
        assert validate_traces(tmp_path / "out").faults == ()
    else:
        with pytest.raises(UsageError, match=r"holds no traces \(NAME\.<rank>\.et or "):
            validate_traces(tmp_path / "out")


@pytest.mark.parametrize("name", FORMATS)
def test_a_rank_that_is_missing_is_named(tmp_path: Path, name: str) -> None:
    if FORMATS[name].find is None:
        return
    export_workload(workload(), tmp_path / "out", format=name, only="0-2,4-7")
    for file in ("manifest.json", CHECKSUMS):
        (tmp_path / "out" / file).unlink()
    first, *_ = validate_traces(tmp_path / "out").faults
    assert (first.rule, first.message) == ("files", f"{FORMATS[name].place('tiny', 3)} is missing")


def test_unknown_names_are_refused_with_those_that_are_known(tmp_path: Path) -> None:
    for words, names in (({"format": "xml"}, FORMATS), ({"simulator": "none"}, SIMULATORS)):
        with pytest.raises(UsageError) as refused:
            Request(tmp_path / "out", **words).check(8, None)  # type: ignore[arg-type]
        assert all(name in str(refused.value) for name in names)
    assert DEFAULT.takes == {"format", *WORDS}
