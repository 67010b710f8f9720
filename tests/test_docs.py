"""The documentation matches the program: generated parts are current, every command and link exists."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from stagedb.plans.aspects import PLAN_WORDS
from stagedb.systems import load_system
from stagedb.traces.simulators import DEFAULT, SimulatedJob, simulator_named
from tests.sampling import rows

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
GENERATED = [page for page in PAGES if "[[[cog" in page.read_text(encoding="utf-8")]
LINK = re.compile(r"\]\((?!https?://|#)([^)#\s]+)")
COMMAND = re.compile(r"^ {4}(?:\$ )?(?:scripts/)?stagedb ([a-z]+)", re.MULTILINE)


def load_page_module(name: str) -> ModuleType:
    """A module of docs/, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


generate = load_page_module("generate")


def cog_check(*pages: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cogapp", "--check", "--diff", *map(str, pages)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_generated_parts_are_current() -> None:
    assert len(GENERATED) >= 3
    result = cog_check(*rows(GENERATED))
    assert result.returncode == 0, f"run .venv/bin/cog -r docs/*.md README.md\n{result.stdout}{result.stderr}"


MARKS = re.compile(r"\[\[\[cog|\]\]\]|\[\[\[end\]\]\]")


def torn_parts(text: str) -> list[str]:
    """The marks of generated parts that are lost or doubled: opening comment, end of the code, end of the part."""
    wanted, torn = ["[[[cog", "]]]", "[[[end]]]"], []
    place = 0
    for mark in MARKS.finditer(text):
        if mark.group() != wanted[place % 3]:
            torn.append(f"line {text.count(chr(10), 0, mark.start()) + 1}: {mark.group()}, not {wanted[place % 3]}")
            place = wanted.index(mark.group())
        place += 1
    for mark in re.finditer(r"\[\[\[(?:cog|end\]\]\])", text):
        before = text[: mark.start()].rpartition("\n")[2]
        torn += [f"{before}{mark.group()}: a line begins with <!-- {mark.group()}"] if before != "<!-- " else []
    outside = re.sub(r"<!-- \[\[\[cog.*?\[\[\[end\]\]\] -->", "", text, flags=re.DOTALL)
    return torn + (["code outside a comment"] if "cog.out(" in outside else []) + ([] if place % 3 == 0 else ["no end"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_generated_parts_are_whole(page: Path) -> None:
    assert torn_parts(page.read_text(encoding="utf-8")) == []


PART = "<!-- [[[cog\ncog.out('new')\n]]] -->\nnew\n<!-- [[[end]]] -->\n"


@pytest.mark.parametrize("lost", ["<!-- [[[cog\n", "<!-- ", "]]] -->\n", "<!-- [[[end]]] -->\n"])
def test_a_lost_or_doubled_mark_is_found(lost: str) -> None:
    assert torn_parts(PART + PART) == []
    assert torn_parts(PART.replace(lost, "", 1) + PART)
    assert torn_parts(PART.replace(lost, lost + lost, 1) + PART)
    assert torn_parts(PART + PART.replace(lost, "", 1))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_output_of_a_command_is_generated(page: Path) -> None:
    """What a page prints under a command comes from the command."""
    written = re.sub(r"<!-- \[\[\[cog.*?\[\[\[end\]\]\] -->", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    found = re.findall(r"^ *\$ (?:scripts/)?stagedb .*\n(?! *\$)(?! *$).*\S.*$", written, re.MULTILINE)
    assert found == []


def test_an_outdated_part_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- [[[cog\ncog.out('new\\n')\n]]] -->\nold\n<!-- [[[end]]] -->\n", encoding="utf-8")
    assert cog_check(page).returncode != 0


@pytest.mark.parametrize("command", generate.command_names())
def test_every_command_is_documented(command: str) -> None:
    """Each option is on the page once: in the section of its command, or in that of options of several."""
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    several = text.partition("## Options of several commands\n")[2].partition("\n## ")[0]
    section = text.partition(f"## stagedb {command}\n")[2].partition("\n## ")[0]
    found = generate.TREE
    for word in command.split():
        found = found.commands[word]
    plan = {word.option for word in PLAN_WORDS.values()}
    flags = {flag for each in found.params for flag in each.opts if flag.startswith("--")} - plan
    for flag in flags:
        row = rf"^\| `(?:-\w, )?{flag}[ `]"
        own, shared = re.search(row, section, re.MULTILINE), re.search(row, several, re.MULTILINE)
        assert bool(own) != bool(shared and f"`{flag}`" in section.rpartition("\nAlso ")[2]), flag


@pytest.mark.parametrize("name", generate.command_names())
def test_every_command_and_option_has_help(name: str) -> None:
    # The names of a plan's words are explained on a page of their own.
    whole = re.sub(r"\nWords of the plan:\n(?: .*\n)+", "", generate.help_of(name))
    lines = whole.splitlines()
    assert lines[0].startswith("Usage:")
    groups = [at for at, line in enumerate(lines) if re.fullmatch(r"[A-Z].*:", line) and line != "Arguments:"]
    options = lines[groups[0] + 1 :]
    starts = [at for at, line in enumerate(options) if line.startswith("  -")]
    assert starts
    for at, end in zip(starts, [*starts[1:], len(options)], strict=True):
        text = " ".join(line.strip() for line in options[at:end])
        assert re.search(r"\S {2,}\S", text) or end - at > 1, f"stagedb {name}: no help for {text}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_use_commands_that_exist(page: Path) -> None:
    known = {name.split()[0] for name in generate.command_names()}
    assert set(COMMAND.findall(page.read_text(encoding="utf-8"))) <= known


def test_a_simulation_names_the_program_that_reads_the_set() -> None:
    """A job on several levels has no place in the program with congestion."""
    found = {}
    for page in PAGES:
        for block in page.read_text(encoding="utf-8").split("\n\n"):
            for program in re.findall(r"^ {4}.*(?:ASTRA_SIM=|--with )\S*/(AstraSim_\w+)", block, re.MULTILINE):
                chosen = re.search(r"--simulator (\S+)", block)
                simulator = simulator_named(chosen and chosen[1])
                script = simulator.inputs(SimulatedJob("name", 4, (4,), load_system("h100")))["run.sh"]
                assert re.findall(r"AstraSim_\w+", script) == [program], f"{page.name}: {block}"
                found[page.name, simulator.name] = program
    assert found["how-to.md", DEFAULT.name] == "AstraSim_Analytical_Congestion_Unaware"
