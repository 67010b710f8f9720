"""The words of a plan are the same in the program, on the command line and in Python."""

import dataclasses
from pathlib import Path
from typing import Annotated, get_type_hints

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from stagedb.api.plan_keywords import GraphWords as GraphKeywords
from stagedb.api.plan_keywords import PlanWords as PlanKeywords
from stagedb.cli.application import application
from stagedb.cli.plan_options import GraphFlags, PlanFlags
from stagedb.cli.printed_rows import Output
from stagedb.cli.shared_options import Common, option_groups
from stagedb.errors import UsageError
from stagedb.plans import WORDS, GraphOptions

APP = application()

NOT_YET: set[str] = set()
"""Words of a plan that nothing can be done with so far."""


def test_every_word_of_a_plan_is_an_option_and_a_keyword() -> None:
    words = set(WORDS) - NOT_YET
    # A command line names a file of the order (--schedule) instead.
    assert {field.name for field in dataclasses.fields(PlanFlags)} - {"plan"} == words - {"task_order"}
    assert set(get_type_hints(PlanKeywords)) == words


def test_the_words_of_a_graph_are_those_of_its_options() -> None:
    words = {field.name for field in dataclasses.fields(GraphOptions)}
    assert {field.name for field in dataclasses.fields(GraphFlags)} - {"plan"} == words
    assert set(get_type_hints(GraphKeywords)) == words


def test_an_option_that_is_not_given_is_no_word() -> None:
    assert PlanFlags().words() == {}
    assert PlanFlags(tp=2, sp=False).words() == {"tp": 2, "sp": False}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("plan.yaml", "tp: 4\npp: 2\nsp: true\n"),
        ("plan.json", '{"tp": 4, "pp": 2, "sp": true}'),
        ("plan.toml", "tp = 4\npp = 2\nsp = true\n"),
    ],
)
def test_the_command_line_wins_over_the_file(tmp_path: Path, name: str, text: str) -> None:
    file = tmp_path / name
    file.write_text(text, encoding="utf-8")
    assert PlanFlags(plan=file, pp=8).words() == {"tp": 4, "pp": 8, "sp": True}


def test_a_missing_plan_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"missing\.yaml"):
        PlanFlags(plan=tmp_path / "missing.yaml").words()


def test_a_group_of_options_becomes_options_and_comes_back_whole() -> None:
    app = typer.Typer(rich_markup_mode=None)
    seen: list[object] = []

    @app.command()
    @option_groups
    def command(word: Annotated[str, typer.Argument()], *, words: PlanFlags, output: Output, common: Common) -> None:
        """Do nothing."""
        seen.extend([word, words, output, common])

    arguments = ["hello", "--tp", "2", "--no-sp", "--gather-logits", "-f", "csv", "-q", "--store", "team"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    word, words, output, common = seen
    assert word == "hello"
    assert words == PlanFlags(tp=2, sp=False, loss_parallel=False)
    assert isinstance(output, Output)
    assert output.format == "csv"
    assert common == Common(store="team", quiet=True)


def test_the_list_of_commands_shows_every_summary_whole() -> None:
    found = CliRunner().invoke(APP, ["--help"], terminal_width=80)
    rows = [row for row in found.output.partition("\nMake:\n")[2].splitlines() if row.startswith("  ")]
    names = [name for name, command in get_command(APP).commands.items() if not command.hidden]  # type: ignore[attr-defined]
    assert sorted(row.split()[0] for row in rows) == sorted(names)
    assert not [row for row in rows if row.endswith("...")]
