"""`validate --steps`: published step times of a file, predicted."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stagedb.cli.printed_rows import Output, RowFormat
from stagedb.cli.progress import progress
from stagedb.cli.shared_options import Common
from stagedb.errors import UsageError
from stagedb.files import shown

if TYPE_CHECKING:
    from stagedb.validation.step_prediction import Prediction

Within = Annotated[
    float | None,
    typer.Option(metavar="PERCENT", help="With --steps, the largest error of a row; a larger one is a difference."),
]
"""The option for the largest error of a row."""

COLUMNS = (
    "source",
    "row",
    "step of",
    "published",
    "predicted",
    "error",
    "expected",
    "rows",
    "not expressed",
    "remarks",
)


def check_steps(path: Path, only: str | None, output: Output, common: Common, within: float | None) -> None:
    """Predict each row of a file and print the errors by source. A row that no plan can express is printed so.

    within: the largest error of a row [%]; None: any. Exits with 1 where a row has a larger one, or no time. only: a
    pattern of names of rows; None: all rows.
    """
    import fnmatch

    from stagedb import validation

    if within is not None and not 0 <= within < float("inf"):
        raise UsageError(f"--within is {within:g}: it takes the largest error of a row in percent, 0 or more")
    rows = [row for row in validation.read_steps(path) if only is None or fnmatch.fnmatchcase(row.title, only)]
    if not rows:
        raise UsageError(
            f"no step of {path} has a title like {shown(only)}: --only takes a pattern such as 'llama3.1-8b*'"
        )
    with progress(common, "predicting", "steps") as report:
        found = list(validation.predict(rows, report or _ignore))
    part = validation.parts(rows)
    narrow = output.format is RowFormat.TABLE and output.output is None
    columns = COLUMNS[2:7] if narrow else COLUMNS
    output.write(columns, [_row(each, part[each.row], narrow) for each in found])
    for each in found if narrow else ():
        for text in (each.reason, *each.remarks) if each.reason else each.remarks:
            common.line(f"row {each.row.line}, {each.row.title}: {text}")
    for kind, expected in {each.job.kind: each.expected for each in found if each.job and each.expected}.items():
        common.note(f"expected error of {kind[2]} with {kind[1]} on {kind[0]}: {expected}")
    for source in dict.fromkeys(each.row.source for each in found):
        _note(source, [each for each in found if each.row.source == source], part, common)
    errors = validation.errors_of(found)
    reason = sum(each.seconds is None for each in found)
    figures = "no time" if errors is None else f"mean {errors.mean:.1%}, worst {errors.worst:.1%}"
    common.note(f"{len(found)} rows, {figures}, {reason} that no plan can express")
    if within is not None:
        off = [each for each in found if each.error is None or abs(each.error) > within / 100]
        common.note(f"{len(found) - len(off)} of {len(found)} rows are within {within:g}%")
        if off:
            common.note(f"not within: rows {', '.join(str(each.row.line) for each in off)}")
            raise typer.Exit(1)


def _row(each: "Prediction", part: str, narrow: bool) -> list[Any]:
    error = "" if each.error is None else f"{each.error:+.1%}"
    if narrow:
        seconds = each.seconds and f"{each.seconds:.4g}"
        return [_short(each.row.title), each.row.cells["seconds"][:8], seconds, error, _expected(each)]
    seconds = None if each.seconds is None else round(each.seconds, 6)
    return [
        each.row.source,
        each.row.line,
        each.row.title,
        each.row.cells["seconds"],
        seconds,
        error,
        _expected(each),
        part,
        each.reason,
        "; ".join(each.remarks),
    ]


def _expected(each: "Prediction") -> str:
    """The mean error of steps of its kind."""
    return "" if each.expected is None else f"{each.expected.mean:.1%}"


def _short(title: str, most: int = 48) -> str:
    return title if len(title) <= most else f"{title[: most - 1]}…"


def _note(source: str, found: "Sequence[Prediction]", part: Any, common: Common) -> None:
    """The errors of a source, for each part of its rows."""
    from stagedb import validation

    for which in dict.fromkeys(part[each.row] for each in found):
        errors = validation.errors_of(each for each in found if part[each.row] == which)
        if errors is not None:
            common.note(f"{source}, {which}: {errors.rows} rows, mean {errors.mean:.1%}, worst {errors.worst:.1%}")


def _ignore(done: int, of: int) -> None:
    pass
