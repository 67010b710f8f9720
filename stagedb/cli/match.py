"""`match`: a run that was imported, op by op against an instance."""

from collections.abc import Mapping
from typing import Annotated

import typer

from stagedb.cli import completion
from stagedb.cli.printed_rows import Output, RowFormat
from stagedb.cli.progress import progress
from stagedb.cli.shared_options import Common, option_groups

PRINTED = ("finding", "module", "phase", "ranks", "critical", "planned", "seen", "reason")
"""Columns of a table on a terminal."""


@option_groups
def match(
    run: Annotated[
        str,
        typer.Argument(metavar="RUN", help="Id or name of a run that was imported.", autocompletion=completion.runs),
    ],
    instance: Annotated[
        str | None,
        typer.Argument(
            metavar="[INSTANCE]",
            help="Id or name of an instance.  [the plan is found from the run]",
            show_default=False,
            autocompletion=completion.instances,
        ),
    ] = None,
    *,
    output: Output,
    common: Common,
) -> None:
    """Compare a run with a plan, op by op.

    Without an instance the plan is found from the run alone, and an instance of it is made: the degrees from what the
    ranks communicate, the sizes of the model from recorded shapes, other words of the plan by trying them.

    Matmuls, attentions and what ranks communicate are aligned in the order of issue. Findings have the module, the
    ranks and the plan's reason: ops that are missing or extra, collectives of another size, format, group or kind,
    others that were moved, tasks of micro-batches in another order, ranks that are late or slow. The store keeps the
    match: `stagedb query run_against_plan --run RUN` answers again, and `seen_and_planned` has times next to those of
    profiles.
    """
    with common.connect() as db, progress(common, "writing", "relationships") as report:
        found = db.match(run, instance, progress=report)
    printed = output.format is RowFormat.TABLE and output.output is None
    write = common.line if printed else common.note
    if found.found is not None:
        write(f"found: {_words(_unusual(found.found.words))}")
        for each in found.found.ties:
            write(f"undecided: {each}")
        for open_ in found.found.undecided:
            write(f"undecided: {_words(open_.chosen)} may be {', or '.join(map(_words, open_.others))}")
    write(f"run {found.run.id[:12]} and instance {found.instance.id[:12]}: {found}")
    rows = found.findings
    word = found.run.names[0].rpartition("/")[2] if found.run.names else found.run.id[:12]
    if not rows.rows:
        write("the run does what is planned. If it is slow, ask where its time goes:")
        question = "ops_by_module" if found.run.times is None else "late_ranks"
        write(f"next: stagedb query {question} --run {word}")
    if printed:
        chosen = [rows.columns.index(name) for name in PRINTED]
        if rows.rows:
            shown = [tuple(row[at] for at in chosen) for row in rows.rows]
            output.write(PRINTED, shown, keep=rows.keep, units=rows.units)
            write(f"next: stagedb query run_against_plan --run {word} -f json has the phase and the reason of each")
    else:
        output.write(rows.columns, rows.rows)


def _unusual(words: Mapping[str, object]) -> Mapping[str, object]:
    """Words without the switches that are as they are without an option."""
    from stagedb.plans.aspects import PLAN_WORDS

    usual = {word: PLAN_WORDS[word].default if word in PLAN_WORDS else False for word in words}
    return {word: value for word, value in words.items() if not isinstance(value, bool) or value != usual[word]}


def _words(words: Mapping[str, object]) -> str:
    """Words of a plan as options. A word of the model has none."""
    from stagedb.plans.aspects import PLAN_WORDS

    return " ".join(
        str(PLAN_WORDS[word].mention(value)) if word in PLAN_WORDS else f"a model with {word} {str(value).lower()}"
        for word, value in words.items()
    )


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(match)
