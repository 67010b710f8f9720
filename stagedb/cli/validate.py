"""`validate`: checks trace sets, and compares stagedb's counts with those of real frameworks."""

import fnmatch
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stagedb.cli.printed_rows import Output, RowFormat
from stagedb.cli.progress import progress
from stagedb.cli.shared_options import Common, option_groups
from stagedb.errors import UsageError
from stagedb.files import shown

if TYPE_CHECKING:
    from stagedb.traces import Report
    from stagedb.traces.trace_rules import FaultKind
    from stagedb.validation import Checked, ServedTime, StepTime
    from stagedb.validation.step_times import Prediction

# `validate --served`: measured times a token of engines, predicted.

SERVED_COLUMNS = (
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
        output.write(SERVED_COLUMNS, [_served_row(each) for each in found])
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


def _served_row(each: "ServedTime") -> list[Any]:
    cells = each.row.cells
    names = ("system", "backend", "model_path", "tp_size", "batch_size", "isl", "osl", "silicon_tpot_ms")
    return [each.row.line, *(cells[name] for name in names), each.ms, each.error]


def _ignore(done: int, of: int) -> None:
    pass


# `validate --steps`: published step times of a file, predicted.

Within = Annotated[
    float | None,
    typer.Option(metavar="PERCENT", help="With --steps, the largest error of a row; a larger one is a difference."),
]
"""The option for the largest error of a row."""

STEP_COLUMNS = (
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
    columns = STEP_COLUMNS[2:7] if narrow else STEP_COLUMNS
    output.write(columns, [_predicted_row(each, part[each.row], narrow) for each in found])
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


def _predicted_row(each: "Prediction", part: str, narrow: bool) -> list[Any]:
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


ParametersAlone = Annotated[
    bool, typer.Option("--parameters-alone", help="Compare the parameters of recorded models alone, not their matmuls.")
]


@option_groups
def validate(
    directory: Annotated[Path | None, typer.Argument(metavar="DIR", help="A directory of traces, of any tool.")] = None,
    replay: Annotated[
        bool, typer.Option("--replay/--no-replay", help="Run the traces as a simulator would, to find those that hang.")
    ] = True,
    records: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Instead of traces, check stagedb's counts against recorded training steps."),
    ] = None,
    models: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Instead of traces, check parameters and matmuls against recorded models."),
    ] = None,
    parameters_alone: ParametersAlone = False,
    steps: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Instead of traces, predict published step times: a CSV file of plans."),
    ] = None,
    served: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Instead of traces, predict measured times a token of engines: a CSV file."),
    ] = None,
    reference: Annotated[
        bool,
        typer.Option("--reference", help="Instead of traces, compute the published numbers in stagedb's list again."),
    ] = False,
    every: Annotated[bool, typer.Option("--all", help="Print every fault of the traces, not one row a kind.")] = False,
    only: Annotated[
        str | None,
        typer.Option(
            metavar="PATTERN",
            help="Only check the records or models, or predict the steps, with such names: 'llama3-8b*'.",
        ),
    ] = None,
    within: Within = None,
    *,
    output: Output,
    common: Common,
) -> None:
    """Check a trace set, or stagedb itself.

    With DIR, checks every rule that simulators rely on. Prints a row for each kind of fault, with its count and first
    places: what hangs a simulator comes first. Broken conventions of stagedb leave a set of another tool sound. With
    --records, compares FLOPs by phase, collectives and messages with their order, and memory of each recorded step.
    With --models, compares each recorded model's parameters and matmuls, or parameters alone (records without matmuls).
    With --steps, predicts the step of each row's plan, and prints the errors by source. With --served, predicts the
    time a token of each row's engine. With --reference, computes published numbers of training steps again.
    Exits with status 1 if there is a fault or a difference, or if nothing could be compared. With --steps it does so if
    a row has no time, or a larger error than --within allows; without --within it exits with 0.
    """
    files = (records, models, steps, served)
    if sum(each is not None for each in (directory, *files)) + reference != 1:
        raise UsageError(_ONE)
    _check_needs(directory, steps, every, within, only)
    _check_alone(parameters_alone, models)
    if reference:
        _check_published(only, output, common)
    if directory is not None:
        _check_traces(directory, replay, every, output, common)
    _check_files(files, only, output, common, within, parameters_alone)


