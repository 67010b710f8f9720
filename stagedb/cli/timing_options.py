"""Options for timing a step. Their help names all frameworks, which commands on a store's content run without."""

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import typer

from stagedb.cli.help_groups import TIMING
from stagedb.cli.shared_options import System
from stagedb.frameworks.profiles import FRAMEWORK_NAMES

Blocking = Annotated[
    str,
    typer.Option(
        metavar="AXIS,…",
        help="Mesh axes whose communication a rank waits for before it computes on, such as tp,pp.  [none]",
        show_default=False,
    ),
]

FrameworkName = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="The framework: its recipe, what it waits for, and what it hides behind computing: "
        + ", ".join(FRAMEWORK_NAMES)
        + ".",
    ),
]


@dataclass(frozen=True)
class SystemOptions:
    """The system for timing a step, and what its ranks wait for."""

    PANEL: ClassVar[str] = TIMING

    system: System = None
    blocking: Blocking = ""
    framework: FrameworkName = None


@dataclass(frozen=True)
class TimingOptions:
    """The system and durations for timing a step. The fields are the words of `Stagedb.profile`."""

    PANEL: ClassVar[str] = TIMING

    system: System = None
    durations: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Measured durations, which replace modelled ones: a table, or traces of a run."
        ),
    ] = None
    scale: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WHAT=FACTOR",
            help="Multiply durations by FACTOR, such as collective:tp=0.5, and show how much shorter the step gets.",
        ),
    ] = None
    blocking: Blocking = ""
    framework: FrameworkName = None

    def words(self) -> dict[str, Any]:
        """The fields as keyword arguments."""
        return {**dataclasses.asdict(self), "scale": self.scale or ()}
