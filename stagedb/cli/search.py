"""`search`: which plan of a model is best on so many accelerators, and why the others lose."""

import re
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from stagedb.cli import completion
from stagedb.cli.help_groups import OWN, SERVING
from stagedb.cli.memory import size_of
from stagedb.cli.printed_rows import Output, RowFormat
from stagedb.cli.progress import progress
from stagedb.cli.shared_options import Common, option_groups, print_line
from stagedb.cli.timing_options import FrameworkName
from stagedb.errors import UsageError
from stagedb.files import GB, printable, shown
from stagedb.files.texts import parts_in, spans_of

if TYPE_CHECKING:
    from stagedb.api import ComparedPlan, Searched, SearchedServing
    from stagedb.search import Candidate

# The options of `search` that ask for engines which serve requests, and the lines that answer.

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
        common.note(_serving_verdict(found))
        output.write(found.plans.columns, found.plans.rows)
        return
    for line in _serving_verdict(found).split(": ", 1):
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


def _serving_verdict(found: "SearchedServing") -> str:
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


_NOTHING_TIMED = "nothing was timed, and bounds are made anew next time: give it longer, and "

LOSERS = 5
"""Reasons in the first line, with how many plans lose by each. The others follow in a second one."""


TENTH = 100_000
"""Nanoseconds of a tenth of a ms, in which the terms of two steps are printed."""


@dataclass(frozen=True)
class Choices:
    """Options of `search` that choose its plans, and what makes a plan the best."""

    PANEL: ClassVar[str] = OWN

    fix: Annotated[
        list[str] | None,
        typer.Option(metavar="WORD=VALUE", help="A word that all plans have, such as tp=8 or recipe=megatron."),
    ] = None
    allow: Annotated[
        str | None,
        typer.Option(
            metavar="GROUP,…",
            help="Words that vary beyond tp, pp, dp, ep, micro-batch and chunks: cp, zero, hsdp, sp, recompute, "
            "schedule, recipe, overlap, dispatch, expert_tp, order, strategies, splits; all (but the last two); none.  "
            "[zero,recompute,schedule]",
        ),
    ] = None
    fits: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Memory for tensors, as 80GB or 80GiB.  [what the system has for them]"),
    ] = None
    by: Annotated[
        str, typer.Option(metavar="WHAT", help="step, tokens_per_dollar, tokens_per_joule, memory or bytes.")
    ] = "step"
    price: Annotated[list[str] | None, typer.Option(metavar="SYSTEM=N", help="What an accelerator costs an hour.")] = (
        None
    )
    watts: Annotated[list[str] | None, typer.Option(metavar="SYSTEM=N", help="What an accelerator takes.")] = None
    where: Annotated[
        str, typer.Option(metavar="CONDITION", help='Only plans such as "tp <= 8 and peak < 76e9".', show_default=False)
    ] = ""
    top: Annotated[
        int,
        typer.Option(metavar="K", help="Best plans on each number of ranks; no two differ only in what recomputes."),
    ] = 5
    compare: Annotated[
        str | None,
        typer.Option(
            metavar="WORD=VALUE,…",
            help="A plan of yours, such as tp=8,pp=2,micro-batch-size=2, or a line of the table in quotes: why it "
            "loses, term by term, and which share of a hundred others it beats; up to a minute.",
            show_default=False,
        ),
    ] = None
    shard: Annotated[
        str | None,
        typer.Option(metavar="I/N", help="Search one of N parts, 1/N to N/N; the store merges the results."),
    ] = None
    on: Annotated[
        str | None,
        typer.Option(metavar="ray://HOST:PORT", help="Try plans on a Ray cluster.  [this machine]", show_default=False),
    ] = None
    for_: Annotated[
        str | None,
        typer.Option(
            "--for", metavar="TIME", help="End after this time, as 60s or 5m, with the best so far, --compare included."
        ),
    ] = None

    @property
    def room(self) -> int | None:
        """Bytes of an accelerator, if they are given."""
        return None if self.fits is None else size_of(self.fits, "--fits")

    def of_steps(self) -> dict[str, bool]:
        """By option that only searches of training steps take, whether it was given."""
        others = {each.name for each in fields(self)} - {"fix", "fits", "top"}
        return {f"--{name.rstrip('_')}": getattr(self, name) != getattr(Choices, name) for name in sorted(others)}

    def words(self) -> dict[str, Any]:
        """The options as keyword arguments of `api.search`."""
        return {
            "allow": None if self.allow is None else [each.strip() for each in self.allow.split(",")],
            "room": self.room,
            "by": self.by,
            "where": self.where,
            "top": self.top,
            "seconds": _seconds(self.for_),
            "on": self.on,
            "compare": None if self.compare is None else _plan_words(self.compare),
            "prices": _numbers(self.price, "--price"),
            "watts": _numbers(self.watts, "--watts"),
        }