def _check_files(
    files: Sequence[Path | None],
    only: str | None,
    output: Output,
    common: Common,
    within: float | None,
    parameters_alone: bool,
) -> None:
    """Check the file that is given: of records, models, steps or engines."""
    check_rows = partial(check_steps, within=within)
    check_models = partial(_check_models, alone=parameters_alone)
    checks: tuple[Callable[..., None], ...] = (_check_records, check_models, check_rows, check_served)
    for path, check in zip(files, checks, strict=True):
        if path is not None:
            check(path, only, output, common)


_ONE = (
    "validate checks one thing: DIR (traces), --records FILE (recorded steps), --models FILE (recorded models), "
    "--steps FILE (published step times), --served FILE (measured engines), or --reference (published numbers)"
)


def _check_needs(
    directory: Path | None, steps: Path | None, every: bool, within: float | None, only: str | None
) -> None:
    if only is not None and directory is not None:
        raise UsageError("--only chooses among records, models or steps: it needs a FILE of them, or --reference")
    if every and directory is None:
        raise UsageError("--all prints every fault of traces: it needs DIR")
    if within is not None and steps is None:
        raise UsageError("--within is the largest error of a step: it needs --steps FILE")


def _check_alone(parameters_alone: bool, models: Path | None) -> None:
    if parameters_alone and models is None:
        raise UsageError("--parameters-alone is for recorded models: it needs --models FILE")


def _check_traces(directory: Path, replay: bool, every: bool, output: Output, common: Common) -> None:
    from stagedb import api

    with progress(common, "reading", "traces") as report:
        found = api.validate(directory, replay=replay, progress=report)
    if every:
        _print_faults(found, output, common)
    elif found.kinds or found.convention_kinds:
        rows = [(*_kind_row(kind), "fault") for kind in found.kinds]
        rows += [(*_kind_row(kind), "convention") for kind in found.convention_kinds]
        columns = ("rule", "count", "message", "first_places", "ranks", "level")
        output.write(columns, rows, keep=("message", "level", "count", "first_places"))
    if found.convention_kinds:
        common.note(
            f"{sum(kind.count for kind in found.convention_kinds):,} places are not as stagedb writes its own traces "
            "(level convention): simulators run them"
        )
    if found.faults:
        common.note(
            f"{directory}: not sound: faults in {found.counted:,} places, kinds of faults: {len(found.kinds)}"
            + ("" if every else "; --all prints each place")
        )
        raise typer.Exit(1)
    verdict = f"{directory}: sound: {found.summary}"
    # Rows for another program are not mixed with a line for people.
    (common.note if found.conventions else common.line)(verdict)


def _kind_row(kind: "FaultKind") -> tuple[str, int, str, str, int]:
    return kind.rule, kind.count, kind.message, kind.places, kind.ranks


def _print_faults(found: "Report", output: Output, common: Common) -> None:
    columns = ("rank", "node", "name", "rule", "message", "level")
    leveled = [(fault, "fault") for fault in found.faults] + [(fault, "convention") for fault in found.conventions]
    if leveled:
        output.write(
            columns,
            [(f.rank, f.node, f.name, f.rule, f.message, level) for f, level in leveled],
            keep=("message", "rank", "node", "rule", "level"),
        )
    if found.left_out:
        common.note(f"{found.left_out:,} more places were left out")


def _check_records(records: Path, only: str | None, output: Output, common: Common) -> None:
    from stagedb import validation

    chosen = validation.select(validation.read_records(records), only)
    if not chosen:
        raise UsageError(
            f"no record of {records} has a name like {shown(only)}: --only takes a pattern such as 'llama3-8b*'"
        )
    with common.connect() as db, progress(common, "checking", "records") as report:
        checked = list(validation.check_records(db, chosen, report or _ignore))
    output.write(("record", "quantity", "theirs", "ours", "ratio"), _rows(checked))
    differ = [each.record for each in checked if each.unsupported is None and not each.agrees]
    agree = sum(each.agrees for each in checked)
    skipped = len(checked) - agree - len(differ)
    left = f", {skipped} not compared: no plan can describe them yet" if skipped else ""
    ordered = [each.exact for each in checked if each.exact is not None]
    common.note(f"{sum(ordered)} of {len(ordered)} records with an order have their matmuls in that order")
    for note in sorted({note for each in checked for note in each.notes}):
        common.note(f"{sum(note in each.notes for each in checked)} records: {note}")
    _note_peaks(checked, common)
    if differ:
        common.note(f"different: {', '.join(differ)}")
    common.note(f"{agree} of {len(checked)} records agree, {len(differ)} differ{left}")
    if differ or skipped == len(checked):
        raise typer.Exit(1)


