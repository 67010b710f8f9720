"""The options of `search` that ask for engines which serve requests, and the lines that answer."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from stagedb.cli.help_groups import SERVING
from stagedb.cli.printed_rows import Output, RowFormat
from stagedb.cli.shared_options import Common, print_line
from stagedb.errors import UsageError
from stagedb.files import GB, printable, shown
from stagedb.files.texts import spans_of

if TYPE_CHECKING:
    from stagedb.api import SearchedServing

MS = 1e6
"""Nanoseconds."""

_TIME = re.compile(r"(\d{1,9}(?:\.\d{1,9})?) *(us|ms|s|m)", re.ASCII)
_UNITS = {"us": 1_000, "ms": 1_000_000, "s": 10**9, "m": 60 * 10**9}


@dataclass(frozen=True)
class ServingOptions:
    """Options of a search of serving engines: the requests, and the limits of their times."""

    PANEL: ClassVar[str] = SERVING

    input_len: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Tokens of a request's prompt: search engines that serve it.")
    ] = None
    output_len: Annotated[int | None, typer.Option(metavar="N", min=2, help="Tokens that a request is given.")] = None
    ttft: Annotated[
        str | None, typer.Option(metavar="TIME", help="Time to the first token, at most, as 2s or 300ms.")
    ] = None
    tpot: Annotated[
        str | None, typer.Option(metavar="TIME", help="Time for each further token, at most, in the mean, as 50ms.")
    ] = None
    concurrency: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Requests served at the same time.  [as many as give most tokens]"),
    ] = None

    draft_len: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Tokens of a draft that a step checks for each request."),
    ] = None
    acceptance: Annotated[
        float | None,
        typer.Option(metavar="P", min=0, max=1, help="Share of drafted tokens behind accepted ones that are accepted."),
    ] = None

    prefix_len: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=0, help="Tokens with which all prompts begin: in the cache once, and not computed.  [0]"
        ),
    ] = None

    @property
    def asked(self) -> bool:
        """Whether an option of a search of serving engines was given."""
        return any(getattr(self, each.name) is not None for each in fields(self))

    def words(self) -> dict[str, Any]:
        """What `api.search_serving` takes. UsageError if a length is missing, or a time is none."""
        for option, value in (("--input-len", self.input_len), ("--output-len", self.output_len)):
            if value is None:
                raise UsageError(f"a search of engines needs the tokens of requests: give {option} N")
        return {
            "input_len": self.input_len,
            "output_len": self.output_len,
            "ttft": _ns(self.ttft, "--ttft"),
            "tpot": _ns(self.tpot, "--tpot"),
            "concurrency": self.concurrency,
            "draft_len": self.draft_len or 0,
            "acceptance": self.acceptance,
            "prefix_len": self.prefix_len or 0,
        }


def check_apart(serving: ServingOptions, others: Mapping[str, bool]) -> None:
    """Raise UsageError for options of a search of steps next to those of engines. others: whether each was given."""
    given = [option for option, is_given in others.items() if is_given]
    if given:
        raise UsageError(
            f"a search of engines has no {', '.join(given)}: leave out what is not of requests, or "
            f"{', '.join(_named(serving))} for a search of a training step"
        )


def _named(serving: ServingOptions) -> list[str]:
    return [f"--{each.name.replace('_', '-')}" for each in fields(serving) if getattr(serving, each.name) is not None]


def _ns(text: str | None, option: str) -> int | None:
    if text is None:
        return None
    found = _TIME.fullmatch(text.strip())
    ns = 0 if found is None else int(Decimal(found[1]) * _UNITS[found[2]])
    if not ns:
        raise UsageError(f"{shown(text)} is no time: {option} takes such as 2s, 50ms or 500us")
    return ns


def write_engines(found: "SearchedServing", output: Output, common: Common) -> None:
    """Print the best engines: first the answer, then a row for each kind of engines of a plan."""
    if output.format is not RowFormat.TABLE or output.output is not None:
        common.note(_verdict(found))
        output.write(found.plans.columns, found.plans.rows)
        return
    for line in _verdict(found).split(": ", 1):
        print_line(line)
    several = len(found.result.ranks) > 1
    if found.plans.rows:
        output.write(["ranks", *_COLUMNS] if several else _COLUMNS, [_row(each, several) for each in found.plans])
        print_line(f"expected error of a time a token {found.expected_error}")
    missing = [ranks for ranks in found.result.ranks if found.result.best_on(ranks) is None]
    if found.plans.rows and missing:
        print_line(f"on {spans_of(missing)} ranks none serves this")
    if found.lacks:
        from stagedb.api.serving_search import LACKS

        parts = [f"{LACKS[reason]} {count:,}" for reason, count in sorted(found.lacks.items(), key=lambda one: -one[1])]
        print_line(f"{sum(found.lacks.values()):,} of {found.layouts:,} layouts give no tokens: {', '.join(parts)}")
    for row in found.plans:
        if row["place"] == 1:
            on = f" on {row['ranks']:,} ranks" if several else ""
            typer.echo(f"\nsteps of {row['role']}, {printable(row['layout'])}{on}:")
            for command in row["commands"]:
                typer.echo(f"  {printable(command)}")
    if found.plans.rows:
        common.note(
            "tokens/s are of one accelerator, GB of the fullest rank. A command with `memory` in place of `profile` "
            "and --memory-share 0.9 counts the requests that fit; with `export` it writes the step's traces"
        )


_COLUMNS = ["", "engines", "each", "batch", "chunk", "TTFT ms", "TPOT ms", "tokens/s", "GB"]


def _row(row: Mapping[str, Any], several: bool) -> list[Any]:
    """A row of the table. A plan of two kinds of engines has its figures in the first of two."""
    first = row["role"] != "decode"
    return [
        *([row["ranks"] if first else None] if several else []),
        row["place"] if first else None,
        f"{row['engines']:,} {row['role']}",
        row["layout"],
        row["requests"],
        row["chunk"],
        *(
            [
                _short(row["ttft"] / MS),
                _short(row["tpot"] / MS),
                _short(row["tokens_per_second_per_accelerator"]),
            ]
            if first
            else [None, None, None]
        ),
        round(row["peak"] / GB, 1),
    ]


def _short(value: float) -> float:
    """A number with three digits or more."""
    return round(value) if value >= 100 else round(value, 1 if value >= 10 else 2)


def _verdict(found: "SearchedServing") -> str:
    text = f"{found.layouts:,} layouts of {found.model} on {found.system}, in {found.seconds:.1f} s"
    if not found.result.plans:
        return f"{text}: none serves this; {found.nearest}"
    best = max(found.result.plans, key=lambda plan: plan.tokens)
    if best.kind == "aggregated":
        one = best.engines[0]
        kinds = f"{one.count:,} that {'does' if one.count == 1 else 'do'} prefill and decode"
    else:
        kinds = " and ".join(f"{each.count:,} of {each.role}" for each in best.engines)
    on = f" on {best.ranks:,} ranks" if len(found.result.ranks) > 1 else ""
    return (
        f"{text}: the best engines{on} are {kinds}, with {best.tokens:,.1f} tokens/s an accelerator for "
        f"{best.at_once:,} requests at once"
    )
