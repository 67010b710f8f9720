"""`help`: the help of a command, and the words of a plan on one page."""

from typing import Annotated, Any

import typer

from stagedb.cli.help_groups import WORDS
from stagedb.cli.plan_options import PlanFlags
from stagedb.cli.shared_options import option_groups
from stagedb.errors import UsageError
from stagedb.files import shown

PLAN_PAGE = """
The words of a plan. They are options of `instantiate`, `export`, `memory`, `profile`, `advise`, `timeline`, `report`
and `find`, and keys of a file that --plan names (YAML, JSON or TOML; without the dashes). --plan vllm:FILE, sglang:FILE
and trtllm:FILE read the arguments of a serving engine. Options on the command line override those of the file.
What is not given has the default in brackets.
"""


def help_(
    context: typer.Context,
    topic: Annotated[
        list[str] | None, typer.Argument(metavar="COMMAND|plan", help="A command, or the words of a plan.")
    ] = None,
) -> None:
    """Explain a command, or with `plan` the words of a plan.

    Without an argument it lists the commands.
    """
    found, place = context.find_root().command, context.find_root()
    if topic == ["plan"]:
        typer.echo(_plan_page(place))
        return
    for word in topic or ():
        command = getattr(found, "commands", {}).get(word)
        if command is None:
            raise UsageError(
                f"no command is called {shown(word)}: `stagedb help` lists the commands, and `stagedb help plan` "
                "explains the words of a plan"
            )
        found, place = command, typer.Context(command, info_name=word, parent=place)
    typer.echo(found.get_help(place))


def _plan_page(root: Any) -> str:
    """The words of a plan by subject."""
    context = typer.Context(_words_command(), info_name="plan", parent=root)
    formatter = context.make_formatter()
    formatter.write_text(" ".join(PLAN_PAGE.split()))
    for title in WORDS.values():
        rows = [
            record
            for parameter in context.command.get_params(context)
            if getattr(parameter, "rich_help_panel", None) == title
            and (record := parameter.get_help_record(context)) is not None
        ]
        with formatter.section(title.removeprefix("Plan: ").capitalize()):
            formatter.write_dl(rows)
    return formatter.getvalue().rstrip("\n")


def _words_command() -> Any:
    """A command with all words of a plan as its options."""

    @option_groups
    def words(*, words: PlanFlags) -> None:
        del words

    application: Any = typer.Typer(add_completion=False, rich_markup_mode=None)
    application.command()(words)
    return typer.main.get_command(application)


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("help")(help_)