@option_groups
def search(
    model: Annotated[
        str, typer.Option(metavar="MODEL", help="The model.", autocompletion=completion.models, show_default=False)
    ],
    ranks: Annotated[
        str,
        typer.Option(metavar="N|N1-N2|N,…", help="Accelerators; N1-N2: powers of two between.", show_default=False),
    ],
    global_batch_size: Annotated[
        int | None, typer.Option(metavar="N", help="Sequences of a training step.", show_default=False)
    ] = None,
    seq_len: Annotated[
        int | None, typer.Option(metavar="N", help="Tokens of a sequence.  [the model's]", show_default=False)
    ] = None,
    system: Annotated[str, typer.Option(metavar="NAME|FILE,…", help="Accelerators and networks.")] = "h100",
    framework: FrameworkName = None,
    keep: Annotated[
        bool | None,
        typer.Option("--keep/--no-keep", help="Keep all candidates in the store, or write nothing.  [keep]"),
    ] = None,
    *,
    choices: Choices,
    serving: ServingOptions,
    output: Output,
    common: Common,
) -> None:
    """Find the best plan of a model, and why others lose.

    Every plan of the search is timed, or ruled out by a bound of its step or memory that it cannot beat, so that the
    first one is the best. With --for it ends early, with a bound on what may be left. The store keeps the search: asked
    again it is read, one that was stopped goes on, and `stagedb query best-plan-by-memory` and others ask about it.
    With --shard many machines search parts of it, and the store has the search when all of them are finished.
    With --on the CPUs of a Ray cluster try plans instead of this machine's; only this machine needs the store.

    With --input-len and --output-len it searches engines that serve such requests instead of plans of a training step:
    those that give most tokens a second within --ttft and --tpot. Nothing is kept of it.
    """
    if serving.asked:
        own = {"--global-batch-size": global_batch_size, "--seq-len": seq_len, "--framework": framework, "--keep": keep}
        check_apart(serving, {**{option: bool(value) for option, value in own.items()}, **choices.of_steps()})
        _search_engines(model, ranks, system, choices, serving, output, common)
        return
    if global_batch_size is None:
        raise UsageError(
            "a search needs the sequences of a training step (--global-batch-size N), or the tokens of requests that "
            "are served (--input-len N --output-len N)"
        )
    words: dict[str, Any] = {
        "global_batch_size": global_batch_size,
        **_as_words(_pairs(choices.fix, "--fix", "tp=8")),
    }
    if seq_len is not None:
        words["seq_len"] = seq_len
    _search_plans(model, ranks, system, framework, words, keep is not False, choices, output, common)


def _search_plans(
    model: str,
    ranks: str,
    system: str,
    framework: str | None,
    words: dict[str, Any],
    keep: bool,
    choices: Choices,
    output: Output,
    common: Common,
) -> None:
    """Plans of a training step."""
    from stagedb import api

    if choices.shard is not None and not keep:
        raise UsageError("results of shards are merged in the store: leave out --no-keep, or --shard")
    asked, systems = _ranks(ranks), [each.strip() for each in system.split(",")]
    with (
        progress(common, "searching", "plans", before="counting plans") as report,
        common.connect() if keep else nullcontext() as db,
    ):

        def report_on(done: int, of: int, best: str) -> None:
            if report is not None:
                report(done, of)
                if best:
                    report.line(best)

        run = api.search if db is None else partial(db.search, shard=choices.shard)
        found = run(model, asked, systems, framework=framework, progress=report_on, words=words, **choices.words())
    common.profile({"search": found.seconds})
    _write(found, output, common)
    if found.kept:
        common.note(f"the store has it as search {found.id[:12]}: `stagedb query best-plans --wide` has why each loses")
        common.note(
            "--compare 'A LINE OF THE TABLE' has each term next to the best plan's; `stagedb queries` lists more"
        )
    if not found.covered and choices.shard is None:
        timed = any(each["fate"] == "timed" for each in found.candidates)
        again = "" if not found.kept else "asked again it goes on, and " if timed else _NOTHING_TIMED
        common.note(f"{again}--allow none, --framework NAME or --fix WORD=VALUE leave fewer plans to try")


