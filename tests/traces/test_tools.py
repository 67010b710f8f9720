"""mlcommons' own tools read the traces, and the oldest protobuf that stagedb allows runs its generated code.

Both need packages of other versions than the project's, so they get a virtual environment of their own, made once from
PyPI and kept in pytest's cache (`--cache-clear` makes it anew). Where that fails the tests are skipped with the reason;
STAGEDB_REQUIRE_TOOLS=1 makes it a failure.
"""

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import filelock
import pytest

from tests.traces.plain import parse, serialize
from tests.traces.synthetic import workload
from tests.traces.written import export_workload, timing

ROOT = Path(__file__).parents[2]

# mlc-chakra asks for a profiler's analysis package that the two tools do not import: its dependencies are left out.
TOOLS = (
    "mlc-chakra==1.0.0",
    "protobuf==6.31.1",
    "networkx==3.4.2",
    "pydot==4.0.0",
    "pyparsing==3.2.3",
    "graphviz==0.20.3",
)
FLOOR = ("protobuf==5.29.1",)
"""As in pyproject's dependencies; 5.29.0 was withdrawn."""


def environment(cache: pytest.Cache, name: str, packages: tuple[str, ...]) -> Path:
    """A directory of installed packages, made on first use."""
    root = Path(cache.mkdir("stagedb-tools"))
    wanted = "\n".join((sys.version, *packages))
    with filelock.FileLock(root / f"{name}.lock"):
        done = root / f"{name}.txt"
        if not done.is_file() or done.read_text() != wanted:
            venv, target = root / "pip", root / name
            commands = [
                [sys.executable, "-m", "venv", "--clear", str(venv)],
                [str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
                 "--no-deps", "--upgrade", "--target", str(target), *packages],
            ]  # fmt: skip
            for command in commands:
                ran = subprocess.run(command, capture_output=True, text=True, check=False)
                if ran.returncode:
                    reason = f"no {' '.join(packages)} from the package index: {ran.stderr.strip()[-300:]}"
                    if os.environ.get("STAGEDB_REQUIRE_TOOLS") == "1":
                        pytest.fail(reason)
                    pytest.skip(reason)
            done.write_text(wanted)
    return root / name


@pytest.fixture(scope="session")
def tools(pytestconfig: pytest.Config) -> Path:
    assert pytestconfig.cache is not None
    return environment(pytestconfig.cache, "chakra", TOOLS)


@pytest.fixture(scope="session")
def floor(pytestconfig: pytest.Config) -> Path:
    assert pytestconfig.cache is not None
    return environment(pytestconfig.cache, "floor", FLOOR)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("tools") / "traces"
    export_workload(workload(microbatches=5), out)
    return out / "tiny.5.et"


def chakra(tools: Path, module: str, trace: Path, output: Path) -> None:
    command = [sys.executable, "-m", module, "--input_filename", str(trace), "--output_filename", str(output)]
    ran = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(tools)}
    )
    assert ran.returncode == 0, ran.stderr


def test_the_jsonizer_reads_every_node(tools: Path, trace: Path, tmp_path: Path) -> None:
    chakra(tools, "chakra.src.jsonizer.jsonizer", trace, tmp_path / "trace.json")
    text = (tmp_path / "trace.json").read_text()
    decoder, at, documents = json.JSONDecoder(), 0, []
    while at < len(text):
        document, at = decoder.raw_decode(text, at)
        documents.append(document)
    metadata, nodes = parse(trace.read_bytes())
    assert documents[0]["version"] == metadata.version == "0.0.4"
    assert len(documents) == 1 + len(nodes)
    for theirs, ours in zip(documents[1:], nodes, strict=True):
        assert (int(theirs["id"]), theirs["name"]) == (ours.id, ours.name)
        assert list(map(int, theirs.get("dataDeps", []))) == list(ours.data_deps)
        assert list(map(int, theirs.get("ctrlDeps", []))) == list(ours.ctrl_deps)
        values = {each["name"]: each for each in theirs["attr"]}
        assert list(values) == [each.name for each in ours.attr]
        assert values["is_cpu_op"]["boolVal"] is False
        for each in ours.attr:
            if each.HasField("int64_val"):
                assert int(values[each.name]["int64Val"]) == each.int64_val


def test_the_tools_read_durations(tools: Path, tmp_path: Path) -> None:
    made = workload(microbatches=5)
    export_workload(made, tmp_path / "timed", times=timing(made))
    trace = tmp_path / "timed" / "tiny.5.et"
    chakra(tools, "chakra.src.jsonizer.jsonizer", trace, tmp_path / "trace.json")
    documents = json.loads("[" + (tmp_path / "trace.json").read_text().replace("}{", "},{") + "]")
    _, nodes = parse(trace.read_bytes())
    assert len(documents) == 1 + len(nodes)
    for theirs, ours in zip(documents[1:], nodes, strict=True):
        (ns,) = (int(each["int64Val"]) for each in theirs["attr"] if each["name"] == "duration_ns")
        assert int(theirs.get("durationMicros", 0)) == ours.duration_micros
        assert abs(ours.duration_micros * 1000 - ns) < 1000
    assert any(ours.duration_micros > 1 for ours in nodes)
    chakra(tools, "chakra.src.visualizer.visualizer", trace, tmp_path / "trace.graphml")


def test_the_visualizer_draws_every_dependency(tools: Path, trace: Path, tmp_path: Path) -> None:
    chakra(tools, "chakra.src.visualizer.visualizer", trace, tmp_path / "trace.graphml")
    space = "{http://graphml.graphdrawing.org/xmlns}"
    graph = ElementTree.parse(tmp_path / "trace.graphml").getroot()  # noqa: S314
    _, nodes = parse(trace.read_bytes())
    assert len(list(graph.iter(f"{space}node"))) == len(nodes)
    edges = {(int(edge.attrib["source"]), int(edge.attrib["target"])) for edge in graph.iter(f"{space}edge")}
    assert edges == {(dep, node.id) for node in nodes for dep in (*node.data_deps, *node.ctrl_deps)}


def test_the_oldest_protobuf_reads_and_writes_the_same(floor: Path, trace: Path) -> None:
    script = "; ".join(
        (
            "import sys, pathlib, google.protobuf",
            "assert google.protobuf.__version__ == '5.29.1'",
            "from tests.traces.plain import parse, serialize",
            "sys.stdout.buffer.write(serialize(*parse(pathlib.Path(sys.argv[1]).read_bytes())))",
        )
    )
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, str(trace)],
        capture_output=True, check=False, cwd=ROOT, env={**os.environ, "PYTHONPATH": f"{floor}{os.pathsep}{ROOT}"},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr.decode()
    assert ran.stdout == serialize(*parse(trace.read_bytes()))