def _check_models(models: Path, only: str | None, output: Output, common: Common, alone: bool) -> None:
    """alone: parameters are compared, and nothing else."""
    from stagedb import validation

    found = validation.read_models(models, alone)
    chosen = [model for model in found if only is None or fnmatch.fnmatchcase(model.name, only)]
    if not chosen:
        raise UsageError(f"no model of {models} has a name like {shown(only)}: --only takes a pattern such as 'llama*'")
    with progress(common, "checking", "models") as report:
        checked = list(validation.check_models(chosen, report or _ignore, alone))
    rows: list[tuple[Any, ...]] = []
    for each in checked:
        rows += [(each.name, row.quantity, row.theirs, row.ours) for row in each.differences]
        if each.unsupported is not None:
            rows.append((each.name, f"not compared: {each.unsupported}", None, None))
    output.write(("model", "quantity", "theirs", "ours"), rows)
    for rule in dict.fromkeys(rule for each in checked for rule in each.rules):
        common.note(f"{sum(rule in each.rules for each in checked)} models: {rule}")
    agree = sum(each.agrees for each in checked)
    differ = [each.name for each in checked if each.differences]
    skipped = len(checked) - agree - len(differ)
    if differ:
        common.note(f"different: {', '.join(differ)}")
    left = f", {skipped} not compared: no card can describe them yet" if skipped else ""
    what = "the parameters of " if alone else ""
    common.note(f"{what}{agree} of {len(checked)} models agree, {len(differ)} differ{left}")
    if differ or skipped == len(checked):
        raise typer.Exit(1)


def _note_peaks(checked: "Sequence[Checked]", common: Common) -> None:
    """Print the errors of peaks of memory, by the bound that holds for them."""
    peaks = [row for each in checked for row in each.differences if row.quantity == "peak bytes"]
    for bound in sorted({row.bound for row in peaks}):
        own = [row for row in peaks if row.bound == bound]
        worst = max(abs(row.ours / row.theirs - 1) for row in own)
        common.note(f"{len(own)} peaks of memory to be within {bound:.1%}: the largest error is {worst:.4%}")


def _check_published(only: str | None, output: Output, common: Common) -> None:
    from stagedb import validation

    steps = [row for row in validation.published_steps() if only is None or fnmatch.fnmatchcase(row.title, only)]
    if not steps:
        raise UsageError(
            f"no published step has a title like {shown(only)}: --only takes a pattern such as 'megatron-22b*'"
        )
    found: list[validation.Published] = []
    if only is None:
        with progress(common, "computing", "plans") as report:
            found = list(validation.check_published(report or _ignore))
    with progress(common, "predicting", "steps") as report:
        timed = list(validation.check_steps(steps, progress=report or _ignore))
    rows = [
        (each.source, each.quantity, each.reference, each.ours, f"{each.ratio:.4f}", each.within, None)
        for each in found
    ]
    rows += [_step_row(each) for each in timed]
    output.write(("source", "quantity", "reference", "ours", "ratio", "within", "rows"), rows)
    off = [each.quantity for each in found if not each.agrees]
    off += [each.published.title for each in timed if not each.agrees]
    if found:
        common.note(
            f"{sum(each.agrees for each in found)} of {len(found)} published numbers are reproduced, to every digit or "
            "within the stated bound"
        )
    for errors in validation.errors(timed):
        which = "calibrated" if errors.calibrated else "held out"
        common.note(
            f"steps of {errors.source}, {which}: {errors.rows}, off by {errors.mean:.1%} in the mean, "
            f"{errors.worst:.1%} at worst"
        )
    together = validation.errors_of(timed)
    if together is not None:
        common.note(f"all {together.rows} steps: off by {together.mean:.1%} in the mean, {together.worst:.1%} at worst")
    if off:
        common.note(f"different: {', '.join(off)}")
        raise typer.Exit(1)


def _step_row(each: "StepTime") -> tuple[Any, ...]:
    row = each.published
    return (
        row.source,
        f"step of {row.title} [s]",
        round(row.seconds, 2),
        round(each.seconds, 2),
        f"{1 + each.error:.4f}",
        row.within,
        "calibrated" if row.calibrated else "held out",
    )


def _rows(checked: "Sequence[Checked]") -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for each in checked:
        for row in each.differences:
            ratio = f"{row.ours / row.theirs:.6f}" if row.theirs else None
            rows.append((each.record, row.quantity, row.theirs, row.ours, ratio))
        if each.unsupported is not None:
            rows.append((each.record, f"not compared: {each.unsupported}", None, None, None))
    return rows


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(validate)
