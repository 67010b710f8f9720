"""The application: its commands, and how errors are shown."""

import os
import re
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any

import typer

from stagedb.cli.help_groups import GroupedCommands, group_options
from stagedb.cli.shared_options import print_line
from stagedb.errors import StagedbError
from stagedb.files import did_you_mean, shown
from stagedb.mentions import OPTIONS, Options

# Command lines that cannot be read, as one line like all other errors: what is wrong, what is allowed, the nearest.

USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]
"""What the reader of the command line raises. typer gives it no public name."""

_MOST = 200
_CHOICE = re.compile(r"(?:Value error, )?'(?P<value>.*)' is not one of (?P<choices>'.*')\.?", re.DOTALL)
_COMMAND = re.compile(r"No such command (?P<name>'.*?'|\".*?\")\.?( Did you mean .*)?", re.DOTALL)
_KINDS = (("Input should be a valid integer", "a whole number"), ("Input should be a valid number", "a number"))


def refusal(error: Any) -> str:
    """The text of the error. error: an instance of `USAGE_ERROR`."""
    context, message = error.ctx, str(error.message)
    help_ = "`stagedb --help`" if context is None else f"`{context.command_path} --help`"
    if (wanted := getattr(error, "option_name", None)) and hasattr(error, "possibilities"):
        known = [] if context is None else [name for each in context.command.params for name in each.opts]
        return f"unknown option {shown(wanted)}{_near(wanted, known)}: {help_} lists them"
    if match := _COMMAND.fullmatch(message):
        name = match["name"][1:-1]
        return f"unknown command {shown(name)}{_near(name, _commands(context))}: {help_} lists them"
    option = _name_of(getattr(error, "param", None))
    if match := _CHOICE.fullmatch(message):
        choices = re.findall(r"'([^']*)'", match["choices"])
        text = f"{', '.join(choices[:-1])} or {choices[-1]}" if len(choices) > 1 else "".join(choices)
        what = option.lstrip("-").replace("-", " ").lower()
        return f"unknown {what} {shown(match['value'])}{_near(match['value'], choices)}: {option} is {text}"
    for beginning, kind in _KINDS:
        if message.startswith(beginning):
            return f"{option} must be {kind}"
    text = " ".join(error.format_message().replace("Value error, ", "").split()).removesuffix(".")
    return f"{text[:_MOST]}: {help_} shows what the command takes"


def _name_of(parameter: Any) -> str:
    """`--format` of an option with several names; `FILE` of an argument."""
    if parameter is None:
        return "an argument"
    names = [name for name in parameter.opts if name.startswith("-")]
    metavar = str(parameter.metavar or "|")
    return max(names, key=len) if names else str(parameter.name).upper() if "|" in metavar else metavar


def _commands(context: Any) -> list[str]:
    return [] if context is None else [*getattr(context.command, "commands", {})]


def _near(word: str, known: list[str]) -> str:
    return did_you_mean(word[:_MOST].lower(), known, most=2, cutoff=0.5)


HELP = """Execution traces of distributed LLM training, in a graph database.

\b
stagedb export --model llama3-8b --tp 2 --pp 2 --ranks 8 --out traces
                             traces of eight ranks, one file each
stagedb models               the models of the library
stagedb systems              the systems of the library
stagedb report               a step of it on a system, as a page
stagedb query bytes_by_axis  the bytes that your newest instance sends, by axis
stagedb profile              the time of its step, and where it goes

Model, plan and traces are one chain: `build` writes a model's symbolic graph into the store, `instantiate` copies it
out under a plan, `export` writes one trace a rank. Each makes what is missing before it. `query` asks in Cypher.
"""

EXIT_REFUSED = 2
EXIT_BROKEN_PIPE = 141

COMMANDS: Mapping[str, str] = {
    "models": "models",
    "systems": "systems",
    "build": "build_instantiate",
    "instantiate": "build_instantiate",
    "export": "export",
    "unpack": "export",
    "validate": "validate",
    "simulate": "simulate",
    "import": "import_traces",
    "query": "query",
    "queries": "query",
    "memory": "memory",
    "profile": "profile",
    "advise": "advise",
    "search": "search",
    "sweep": "sweep",
    "replay": "run_exports",
    "timeline": "timeline_report",
    "report": "timeline_report",
    "diff": "diff",
    "match": "match",
    "iterations": "iterations",
    "ls": "ls_show_rm",
    "show": "ls_show_rm",
    "rm": "ls_show_rm",
    "find": "find",
    "jobs": "jobs",
    "name": "name_tag_note",
    "tag": "name_tag_note",
    "note": "name_tag_note",
    "serve": "serve",
    "mcp": "mcp",
    "store": "store_command",
    "help": "help",
}
"""The module of each command, which registers it."""

BEFORE = ("-q", "--quiet", "-v", "--verbose")
"""Options that may come before a command and do not end the command line."""


def application(modules: Iterable[str] = COMMANDS.values()) -> typer.Typer:
    """The application with the commands of some modules; by default with all."""
    app = typer.Typer(
        cls=GroupedCommands,
        help=HELP,
        no_args_is_help=True,
        add_completion=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    )
    for module in dict.fromkeys(modules):
        import_module(f"stagedb.cli.{module}").register(app)
    group_options(app)
    app.callback()(root)
    return app


def needed_modules(words: Sequence[str], environment: Mapping[str, str]) -> Iterable[str]:
    """The modules that a command line needs: that of its command, or all.

    Reading the options of all commands takes longer than most commands do. words: of the command line. environment:
    variables by name.
    """
    command = next((word for word in words if word not in BEFORE), "")
    completes = any(name.startswith("_STAGEDB_") for name in environment)
    return [COMMANDS[command]] if command in COMMANDS and command != "help" and not completes else COMMANDS.values()


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"stagedb {version('stagedb')}")
        raise typer.Exit


def root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="Print only results and errors."),
    verbose: bool = typer.Option(False, "--verbose", "-v", help="Show where the time of the command goes."),
) -> None:
    # The callback of the version has printed it; `option_groups` reads the two others.
    del version, quiet, verbose


def _show(message: Warning | str, category: type[Warning], *place: object, **more: object) -> None:
    """Print a warning in one line, without the code that it comes from."""
    print_line(f"Warning: {message}", err=True)


def _print_error(text: str) -> None:
    """Print an error in one line, without passwords, which an address among the arguments or a store may have."""
    may_have = any("@" in each for each in sys.argv) or "stagedb.store" in sys.modules
    if may_have:
        from stagedb.cli.unexpected_errors import hiding

        text = hiding(sys.argv)(text)
    print_line(f"Error: {text}", err=True)


def run() -> None:
    """Run the command line and exit. Errors that stagedb expects become one line on standard error."""
    warnings.showwarning = _show
    try:
        app = application(needed_modules(sys.argv[1:], os.environ))
        status = app(prog_name="stagedb", standalone_mode=False)
        sys.exit(status if isinstance(status, int) else 0)
    except USAGE_ERROR as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()  # type: ignore[attr-defined]  # of a class that click does not export
        else:
            _print_error(refusal(error))
        sys.exit(EXIT_REFUSED)
    except StagedbError as error:
        _print_error(error.text(error.form if isinstance(error.form, Options) else OPTIONS))
        sys.exit(error.exit_status)
    except BrokenPipeError:
        # The reader of the output (`| head`) has closed it. Python would report that again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_BROKEN_PIPE)