def _search_engines(
    model: str, ranks: str, system: str, choices: Choices, serving: ServingOptions, output: Output, common: Common
) -> None:
    """Engines that serve requests. Nothing is kept, so that no store is needed."""
    from stagedb import api

    if "," in system:
        raise UsageError("a search of engines takes one --system: ask for each on its own")
    with progress(common, "searching", "layouts", before="counting layouts") as report:
        found = api.search_serving(
            model,
            _ranks(ranks),
            system,
            **serving.words(),
            room=choices.room,
            top=choices.top,
            progress=report,
            words=_as_words(_pairs(choices.fix, "--fix", "tp=8")),
        )
    common.profile({"search": found.seconds})
    write_engines(found, output, common)


def _write(found: "Searched", output: Output, common: Common) -> None:
    if output.format is not RowFormat.TABLE or output.output is not None:
        common.note(_verdict(found))
        output.write(found.candidates.columns, found.candidates.rows)
        return
    for line in _verdict(found).split(": ", 1):
        print_line(line)
    shown_rows = {id(each): row for row, each in zip(found.candidates, found.result.candidates, strict=True)}
    winners = [(each, shown_rows[id(each)]) for each in found.result.winners]
    _write_best(found, winners, output)
    missing = [ranks for ranks in found.result.request.ranks if found.result.best_on(ranks) is None]
    if winners and missing:
        print_line(f"on {spans_of(missing)} ranks {'none fits' if found.covered else 'none that fits was found'}")
    if winners:
        _write_errors(found)
    _write_losses(found)
    best = found.result.best
    if best is not None and found.regions:
        _write_regions(found, output, shown_rows[id(best)])
    if found.compared is not None:
        _write_compared(found.compared, found.by, output)
    for each, row in winners:
        if each is found.result.best_on(each.ranks):
            on = f" on {each.ranks:,} ranks" if len(found.result.request.ranks) > 1 else ""
            typer.echo(f"\n{printable(row['plan'])}{on}:\n  {printable(row['command'])}")
            if row["settings"] is not None:
                _write_settings(found.result.request.framework, row)


def _write_settings(framework: str, row: "Mapping[str, Any]") -> None:
    """A plan in the settings of its framework, in one line to copy, and what has none."""
    typer.echo(f"in {framework}:\n  {printable(row['settings'])}")
    if row["without_setting"]:
        print_line(f"  no setting of {framework} is known for: {', '.join(row['without_setting'])}")


def _write_best(found: "Searched", winners: "Sequence[tuple[Candidate, Mapping[str, Any]]]", output: Output) -> None:
    """The best plans, by number of ranks, each next to the best one of as many ranks."""
    request, by = found.result.request, found.by
    least = {ranks: best for ranks in request.ranks if (best := found.result.best_on(ranks)) is not None}
    place = {"ranks": len(request.ranks) > 1, "system": len(request.systems) > 1}
    counts = by == "bytes" or "strategies" in found.allow
    output.write(
        [
            *(name for name, several in place.items() if several),
            "plan",
            "step ms",
            {"step": "longer %", "memory": "larger %", "bytes": "more %"}.get(by, "fewer %"),
            *(["sent GB"] if counts else []),
            "peak GB",
            "loses by",
        ],
        [
            [
                *(row[name] for name, several in place.items() if several),
                row["plan"],
                round(row["step"] / 1e6, 1),
                _worse(by, request.worth_of(each)[0], request.worth_of(least[each.ranks])[0]),
                *([_gb(row["sent"])] if counts else []),
                round(row["peak"] / GB, 1),
                row["code"],
            ]
            for each, row in winners
        ],
    )


