"""The benchmark behind `scripts/bench published`: published plans, next to those that a search finds.

Rows are drawn by a seed from published steps: `steps` are those of `known_steps.csv`, `steps-2` those of the second
file, `papers` those of the two Megatron papers (arXiv 2104.04473, table 1, and 2205.05198, table 5). Each is searched
as `stagedb search --framework F --compare PLAN` would: the plans that its framework can run, on its accelerators, with
its batch and length. A line has the published plan's step and that of the best plan, both by stagedb's clock, how many
of the drawn plans that fit are better than the published one, and the term by which it loses.

The plans of the papers are searched without a sharded optimizer, which Megatron did not have then.
"""

import argparse
import contextlib
import json
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scripts._bench import machine
from stagedb.errors import UsageError
from stagedb.frameworks import find_framework
from stagedb.frameworks.profiles import FrameworkProfile, find_profile
from stagedb.graphs.graph_identity import model_sizes
from stagedb.models import Card
from stagedb.plans import Plan
from stagedb.plans.aspects import PLAN_WORDS
from stagedb.search import searching
from stagedb.search.candidates import SearchRequest
from stagedb.search.comparisons import compared
from stagedb.systems import System, load_system
from stagedb.timing.framework_timing import as_used_by
from stagedb.validation.step_rows import KNOWN_FILES, StepRow, job_of, known_rows
from stagedb.validation.step_times import published_steps

CHOSEN = {
    *("tp", "pp", "cp", "cp_kind", "ulysses", "ep", "dp", "virtual_stages", "micro_batch_size", "zero", "hsdp"),
    *("schedule", "sp", "fsdp_version", "scatter_gather", "counted_ends", "layers_per_stage", "layers_per_chunk"),
    *(word for word in PLAN_WORDS if word.startswith("recompute")),
}
"""Words of a row's plan that the search chooses anew; the others are those of all its plans."""

TENTH = 0.1
FEWEST = 10
"""Drawn plans that fit, below which a place among them is not known."""


SOURCES = ("steps", "steps-2", "papers")

PAPERS = {"arXiv 2104.04473, table 1": "megatron-2021", "arXiv 2205.05198, table 5": "megatron-core"}
"""By source what ran its plans."""


@dataclass(frozen=True)
class PublishedPlan:
    """A published plan and what ran it.

    source: who published it. seconds: its measured step [s]. words: all of the plan. common: words of it that all plans
    of its search have, without those that a framework implies. allow: groups of words that may vary.
    """

    title: str
    source: str
    seconds: float
    card: Card
    words: Mapping[str, Any]
    common: Mapping[str, Any]
    profile: FrameworkProfile
    system: System
    allow: tuple[str, ...]

    @property
    def job(self) -> tuple[str, ...]:
        """What it trains on what: plans of a source with an equal one are alternatives."""
        same = ("global_batch_size", "seq_len", "dtype", "matmul_dtype", "kernels")
        words = (str(self.words.get(word)) for word in same)
        return (self.source, self.card.digest, self.system.name, str(self.plan.world), *words)

    @property
    def plan(self) -> Plan:
        """The plan. Raises UsageError if it is none of the model."""
        plan = Plan.from_mapping(self.words)
        plan.check(model_sizes(self.card, find_framework(plan.options.recipe)))
        return plan


@dataclass(frozen=True)
class Place:
    """A published plan in its search.

    plans: of the search. covered: whether all were tried or ruled out. step, best: ns of the published plan and of the
    best one. fits: whether the published plan does, by stagedb's account. drawn, better: plans that fit, and those of
    them that are better than the published one. complete: whether these are all that fit. code, why: how it loses.
    """

    row: str
    framework: str
    ranks: int
    plans: int
    covered: bool
    step: int
    best: int | None
    fits: bool
    drawn: int
    better: int
    complete: bool
    code: str
    why: str
    seconds: float

    @property
    def is_matched(self) -> bool:
        """Whether the search has a plan at least as good."""
        return self.best is not None and self.best <= self.step

    @property
    def in_best_tenth(self) -> bool | None:
        """Whether at most a tenth of the drawn plans are better; None if too few of those that were drawn fit."""
        return None if self.drawn < FEWEST and not self.complete else self.better <= TENTH * self.drawn


