"""Options that several commands share, each written once, as a field of a dataclass.

A command takes such a dataclass as a parameter. `option_groups` gives typer a signature in which one option for each
field replaces the parameter, and collects the values of the options into the dataclass.
"""

import dataclasses
import functools
import inspect
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Protocol,
    TextIO,
    get_args,
    get_type_hints,
    runtime_checkable,
)

import typer
from typer.models import OptionInfo

from stagedb.cli import EXIT_INTERRUPTED, completion
from stagedb.cli.help_groups import EVERY
from stagedb.errors import StagedbError
from stagedb.files import printable
from stagedb.mentions import OPTIONS, Options, shown_in

if TYPE_CHECKING:
    from stagedb.api import Stagedb

Target = Annotated[
    str | None,
    typer.Argument(
        metavar="INSTANCE",
        help="Id or name of an instance; plan options change its plan.  [your newest]",
        autocompletion=completion.instances,
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        metavar="MODEL",
        help="This model under the plan of the options; makes what is missing.",
        autocompletion=completion.models,
    ),
]
"""A model, instead of an instance."""
System = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|FILE",
        help="The system: a preset (`stagedb systems` lists them) or a system's file.  [h100]",
        autocompletion=completion.systems,
    ),
]


@dataclass(frozen=True)
class Printing:
    """How much a command prints. quiet: results and errors alone. verbose: details too."""

    PANEL: ClassVar[str] = EVERY

    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only results and errors.")] = False
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show where the time of the command goes.")] = False

    def line(self, line: str) -> None:
        """Print what a command did, in one line on standard output."""
        if not self.quiet:
            print_line(line)

    def note(self, line: str) -> None:
        """Print a useful remark that is not a result, on standard error. line: the remark."""
        if not self.quiet:
            print_line(line, err=True)

    def detail(self, line: str) -> None:
        """Print a line only with `--verbose`."""
        if self.verbose:
            print_line(line, err=True)

    def profile(self, stages: Mapping[str, float]) -> None:
        """Print where the time of the command went: its start (the interpreter and its imports), then each stage.

        stages: seconds of each, by name.
        """
        if not self.verbose:
            return
        whole = _age()
        rows = {"start": whole - sum(stages.values()), **stages, "in all": whole}
        for stage, seconds in rows.items():
            self.detail(f"{seconds:8.2f} s {seconds / whole:4.0%}  {stage}")


@dataclass(frozen=True)
class Common(Printing):
    """The options of every command that uses a store."""

    store: Annotated[
        str | None,
        typer.Option(
            metavar="URI|NAME",
            help="The store: a bolt:// or neo4j:// address, or a name (`stagedb store list`). Without it: NEO4J_URI, "
            "the project's .stagedb.toml, your default, or the embedded store of this machine.",
            autocompletion=completion.stores,
        ),
    ] = None
    database: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The database of a server.  [NEO4J_DATABASE, else that of the store]"),
    ] = None
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Send the store's password unencrypted to another machine too.")
    ] = False

    def connect(self) -> "Stagedb":
        """Open the store."""
        from stagedb.api import connect

        return connect(self.store, database=self.database, insecure=self.insecure)


def print_line(line: str, err: bool = False) -> None:
    """Print a line of prose. A terminal gets it as lines of whole words; another program gets one line.

    err: on standard error.
    """
    text, stream = printable(shown_in(OPTIONS, line)), sys.stderr if err else sys.stdout
    if stream.isatty():
        wrap = textwrap.TextWrapper(_width(stream), break_long_words=False, break_on_hyphens=False)
        text = "\n".join(wrap.fill(each) for each in text.split("\n"))
    typer.echo(text, err=err)


def _width(stream: TextIO) -> int:
    """The columns of a terminal. The library asks for those of standard output, which may be a file."""
    if not os.environ.get("COLUMNS"):
        with suppress(OSError, ValueError):
            return os.get_terminal_size(stream.fileno()).columns or shutil.get_terminal_size().columns
    return shutil.get_terminal_size().columns