def _write_losses(found: "Searched") -> None:
    """Why the plans lose that are not in the table: they and those of the table are all plans of the search."""
    winners = found.result.winners
    lost: dict[str, int] = {}
    for each in found.result.candidates:
        if each not in winners:
            reason = each.code or each.fate.value
            lost[reason] = lost.get(reason, 0) + each.plans
    if not lost:
        return
    others = "all" if not winners else f"the other {sum(lost.values()):,}"
    parts = [f"{reason} {plans:,}" for reason, plans in sorted(lost.items(), key=lambda each: -each[1])]
    print_line(f"why {others} lose: {', '.join(parts[:LOSERS])}")
    if parts[LOSERS:]:
        print_line(f"  and for other reasons: {', '.join(parts[LOSERS:])}")
    if not any(each.fate.value in ("timed", "untried") for each in found.result.candidates):
        _write_refusals(found.result.candidates)


def _write_refusals(candidates: "Sequence[Candidate]") -> None:
    """The most frequent reasons for which plans are refused, such as a word that the workflow does not take."""
    refused: dict[str, int] = {}
    for each in candidates:
        if each.fate.value == "refused":
            refused[each.why] = refused.get(each.why, 0) + each.plans
    for why, plans in sorted(refused.items(), key=lambda each: -each[1])[:LOSERS]:
        print_line(f"  refused {plans:,}: {printable(why)}")


def _write_errors(found: "Searched") -> None:
    """How far off the times may be, and which plans of the table are as good as the best within that."""
    one = len(found.expected_errors) == 1
    for system, error in found.expected_errors.items():
        print_line(f"expected error{'' if one else f' on {system}'} {error}")
    for ties in found.ties:
        on = f" on {ties.ranks:,} ranks" if len(found.ties) > 1 else ""
        places = [place + 1 for place in ties.found]
        if len(places) > 1:
            text = f"ties{on}: plans {spans_of(places)} of the table differ by no more than the mean error"
        else:
            text = f"ties{on}: no other plan of the table is within the mean error of the best"
        if ties.others:
            text += f"; {ties.others:,} that it leaves out may be as near (--top shows more)"
        print_line(text)


def _write_compared(each: "ComparedPlan", by: str, output: Output) -> None:
    """A plan next to the best one."""
    better = {"step": "shorter", "memory": "smaller", "bytes": "smaller"}.get(by, "cheaper")
    print_line(f"\ncompared: {each.plan}")
    parts = [f"{each.step / 1e6:,.1f} ms", f"{each.peak / GB:,.1f} GB{'' if each.fits else ', which does not fit'}"]
    if by == "bytes":
        parts.append(f"sends {_gb(each.sent)} GB")
    if each.worse is not None:
        parts.append(f"{abs(each.worse):.1%} {'worse' if each.worse >= 0 else 'better'} than the best plan")
    print_line(f"  {', '.join(parts)}")
    if each.why:
        print_line(f"  {each.why}")
    if each.drawn:
        short = "; a minute, or what --for leaves, was too short for more" if each.late else ""
        of = f"all {each.drawn} plans" if each.complete else f"{each.drawn} drawn plans"
        print_line(f"  {each.better} of {of} that fit are {better}{short}")
    elif each.late:
        print_line("  no time was left to draw plans and compare it with them")
    if each.best_terms and each.terms != each.best_terms:
        _write_terms(each.terms, each.best_terms, output)


def _write_terms(terms: Mapping[str, int], best: Mapping[str, int], output: Output) -> None:
    """Both steps term by term: what differs most first, then the steps, which are the sums of the rounded terms."""
    names = sorted({**terms, **best}, key=lambda name: (-abs(terms.get(name, 0) - best.get(name, 0)), name))
    sides = [parts_in(TENTH, [side.get(name, 0) for name in names]) for side in (terms, best)]
    rows = [(name, *each) for name, *each in zip(names, *sides, strict=True) if any(each)]
    rows.append(("step", sum(sides[0]), sum(sides[1])))
    output.write(
        ["term", "this plan ms", "best plan ms", "longer ms"],
        [[name, ours / 10, best / 10, (ours - best) / 10] for name, ours, best in rows],
    )


def _write_regions(found: "Searched", output: Output, best: Mapping[str, Any]) -> None:
    """The best plan with other rules in one region, line by line."""
    print_line("\nthe best plan with other rules in one region:")
    rows = []
    for each in found.regions:
        own: list[Any] = [None] * 4
        if each["step"] is not None:
            own = [
                round(each["step"] / 1e6, 1),
                _worse("step", each["step"], best["step"]),
                _gb(each["sent"]),
                round(each["peak"] / GB, 1),
            ]
        refused = "refused" if each["step"] is None else each["why"]
        rows.append([each["part"], each["rules"], each["instead"], *own, refused])
    output.write(["region", "rules", "instead", "step ms", "longer %", "sent GB", "peak GB", ""], rows)


