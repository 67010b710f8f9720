"""Values of options without pydantic: each is what typer's own conversion makes of it."""

import subprocess
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.main import get_command

from stagedb.cli.help_groups import GroupedCommand


class Shape(StrEnum):
    """A choice."""

    FLAT = "flat"
    DEEP = "deep"


def command(grouped: bool) -> Any:
    """A command with an option of each kind, as stagedb reads it, or as typer does."""
    app = typer.Typer(pretty_exceptions_enable=False)

    def values(
        word: Annotated[str, typer.Argument()],
        rest: Annotated[list[str] | None, typer.Argument()] = None,
        shape: Shape = Shape.FLAT,
        loose: Annotated[Shape | None, typer.Option(case_sensitive=False)] = None,
        name: str | None = None,
        count: Annotated[int, typer.Option(min=1, max=9)] = 3,
        plain: int = 0,
        clamped: Annotated[int, typer.Option(max=9, clamp=True)] = 5,
        share: Annotated[float, typer.Option(min=0.0)] = 0.5,
        each: list[str] | None = None,
        numbers: list[int] | None = None,
        upper: Annotated[str, typer.Option(parser=str.upper)] = "x",
        on: bool = False,
        out: Path = Path(),
        files: list[Path] | None = None,
        folder: Annotated[Path | None, typer.Option(exists=True, file_okay=False)] = None,
    ) -> Any:
        usual = (word, rest, shape, loose, name, count, plain, clamped, share, each, numbers, upper, on)
        return *usual, out, files, folder

    app.command(cls=GroupedCommand if grouped else None)(values)
    return get_command(app)


def result(grouped: bool, words: list[str]) -> Any:
    """What the command gets with the types of all of it, or the error that its user sees."""
    try:
        values = command(grouped)(words, standalone_mode=False)
    except Exception as error:  # noqa: BLE001  # of a class that typer does not export
        return type(error).__name__, str(error)
    return [(type(value), value) for value in values]


@pytest.mark.parametrize(
    "words",
    [
        "",
        "größe",
        "line\nline",
        "\udcff",
        "a b c",
        "a --shape=deep",
        "a --shape=DEEP",
        "a --shape=flat,deep",
        "a --loose=DEEP",
        "a --loose=deep",
        "a --name= --count=1",
        "a --count=9",
        "a --count=0",
        "a --count=10",
        "a --count=2.0",
        "a --count=2.5",
        "a --plain=-7 --clamped=12",
        "a --plain=1_000",
        "a --plain=+7",
        "a --plain=007",
        "a --plain=٣",
        "a --plain=12345678901234567890123",
        "a --share=0.1",
        "a --share=-0.5",
        "a --share=1e3 --clamped=-1",
        "a --share=0.30000000000000004",
        "a --share=nan",
        "a --each=x --each=y",
        "a --numbers=1 --numbers=2",
        "a --numbers=1 --numbers=b",
        "a --upper=abc --on",
        "a --out=nothing/of/this/name --files=x --files=/",
        "a --out= --files=\0",
        "a --out=\udcff",
        "a --folder=/",
        "a --folder=/nothing/of/this/name",
    ],
)
def test_a_value_is_what_typer_makes_of_it(words: str) -> None:
    given = words.split(" ") if words else []
    assert result(True, given) == result(False, given)


@pytest.mark.parametrize(
    "line", ["ls --sort name --limit 2 --store bolt://127.0.0.1:1", "profile --tp 0", "systems", "store list"]
)
def test_usual_words_are_read_without_pydantic(line: str) -> None:
    code = (
        f"import sys\nfrom stagedb.cli import main\nsys.argv = ['stagedb', *{line.split()!r}]\n"
        "try:\n    main()\nfinally:\n    print('pydantic' in sys.modules, file=sys.stderr)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.stderr.splitlines()[-1] == "False"


def test_a_value_that_typer_refuses_is_its_error() -> None:
    line = [sys.executable, "-m", "stagedb", "ls", "--limit", "0"]
    ran = subprocess.run(line, capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert "--limit" in ran.stderr
    assert "greater than or equal to 1" in ran.stderr