def main() -> None:
    """Search the rows one after the other, and print a line of each."""
    asked = _arguments()
    print(machine(), flush=True)
    found = []
    for number, job in enumerate(random.Random(asked.seed).sample(_published(asked.of), asked.rows)):
        if asked.only and number not in asked.only:
            continue
        place = _place(job, asked.seconds)
        found.append(place)
        print(_line(number, place), flush=True)
        if asked.json:
            with asked.json.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(place)) + "\n")
    matched, tenths = sum(each.is_matched for each in found), [each.in_best_tenth for each in found]
    print(
        f"{len(found)} rows: a plan at least as good is found for {matched}; {tenths.count(True)} are in the best "
        f"tenth, {tenths.count(False)} are not, and of {tenths.count(None)} that is not known"
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench published", description=__doc__)
    parser.add_argument("--rows", type=int, default=30, help="to draw (%(default)s)")
    parser.add_argument("--of", nargs="+", choices=SOURCES, default=["steps", "papers"], help="sources (%(default)s)")
    parser.add_argument("--seed", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=120, help="of each search at most (%(default)s)")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of the drawn rows, from 0 (all)")
    parser.add_argument("--json", type=Path, help="add a line of each row to this file")
    return parser.parse_args()


def _published(of: Sequence[str]) -> list[PublishedPlan]:
    """Rows whose plan is one of its model. of: some of `SOURCES`.

    A source may have tried several plans for the same job: the fastest is the one that it publishes, and the others
    are those that it was compared with.
    """
    files = [name for name, source in zip(KNOWN_FILES, SOURCES, strict=False) if source in of]
    fastest: dict[tuple[str, ...], PublishedPlan] = {}
    for each in (*map(_of_row, known_rows(files)), *(_of_papers() if "papers" in of else ())):
        with contextlib.suppress(UsageError):
            if each is not None and each.seconds < fastest.setdefault(each.job, each).seconds:
                fastest[each.job] = each
    return list(fastest.values())


def _of_row(row: StepRow) -> PublishedPlan | None:
    try:
        job = job_of(row)
    except UsageError:
        return None
    common = job.profile.plan_words({word: value for word, value in job.words.items() if word not in CHOSEN})
    kinds = ("cp", "zero", "recompute", "schedule") if job.words.get("cp", 1) > 1 else ("zero", "recompute", "schedule")
    title, seconds = f"{row.source}: {row.title}", row.seconds
    return PublishedPlan(title, row.source, seconds, job.card, job.words, common, job.profile, job.system, kinds)


def _of_papers() -> Iterator[PublishedPlan]:
    for row in published_steps():
        if row.source in PAPERS:
            profile = find_profile(PAPERS[row.source])
            system = as_used_by(load_system(row.system), profile, "")
            words = {"sp": False, **row.words}
            common = {word: value for word, value in words.items() if word not in CHOSEN}
            title, implied, kinds = f"{row.source}: {row.title}", profile.plan_words, ("recompute", "schedule")
            yield PublishedPlan(
                *(title, row.source, row.seconds, row.card, implied(words), implied(common), profile, system, kinds)
            )


def _place(job: PublishedPlan, seconds: float) -> Place:
    """Search the plans of a row's framework, and compare the published one with the best and with drawn ones."""
    began, plan = time.monotonic(), job.plan
    request = SearchRequest(
        model=job.card.name,
        card=job.card.digest,
        systems=(job.system.name,),
        digests=("",),
        ranks=(plan.world,),
        words=job.common,
        allow=job.allow,
        framework=job.profile.name,
        top=3,
    )
    result = searching.search(request, job.card, [job.system], seconds=seconds)
    (place,) = searching.places_of(request, job.card, [job.system])
    mine = compared(place, result, job.words, lambda done, of: None, seconds)
    return Place(
        row=job.title,
        framework=job.profile.name,
        ranks=plan.world,
        plans=result.size,
        covered=result.covered,
        step=mine.plan.step,
        best=None if result.best is None else result.best.step,
        fits=mine.fits,
        drawn=mine.drawn,
        better=mine.better,
        complete=mine.complete,
        code=mine.plan.code,
        why=mine.plan.why,
        seconds=time.monotonic() - began,
    )


def _line(number: int, place: Place) -> str:
    best = "none fits" if place.best is None else f"{place.best / 1e9:,.3f} s"
    state = "" if place.covered else ", not covered"
    others = f"all {place.drawn} that fit" if place.complete else f"{place.drawn} drawn"
    return (
        f"{number:2} {place.row} ({place.framework}, {place.ranks:,} ranks)\n"
        f"   {place.step / 1e9:,.3f} s, best {best} of {place.plans:,} plans{state}, {place.seconds:.0f} s; "
        f"{place.better} of {others} are better; {place.code}{'' if place.fits else ', does not fit'}\n"
        f"   {place.why}"
    )


if __name__ == "__main__":
    main()
