"""`validate --served`: measured times a token of engines, predicted."""

import fnmatch
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from stagedb.cli.printed_rows import Output, RowFormat
from stagedb.cli.progress import progress
from stagedb.cli.shared_options import Common
from stagedb.errors import UsageError
from stagedb.files import shown

if TYPE_CHECKING:
    from stagedb.validation import ServedTime

COLUMNS = (
    "line",
    "system",
    "engine",
    "model",
    "tp",
    "at_once",
    "input_len",
    "output_len",
    "measured",
    "predicted",
    "error",
)


def check_served(path: Path, only: str | None, output: Output, common: Common) -> None:
    """Predict the time a token of each row of a file, and print the errors by accelerator, engine and model.

    Exits with 1 if no row has a time. only: a pattern of model names, such as `*llama*`; None: all rows.
    """
    from stagedb import validation

    every = validation.read_served(path)
    rows = [row for row in every if only is None or fnmatch.fnmatchcase(row.cells["model_path"], only)]
    if not rows:
        raise UsageError(
            f"no row of {path} has a model like {shown(only)}: --only takes a pattern such as '*Llama-3.1-70B*'"
        )
    with progress(common, "predicting", "rows") as report:
        found = validation.predict_served(rows, report or _ignore)
    if output.format is RowFormat.TABLE and output.output is None:
        output.write(["system", "engine", "model", "rows", "mean %", "bias %", "worst %"], list(_by_kind(found)))
    else:
        output.write(COLUMNS, [_row(each) for each in found])
    reasons = Counter(each.reason for each in found if each.reason)
    for reason, count in reasons.most_common():
        common.note(f"{count:,} not compared: {reason}")
    figures = validation.served_errors(found)
    if figures is None:
        common.note(f"{len(found):,} rows, none with a time")
        raise typer.Exit(1)
    common.note(f"{figures.rows:,} of {len(found):,} rows compared: off by {figures}")


def _by_kind(found: "list[ServedTime]") -> Iterator[list[Any]]:
    from stagedb import validation

    for (system, engine, model), each in validation.kinds_served(found):
        errors = [one.error or 0.0 for one in each]
        mean = sum(map(abs, errors)) / len(errors)
        figures = (round(100 * value, 1) for value in (mean, sum(errors) / len(errors), max(errors, key=abs)))
        yield [system, engine, model.rpartition("/")[2], len(errors), *figures]


def _row(each: "ServedTime") -> list[Any]:
    cells = each.row.cells
    names = ("system", "backend", "model_path", "tp_size", "batch_size", "isl", "osl", "silicon_tpot_ms")
    return [each.row.line, *(cells[name] for name in names), each.ms, each.error]


def _ignore(done: int, of: int) -> None:
    pass