def _worse(by: str, worth: float, best: float) -> float:
    """By how many percent a plan is worse than the best one, in what the search makes best."""
    share = worth / best - 1 if by in ("step", "memory", "bytes") else 1 - best / worth
    return round(100 * share, 1) + 0.0  # -0.0 is 0.0


def _gb(size: int | None) -> float | None:
    return None if size is None else round(size / GB, 3)


def _verdict(found: "Searched") -> str:
    timed = sum(1 for each in found.candidates if each["fate"] == "timed")
    there = "" if found.new else ", found in the store"
    text = f"{found.size:,} plans of {found.model}, {timed} timed, in {found.seconds:.1f} s{there}"
    if not timed and found.covered:
        return f"{text}: none fits"
    if found.covered:
        first = "the first of each number of ranks" if len(found.result.request.ranks) > 1 else "the first"
        return f"{text}: all tried or ruled out, so {first} is the best"
    shards = found.result.shards
    if shards is not None and shards.others.numbers:
        done, missing = spans_of(shards.numbers) or "none", spans_of(shards.others.numbers)
        parts = f"shards {done} of {shards.of} finished, {missing} missing"
    else:
        parts = "not all tried"
    if not timed:
        parts = f"none that fits was found, {parts}" if shards is not None else "none that fits was found"
    left = "" if found.left is None else f"; what is left takes {found.left / 1e6:,.1f} ms or more"
    return f"{text}: {parts}{left}"


def _ranks(text: str) -> Sequence[int]:
    """Numbers of accelerators, such as `8`, `32-128` (powers of two between) or `24,32-128`, ascending."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()) or not 0 < int(first) <= int(last or first):
            raise UsageError(f"{shown(text)} is no number of accelerators: --ranks takes N, N1-N2, or several as 32,64")
        number, most = int(first), int(last or first)
        while number <= most:
            found.add(number)
            number *= 2
    return sorted(found)


def _pairs(given: Sequence[str] | None, option: str, example: str) -> dict[str, str]:
    found = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise UsageError(f"{shown(text)} is no NAME=VALUE: {option} takes such as {example}")
        found[name.strip()] = value.strip()
    return found


def _as_words(given: Mapping[str, str]) -> dict[str, Any]:
    return {word.replace("-", "_"): _typed(text) for word, text in given.items()}


def _plan_words(text: str) -> dict[str, Any]:
    """The words of a plan, from a text such as `tp=8,rank-order=tp,pp,cp,dp`: what has no `=` is part of a value.

    A text without any `=` is a line of the table: `tp 8, pp 2, interleaved, chunks 2`.
    """
    from stagedb.api.searching import SHORT, words_of_line

    if "=" not in text:
        return words_of_line(text)
    parts: list[str] = []
    for part in text.split(","):
        if "=" in part or not parts:
            parts.append(part)
        else:
            parts[-1] += f",{part}"
    long = {short.replace("-", "_"): word for word, short in SHORT.items()}
    words = _as_words(_pairs(parts, "--compare", "tp=8,pp=2"))
    return {long.get(word, word): value for word, value in words.items()}


def _typed(text: str) -> Any:
    """A number, a switch (true, false) or a text."""
    if text in ("true", "false"):
        return text == "true"
    return int(text) if text.isdigit() else text


def _numbers(given: Sequence[str] | None, option: str) -> dict[str, float]:
    found = {}
    for name, value in _pairs(given, option, "h100=2.5").items():
        try:
            found[name] = float(value)
        except ValueError:
            raise UsageError(f"{shown(f'{name}={value}')} has no number: {option} takes such as h100=2.5") from None
    return found


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    units = {"s": 1, "m": 60, "h": 3600}
    number, unit = (text[:-1], units[text[-1]]) if text[-1:] in units else (text, 1)
    try:
        found = float(number) * unit
    except ValueError:
        found = 0
    if not 0 < found < float("inf"):
        raise UsageError(f"{shown(text)} is no time: --for takes such as 60s, 5m or 1h")
    return found


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(search)
