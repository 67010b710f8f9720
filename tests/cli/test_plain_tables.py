"""Tables whose cells have one line each: the lines are those of the library that prints all others."""

import random
import re
import subprocess
import sys

import pytest

from stagedb.cli.printed_rows import _has_bold, _in_rich_lines, fit, in_plain_lines


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("bold", [False, True])
def test_lines_are_those_of_rich(seed: int, bold: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    draw = random.Random(seed)
    columns = draw.randint(1, 6)
    heads = ["".join(draw.choices("ab c_/", k=draw.randint(1, 9))) for _ in range(columns)]
    cells = [
        ["".join(draw.choices("ab  1/.[]", k=draw.randint(0, 12))) for _ in range(columns)]
        for _ in range(draw.randint(0, 5))
    ]
    numeric = [draw.random() < 0.4 for _ in range(columns)]
    layout = fit(heads, cells, numeric, 1000)
    lines = in_plain_lines(heads, cells, numeric, layout, bold)
    rich = _in_rich_lines(heads, cells, numeric, layout, bold)
    assert lines is not None
    assert without_bold(lines) == without_bold(rich)
    assert ("\x1b[1m" in lines) == ("\x1b[1m" in rich)


def without_bold(text: str) -> list[str]:
    return [re.sub(r"\x1b\[[01]m", "", line).rstrip() for line in text.splitlines()]


@pytest.mark.parametrize("cell", ["größe", "層", "two\nlines", "a\tb", "x" * 30 + " " + "y" * 30])
def test_other_cells_are_left_to_rich(cell: str) -> None:
    assert in_plain_lines(["a"], [[cell]], [False], fit(["a"], [[cell]], [False], 40)) is None


def test_a_terminal_without_bold_gets_none() -> None:
    assert _has_bold({"TERM": "xterm"})
    assert not _has_bold({"TERM": "dumb"})
    assert not _has_bold({"TERM": "xterm", "NO_COLOR": "1"})


def test_a_usual_table_is_printed_without_rich() -> None:
    code = (
        "import sys\nfrom stagedb.cli import main\nsys.argv = ['stagedb', 'models']\n"
        "try:\n    main()\nfinally:\n    print('rich' in sys.modules, file=sys.stderr)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stderr == "False\n"
    assert "llama3-8b" in ran.stdout
