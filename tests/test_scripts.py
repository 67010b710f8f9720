"""The scripts that set a checkout up, run against stand-ins for Python, pip and uv that write down what they do."""

import os
import shutil
import subprocess
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SHELL = sorted(
    path
    for path in (ROOT / "scripts").iterdir()
    if path.is_file() and path.read_bytes().startswith((b"#!/bin/sh", b"# Sourced"))
)
TOOLS = ("cat", "cksum", "dirname", "mkdir", "mv", "readlink", "rm", "sed", "sh", "sleep", "cp", "chmod")

PYTHON = """#!/bin/sh
# Replaces python3: {failing}
case "$*" in
"-c import sys"*) exit {version} ;;
"-c import venv"*) exit {venv} ;;
"--version") echo "Python 3.99" ;;
"-m venv --clear "*) echo venv >>"$LOG"; mkdir -p "$4/bin"; cp "$0" "$4/bin/python" ;;
"-m pip --version") ;;
"-m compileall -q "*/stagedb) ;;
"-m pip install"*) echo pip >>"$LOG"; cp "$TEMPLATES/uv" "$(dirname "$0")/uv" ;;
"-m stagedb"*) shift 2; echo "ran: $*" ;;
"-m pytest"*) shift 2; echo "tests: $*" ;;
*) echo "unexpected: $*"; exit 9 ;;
esac
"""
UV = """#!/bin/sh
echo "uv $1 ${{7##--}}" >>"$LOG"
sleep {seconds}
exit {status}
"""


