"""`help`: commands by what people want, a command's own options, and the words of a plan on one page."""

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from stagedb.cli.application import application
from stagedb.cli.help_groups import COMMANDS
from stagedb.plans.aspects import PLAN_WORDS

APP = application()


def printed(*words: str, status: int = 0) -> str:
    ran = CliRunner().invoke(
        application(), words, prog_name="stagedb", env={"COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"}
    )
    assert ran.exit_code == status, ran.output
    return ran.output


def test_every_command_is_in_one_group() -> None:
    grouped = [name for names in COMMANDS.values() for name in names]
    assert sorted(grouped) == sorted(get_command(APP).commands)  # type: ignore[attr-defined]
    text = printed("--help")
    assert all(f"\n{title}:\n" in text for title in COMMANDS)
    assert printed("help") == text


def test_the_words_of_a_plan_are_explained_on_one_page_alone() -> None:
    page, command = printed("help", "plan"), printed("instantiate", "--help")
    words = [word for word in PLAN_WORDS.values() if word.about.command_line]
    for word in words:
        assert word.option in page.split() or word.flags[0].partition("/")[0] in page
        assert word.option in command
    assert "Pipeline stages." in page
    assert "Pipeline stages." not in command
    assert "`stagedb help plan` explains each of them." in command
    assert len(command.splitlines()) < 60
    assert max(map(len, command.splitlines())) <= 80


def test_own_options_come_before_the_words_of_a_plan() -> None:
    text = printed("export", "--help")
    assert text.index("--out") < text.index("Words of the plan:") < text.index("Every command:")
    assert text == printed("help", "export")


@pytest.mark.parametrize(("topic", "inner"), [("store", "status"), ("store", "check")])
def test_commands_of_a_group_are_explained(topic: str, inner: str) -> None:
    assert printed("help", topic, inner) == printed(topic, inner, "--help")


def test_an_unknown_topic_is_refused() -> None:
    ran = CliRunner().invoke(APP, ["help", "nothing"], prog_name="stagedb")
    assert ran.exit_code != 0
    assert "no command is called 'nothing'" in str(ran.exception)


def test_degrees_have_one_order() -> None:
    page = printed("help", "plan")
    places = [page.index(f"  --{axis} N") for axis in ("tp", "pp", "cp", "ep", "dp")]
    assert places == sorted(places)
