"""The commands by what people want, and the options of a command in groups: its own ones first.

The words of a plan are options of many commands: each names them, and `stagedb help plan` explains them on one page.
"""

import textwrap
from collections.abc import Mapping
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from stagedb.cli.quick_values import read_quickly

COMMANDS: Mapping[str, tuple[str, ...]] = {
    "Make": ("models", "systems", "build", "instantiate", "export", "unpack", "validate", "simulate", "import"),
    "Ask": ("query", "queries", "ls", "show", "find", "jobs", "serve", "mcp"),
    "Time": (
        "memory",
        "profile",
        "advise",
        "search",
        "sweep",
        "timeline",
        "report",
        "diff",
        "replay",
        "match",
        "iterations",
    ),
    "Share": ("name", "tag", "note", "rm", "store"),
    "Help": ("help",),
}
"""The commands by what people want."""

OWN = "Options"
TIMING = "Time of a step"
REQUESTS = "Requests that fit (prefill, decode)"
SERVING = "Engines that serve requests"
ROWS = "Printed rows"
EVERY = "Every command"

WORDS: Mapping[str, str] = {
    "degrees": "Plan: parallelism",
    "batch": "Plan: batch",
    "operators": "Plan: framework and kernels",
    "sharding": "Plan: sharding",
    "pipeline": "Plan: pipeline",
    "recompute": "Plan: recomputation",
    "optimizer": "Plan: optimizer",
    "adapters": "Plan: trained weights",
    "precision": "Plan: number formats",
    "context": "Plan: context parallelism",
    "experts": "Plan: experts",
}
"""The group of a plan's words, by the file in `stagedb.plans.aspects` that declares them; the common ones first."""

PLAN = "Words of the plan"

_ORDER = ("Arguments", OWN, SERVING, TIMING, REQUESTS, PLAN, ROWS, EVERY)


class QuickGroup(TyperGroup):
    """A group of commands whose own options are read without conversions."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the words before a command. ctx: click's. args: the words of the command line."""
        read_quickly(self.get_params(ctx))
        return super().parse_args(ctx, args)


class GroupedCommands(QuickGroup):
    """An application whose help has its commands by what people want."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a section for each group of `COMMANDS`. ctx, formatter: click's."""
        room = formatter.width - 6 - max(map(len, self.commands))
        for title, names in COMMANDS.items():
            with formatter.section(title):
                formatter.write_dl([(name, self.commands[name].get_short_help_str(room)) for name in names])


class GroupedCommand(TyperCommand):
    """A command whose help has a section for each group of options: for each `rich_help_panel`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the words of a command line. ctx: click's. args: the words."""
        read_quickly(self.get_params(ctx))
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the sections. Options without a group are in `OWN`. ctx, formatter: click's."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                sections.setdefault(_section(parameter), []).append(record)
        words = [parameter.opts[0] for parameter in self.get_params(ctx) if _section(parameter) == PLAN]
        for title in sorted(sections, key=_ORDER.index):
            with formatter.section(title):
                if title == PLAN:
                    _write_names(formatter, words)
                else:
                    formatter.write_dl(sections[title])


def _write_names(formatter: Any, words: list[str]) -> None:
    """Names of options without their help, and where that is."""
    room = formatter.width - formatter.current_indent
    for text in (" ".join(words), "`stagedb help plan` explains each of them."):
        for line in textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False):
            formatter.write(f"{'':{formatter.current_indent}}{line}\n")


def _section(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return "Arguments"
    if parameter.name == "help":
        return EVERY
    panel = getattr(parameter, "rich_help_panel", None) or OWN
    return PLAN if panel in WORDS.values() else panel


def group_options(app: typer.Typer) -> None:
    """Give all commands of an application, and of its groups, sections in their help."""
    for command in app.registered_commands:
        command.cls = GroupedCommand
    for group in app.registered_groups:
        if group.typer_instance is not None:
            group_options(group.typer_instance)
