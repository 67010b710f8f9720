"""The options of a command in groups: its own ones first, then those of a plan, and those of every command last."""

from collections.abc import Mapping
from typing import Any

import typer
from typer.core import TyperCommand

OWN = "Options"
TIMING = "Time of a step"
ROWS = "Printed rows"
EVERY = "Every command"

WORDS: Mapping[str, str] = {
    "degrees": "Plan: parallelism",
    "batch": "Plan: batch",
    "operators": "Plan: framework and kernels",
    "sharding": "Plan: sharding",
    "pipeline": "Plan: pipeline",
    "recompute": "Plan: recomputation",
    "precision": "Plan: number formats",
    "context": "Plan: context parallelism",
    "experts": "Plan: experts",
}
"""The group of a plan's words, by the file in `stagedb.plans.aspects` that declares them; the common ones first."""

_ORDER = ("Arguments", OWN, TIMING, *WORDS.values(), ROWS, EVERY)


class GroupedCommand(TyperCommand):
    """A command whose help has a section for each group of options: for each `rich_help_panel`."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the sections. Options without a group are in `OWN`."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                sections.setdefault(_section(parameter), []).append(record)
        for title in sorted(sections, key=_ORDER.index):
            with formatter.section(title):
                formatter.write_dl(sections[title])


def _section(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return "Arguments"
    if parameter.name == "help":
        return EVERY
    return getattr(parameter, "rich_help_panel", None) or OWN


def group_options(app: typer.Typer) -> None:
    """Give all commands of an application, and of its groups, sections in their help."""
    for command in app.registered_commands:
        command.cls = GroupedCommand
    for group in app.registered_groups:
        if group.typer_instance is not None:
            group_options(group.typer_instance)