def _age() -> float:
    """Seconds since this process began."""
    import psutil

    began = psutil.Process().create_time()
    if hasattr(time, "CLOCK_BOOTTIME"):
        # The time of boot is known only to whole seconds. Both of these contain it, so that their difference is exact.
        return time.clock_gettime(time.CLOCK_BOOTTIME) - (began - psutil.boot_time())
    return time.time() - began


@runtime_checkable
class _WithForm(Protocol):
    """Options that decide how messages show words."""

    def message_form(self) -> Options:
        """The form."""


@runtime_checkable
class _WithRemarks(Protocol):
    """Options with remarks on what they read."""

    def remarks(self, model: str | None) -> tuple[str, ...]:
        """The remarks, for a command with this model. Raises UsageError for options that do not suit it."""


def option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Replace each parameter that is a dataclass by its fields, as options of the command line.

    A class may have a group of the help, `PANEL`. Switches that the application has too count on either side of the
    command's name: `stagedb -q export`.
    """
    hints = get_type_hints(command, include_extras=True)
    plain: list[inspect.Parameter] = []
    shared: list[inspect.Parameter] = []
    groups: dict[str, type[Any]] = {}
    for parameter in inspect.signature(command).parameters.values():
        annotation = hints[parameter.name]
        if dataclasses.is_dataclass(annotation) and isinstance(annotation, type):
            groups[parameter.name] = annotation
            shared += _options(annotation)
        else:
            plain.append(parameter.replace(annotation=annotation, kind=inspect.Parameter.KEYWORD_ONLY))

    @functools.wraps(command)
    def run(context: typer.Context, **values: Any) -> None:
        before = context.find_root().params
        values |= {name: True for name in ("quiet", "verbose") if name in values and before.get(name)}
        collected = {
            name: group(**{field.name: values.pop(field.name) for field in dataclasses.fields(group)})
            for name, group in groups.items()
        }
        try:
            _note_remarks(collected, values.get("model") or values.get("target"))
            command(**values, **collected)
        except StagedbError as error:
            forms = [group.message_form() for group in collected.values() if isinstance(group, _WithForm)]
            error.form = forms[0] if forms else OPTIONS
            raise
        except KeyboardInterrupt as interrupt:
            # Without this line the program that runs the command would end silently.
            typer.echo(f"Interrupted: {interrupt}" if str(interrupt) else "Interrupted.", err=True)
            raise typer.Exit(EXIT_INTERRUPTED) from None

    first = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    parameters = [first, *plain, *shared]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # as typer reads it
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _note_remarks(collected: Mapping[str, Any], model: str | None) -> None:
    """Print the remarks of all options, if the command prints remarks. model: the one that the command is about."""
    groups = [group for group in collected.values() if isinstance(group, _WithRemarks)]
    for printing in (group for group in collected.values() if isinstance(group, Printing)):
        for remark in (remark for group in groups for remark in group.remarks(model)):
            printing.note(remark)


def _options(group: type[Any]) -> Iterator[inspect.Parameter]:
    """A keyword for each field. The command's own fields come before inherited ones: they are its subject."""
    hints = get_type_hints(group, include_extras=True)
    inherited = [field.name for base in group.__mro__[1:] for field in _fields(base)]
    fields = sorted(_fields(group), key=lambda field: field.name in inherited)
    for field in fields:
        _put_into_panel(hints[field.name], getattr(group, "PANEL", None))
        yield inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
        )


def _put_into_panel(annotation: Any, panel: str | None) -> None:
    """Name the group of the help for an option that has none."""
    for each in get_args(annotation)[1:]:
        if isinstance(each, OptionInfo) and each.rich_help_panel is None:
            each.rich_help_panel = panel


def _fields(group: type[Any]) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(group) if dataclasses.is_dataclass(group) else ()
