"""The command line as a process: start, signals, pipes, and errors that need no store."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from stagedb.cli.application import COMMANDS, application, needed_modules
from stagedb.cli.build_instantiate import bubble
from stagedb.cli.export import size
from tests.cli.conftest import Run

HEAVY = ("neo4j", "sympy", "pandas", "pyarrow", "numpy", "rich.table", "google.protobuf", "stagedb.store")


def python(code: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **(environment or {})},
    )


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\nfrom stagedb.cli import main\nsys.argv = ['stagedb', '--help']\n"
        f"try:\n    main()\nfinally:\n    print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)\n"
    )
    result = python(code)
    assert result.returncode == 0
    assert result.stderr == "[]\n"
    assert "Usage: stagedb" in result.stdout


def test_a_command_loads_no_other_command() -> None:
    """Nor numpy, which the driver would import."""
    code = (
        "import sys\nfrom stagedb.cli import main\nsys.argv = ['stagedb', '-q', 'models', 'gpt2', '-f', 'json']\n"
        "try:\n    main()\nfinally:\n    import stagedb.store\n"
        "    loaded = {name.rpartition('.')[2] for name in sys.modules if name.startswith('stagedb.cli.')}\n"
        f"    print(sorted(loaded & {{*{list(COMMANDS.values())!r}}}), 'numpy' in sys.modules, file=sys.stderr)\n"
    )
    result = python(code)
    assert (result.returncode, result.stderr) == (0, "['models'] False\n")


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_the_module_of_a_command_has_it(command: str) -> None:
    chosen = list(needed_modules(["-v", command, "x"], {}))
    assert command in get_command(application(chosen)).commands  # type: ignore[attr-defined]
    assert len(set(chosen)) == (len(set(COMMANDS.values())) if command == "help" else 1)


def test_every_command_is_there_for_help_completion_and_a_wrong_name() -> None:
    every = set(COMMANDS.values())
    for words in ([], ["--help"], ["-q"], ["-h", "ls"], ["--version"], ["lss"]):
        assert set(needed_modules(words, {})) == every
    assert set(needed_modules(["ls"], {"_STAGEDB_COMPLETE": "complete_bash"})) == every
    assert sorted(get_command(application()).commands) == sorted(COMMANDS)  # type: ignore[attr-defined]


def test_the_module_is_the_command() -> None:
    result = subprocess.run([sys.executable, "-m", "stagedb", "--version"], capture_output=True, text=True, check=False)
    assert result.returncode == 0
    assert result.stdout.startswith("stagedb ")


@pytest.mark.parametrize(
    "arguments",
    [("nothing",), ("ls", "--nothing"), ("build",), ("ls", "-f", "xml"), ("instantiate", "x", "--tp", "two")],
)
def test_bad_usage_exits_with_2(offline: Run, arguments: tuple[str, ...]) -> None:
    ran = offline(*arguments)
    assert ran.status == 2
    assert "Error:" in ran.err


def test_the_library_needs_no_store(offline: Run) -> None:
    listed = offline("models", "-f", "csv")
    assert listed.status == 0
    assert "llama3-8b" in listed.out
    shown = offline("models", "llama3-8b")
    assert "4,096" in shown.out
    unknown = offline("models", "lama3-8b")
    assert unknown.status == 2
    assert "llama3-8b" in unknown.err
    assert offline("queries").status == 0


def test_an_unreachable_server_is_refused(offline: Run) -> None:
    ran = offline("ls", "--store", "bolt://127.0.0.1:1")
    assert ran.status == 2
    assert "127.0.0.1:1" in ran.err
    assert "Traceback" not in ran.err


def test_a_store_that_no_configuration_names_is_refused(offline: Run) -> None:
    ran = offline("ls", "--store", "team")
    assert ran.status == 2
    assert "--store" in ran.err


def test_a_reader_that_leaves_early_is_no_error() -> None:
    command = f"{sys.executable} -m stagedb models -f ndjson"
    result = subprocess.run(
        ["bash", "-c", f"{command} | head -n 1 >/dev/null; exit ${{PIPESTATUS[0]}}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stderr == ""
    assert result.returncode in (0, 141)


CLOSED = [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"]


@pytest.mark.parametrize("streams", CLOSED)
def test_closed_streams_are_no_error(streams: str) -> None:
    for arguments, status in (("models", 0), ("models nothing", 2), ("ls --store bolt://127.0.0.1:1", 2)):
        command = f"{sys.executable} -m stagedb {arguments} {streams}"
        result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
        assert result.returncode == status, result
        assert "itself failed" not in result.stderr
        assert ("Error" in result.stderr) == (status == 2 and "2>&-" not in streams)


ODD = [
    {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"},
    {"PYTHONIOENCODING": "latin-1"},
    {"PYTHONIOENCODING": "ascii:strict"},
    {"PYTHONIOENCODING": "utf-16"},
]


@pytest.mark.parametrize("environment", ODD)
def test_texts_pass_in_any_encoding(environment: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "größe-層.csv"
    path.write_text("name,duration_ns\n", encoding="utf-8")
    code = (
        "import sys\nfrom stagedb.cli import main\nimport stagedb.cli.application as a\n"
        "made = a.application\n"
        "def echoed(text: str, path: str) -> None:\n"
        "    import json, typer\n    open(path).close()\n"
        "    typer.echo(json.dumps(text, ensure_ascii=False))\n    typer.echo('→ 😀', err=True)\n"
        "def with_echo(modules):\n"
        "    app = made(modules)\n    app.command()(echoed)\n    return app\n"
        "a.application = with_echo\n"
        "sys.argv = ['stagedb', 'echoed', *sys.argv[1:]]\nmain()\n"
    )
    script = tmp_path / "echoed.py"
    script.write_text(code, encoding="utf-8")
    result = subprocess.run(
        [sys.executable, str(script), "größe → 層 😀", str(path)],
        capture_output=True,
        check=False,
        env={**os.environ, **environment},
    )
    assert result.returncode == 0, result.stderr
    encoding = environment.get("PYTHONIOENCODING", "utf-8")
    encoding = "utf-8" if "ascii" in encoding else encoding
    assert json.loads(result.stdout.decode(encoding)) == "größe → 層 😀"
    assert result.stderr.decode(encoding).strip() in ("→ 😀", "\\u2192 \\ud83d\\ude00")


def test_an_interrupt_ends_quietly(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys\nimport stagedb.api\nfrom stagedb.cli import main\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background jobs ignore it
        "def interrupted(*_, **__):\n    os.kill(os.getpid(), signal.SIGINT)\n    signal.pause()\n"
        "stagedb.api.connect = interrupted\nsys.argv = ['stagedb', 'ls']\nmain()\n"
    )
    result = python(code)
    assert result.returncode == 130
    assert result.stderr == "Interrupted.\n"


def test_sizes_are_readable() -> None:
    assert [size(n) for n in (0, 999, 1000, 12_345_678, 3_100_000_000, 2e14)] == [
        "0 bytes",
        "999 bytes",
        "1 KB",
        "12.3 MB",
        "3.1 GB",
        "200 TB",
    ]


def test_the_bubble_is_the_pipelines() -> None:
    assert bubble(4, 1) == 0.75
    assert bubble(1, 7) == 0
    assert bubble(2, 9) == 0.1


@pytest.mark.skipif(os.name != "posix", reason="a terminal of its own")
def test_an_error_is_wrapped_in_a_terminal_and_one_line_elsewhere() -> None:
    import fcntl
    import pty
    import struct
    import termios

    command = [sys.executable, "-m", "stagedb", "ls", "--nothing-of-this-name", "--quiet"]
    reader, writer = pty.openpty()
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 30, 0, 0))
    clean = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    ran = subprocess.run(command, stderr=writer, stdout=subprocess.DEVNULL, check=False, env=clean)
    os.close(writer)
    lines = os.read(reader, 1 << 16).decode().splitlines()
    os.close(reader)
    assert ran.returncode == 2
    piped = subprocess.run(command, capture_output=True, text=True, check=False)
    assert piped.stderr.count("\n") == 1
    assert " ".join(lines) == piped.stderr.strip()
    assert len(lines) > 2
    assert all(len(line) <= 30 or " " not in line for line in lines)
