"""What the documentation takes from the program: cog calls these functions (`cog -r docs/*.md README.md`)."""

import inspect
import json
from pathlib import Path

from typer.main import get_command
from typer.testing import CliRunner

from stagedb.cli.application import app

WIDTH = 100
"""Columns of the help texts, whatever the terminal."""


def command_names() -> list[str]:
    """Every command that does something, groups spelled out: `store up`."""
    names = []
    for name, command in sorted(get_command(app).commands.items()):  # type: ignore[attr-defined]
        names += [f"{name} {sub}" for sub in sorted(getattr(command, "commands", {}))] or [name]
    return names


def help_of(name: str) -> str:
    """What `stagedb NAME --help` prints."""
    env = {"COLUMNS": str(WIDTH), "NO_COLOR": "1", "TERM": "dumb"}
    result = CliRunner().invoke(app, [*name.split(), "--help"], prog_name="stagedb", env=env)
    if result.exit_code:
        raise RuntimeError(f"stagedb {name} --help failed: {result.output}")
    return result.output.strip()


def cli_reference() -> str:
    """One section a command: its help text."""
    parts = [f"```text\n{help_of('')}\n```\n"]
    parts += [f"## stagedb {name}\n\n```text\n{help_of(name)}\n```\n" for name in command_names()]
    return "\n".join(parts)


def data_model() -> str:
    """Labels, properties and relationships of the store."""
    from stagedb.store.schema import page

    return page()


def queries() -> str:
    """The named queries as a table."""
    from stagedb import api

    rows = ["| query | asks | parameters | columns |", "|---|---|---|---|"]
    for info in api.queries():
        asks = inspect.cleandoc(info.description).replace("\n", " ").replace("|", "\\|")
        rows.append(f"| `{info.name}` | {asks} | {_list(info.parameters)} | {_list(info.columns)} |")
    return "\n".join(rows) + "\n"


def packed_columns() -> str:
    """The columns of a packed file's classes as a table."""
    from stagedb.export.packed import COLUMNS

    names = {"<i8": "int64", "<i4": "int32", "|u1": "uint8"}
    rows = ["| column | integers | what |", "|---|---|---|"]
    rows += [f"| `{name}` | {names[column.dtype]} | {column.what} |" for name, column in COLUMNS.items()]
    return "\n".join(rows) + "\n"


def scale_table() -> str:
    """The table of large exports, from the figures that `scripts/bench scale` wrote."""
    from scripts._bench_scale import table

    return table(json.loads(Path("docs/bench-scale.json").read_text(encoding="utf-8")))


def _list(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)