class Checkout:
    """A checkout with the real scripts, a PATH with nothing but stand-ins, and a log of what these did."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.log = root / "log"
        self.log.touch()
        self.path = root / "path"
        self.templates = root / "templates"
        for folder in (self.path, self.templates):
            folder.mkdir()
        shutil.copytree(ROOT / "scripts", root / "scripts")
        for name in ("uv.lock", "pyproject.toml"):
            (root / name).write_text(name, encoding="utf-8")
        for tool in TOOLS:
            found = shutil.which(tool)
            assert found, f"this machine has no {tool}"
            (self.path / tool).symlink_to(found)
        self.python()
        self.uv()

    def write(self, path: Path, text: str) -> None:
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)

    def python(self, version: int = 0, venv: int = 0) -> None:
        self.write(self.path / "python3", PYTHON.format(failing="", version=version, venv=venv))

    def uv(self, seconds: float = 0, status: int = 0) -> None:
        self.write(self.templates / "uv", UV.format(seconds=seconds, status=status))

    def start(self, script: str, *arguments: str) -> subprocess.Popen[str]:
        environment = {"PATH": str(self.path), "LOG": str(self.log), "TEMPLATES": str(self.templates)}
        return subprocess.Popen(
            [str(self.root / "scripts" / script), *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, script: str, *arguments: str) -> tuple[int, str, str]:
        process = self.start(script, *arguments)
        out, err = process.communicate(timeout=300)
        return process.returncode, out, err

    @property
    def did(self) -> list[str]:
        return self.log.read_text(encoding="utf-8").splitlines()


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    root = tmp_path / "a checkout"
    root.mkdir()
    return Checkout(root)


@pytest.mark.parametrize("script", SHELL, ids=lambda path: path.name)
def test_a_script_is_plain_shell(script: Path) -> None:
    assert subprocess.run(["sh", "-n", str(script)], check=False).returncode == 0
    text = script.read_text(encoding="utf-8")
    assert "[[" not in text
    assert "/home/" not in text


def test_the_first_use_sets_up_and_later_ones_run_at_once(checkout: Checkout) -> None:
    assert checkout.run("stagedb", "ls", "a b")[:2] == (0, "ran: ls a b\n")
    assert checkout.did == ["venv", "pip", "uv sync no-dev"]
    status, out, err = checkout.run("stagedb", "models")
    assert (status, out, err) == (0, "ran: models\n", "")
    assert checkout.did == ["venv", "pip", "uv sync no-dev"]


def test_the_tests_bring_their_tools_and_the_command_line_uses_the_same_environment(checkout: Checkout) -> None:
    assert checkout.run("stagedb")[0] == 0
    status, out, err = checkout.run("test", "tests/cli", "-k", "help")
    assert (status, out) == (0, "tests: tests/cli -k help\n")
    assert "STAGEDB_TEST_NEO4J" in err
    assert checkout.did[3:] == ["uv sync group=dev"]
    assert checkout.run("stagedb")[0] == 0
    assert len(checkout.did) == 4


@pytest.mark.parametrize("name", ["uv.lock", "pyproject.toml"])
def test_a_changed_lock_file_installs_again_with_the_same_groups(checkout: Checkout, name: str) -> None:
    checkout.run("test")
    (checkout.root / name).write_text("changed", encoding="utf-8")
    assert checkout.run("stagedb")[0] == 0
    assert checkout.did == ["venv", "pip", "uv sync group=dev", "uv sync group=dev"]


def test_a_failed_installation_is_reported_and_done_again(checkout: Checkout) -> None:
    checkout.uv(status=3)
    status, _, err = checkout.run("stagedb")
    assert status == 1
    assert "installation failed" in err
    checkout.write(checkout.root / ".venv" / "bin" / "uv", UV.format(seconds=0, status=0))
    assert checkout.run("stagedb", "ls")[:2] == (0, "ran: ls\n")


def test_a_moved_checkout_gets_a_new_environment(checkout: Checkout) -> None:
    checkout.run("stagedb")
    stamp = checkout.root / ".venv" / ".stagedb-runtime"
    stamp.write_text("/elsewhere\n" + stamp.read_text(encoding="utf-8").split("\n", 1)[1], encoding="utf-8")
    assert checkout.run("stagedb")[0] == 0
    assert checkout.did.count("venv") == 2


def test_two_first_uses_at_once_install_once(checkout: Checkout) -> None:
    checkout.uv(seconds=2)
    processes = [checkout.start("stagedb", "ls") for _ in range(3)]
    results = [process.communicate(timeout=300) for process in processes]
    assert [out for out, _ in results] == ["ran: ls\n"] * 3
    assert checkout.did == ["venv", "pip", "uv sync no-dev"]


def test_a_lock_whose_owner_is_gone_is_taken_over(checkout: Checkout) -> None:
    lock = checkout.root / ".cache" / "environment.lock"
    lock.mkdir(parents=True)
    process = subprocess.Popen(["true"])
    process.wait()
    (lock / "pid").write_text(f"{process.pid}\n", encoding="utf-8")
    assert checkout.run("stagedb", "ls")[:2] == (0, "ran: ls\n")
    assert not lock.exists()


def test_a_machine_without_a_new_python_gets_advice(checkout: Checkout) -> None:
    checkout.python(version=1)
    status, _, err = checkout.run("stagedb")
    assert status == 1
    assert "Python 3.11" in err
    assert "STAGEDB_PYTHON" in err
    assert not (checkout.root / ".venv").exists()


def test_a_python_without_venv_gets_advice(checkout: Checkout) -> None:
    checkout.python(venv=1)
    status, _, err = checkout.run("stagedb")
    assert status == 1
    assert "python3-venv" in err


def test_a_link_to_the_script_finds_its_checkout(checkout: Checkout, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(os.path.relpath(checkout.root / "scripts" / "stagedb", tmp_path))
    environment = {"PATH": str(checkout.path), "LOG": str(checkout.log), "TEMPLATES": str(checkout.templates)}
    result = subprocess.run([str(link), "ls"], env=environment, capture_output=True, text=True, check=False)
    assert result.stdout == "ran: ls\n", result.stderr


def test_every_folder_of_tests_is_collected(pytestconfig: pytest.Config) -> None:
    left_out = pytestconfig.getini("norecursedirs")
    folders = {part for path in (ROOT / "tests").rglob("test_*.py") for part in path.relative_to(ROOT).parts[:-1]}
    assert not [name for name in folders if any(fnmatch(name, pattern) for pattern in left_out)]
