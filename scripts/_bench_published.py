"""The benchmark behind `scripts/bench published`: published plans, next to those that a search finds.

Rows are drawn by a seed from the published steps that stagedb has read. Each is searched as
`stagedb search --framework F --compare PLAN` would: the plans that its framework can run, on its accelerators, with its
batch and length. A line has the published plan's step and that of the best plan, both by stagedb's clock, how many of
the drawn plans that fit are better than the published one, and the term by which it loses.
"""

import argparse
import json
import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scripts._bench import machine
from stagedb.build.graph_identity import model_sizes
from stagedb.errors import UsageError
from stagedb.frameworks import find_framework
from stagedb.plans import Plan
from stagedb.plans.aspects import PLAN_WORDS
from stagedb.search import searching
from stagedb.search.candidates import SearchRequest
from stagedb.search.comparisons import compared
from stagedb.validation.known_rows import known_rows
from stagedb.validation.step_rows import StepJob, job_of

CHOSEN = {
    *("tp", "pp", "cp", "cp_kind", "ulysses", "ep", "dp", "virtual_stages", "micro_batch_size", "zero", "hsdp"),
    *("schedule", "sp", "scatter_gather", "counted_ends", "layers_per_stage", "layers_per_chunk"),
    *(word for word in PLAN_WORDS if word.startswith("recompute")),
}
"""Words of a row's plan that the search chooses anew; the others are those of all its plans."""

TENTH = 0.1
FEWEST = 10
"""Drawn plans that fit, below which a place among them is not known."""


@dataclass(frozen=True)
class Place:
    """A published plan in its search.

    plans: of the search. covered: whether all were tried or ruled out. step, best: ns of the published plan and of the
    best one. fits: whether the published plan does, by stagedb's account. drawn, better: plans that fit, and those of
    them that are better than the published one. code, why: how it loses.
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
        return None if self.drawn < FEWEST else self.better <= TENTH * self.drawn


def main() -> None:
    """Search the rows one after the other, and print a line of each."""
    asked = _arguments()
    print(machine(), flush=True)
    found = []
    for number, job in enumerate(_drawn(asked.rows, asked.seed)):
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
    parser.add_argument("--seed", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=120, help="of each search at most (%(default)s)")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of the drawn rows, from 0 (all)")
    parser.add_argument("--json", type=Path, help="add a line of each row to this file")
    return parser.parse_args()


def _drawn(count: int, seed: int) -> list[StepJob]:
    """Rows whose plan is one of its model, as many as asked for."""
    return random.Random(seed).sample(list(_jobs()), count)


def _jobs() -> Iterator[StepJob]:
    for row in known_rows():
        try:
            job = job_of(row)
            _plan(job, job.words)
        except UsageError:
            continue
        yield job


def _plan(job: StepJob, words: Mapping[str, Any]) -> Plan:
    plan = Plan.from_mapping(words)
    plan.check(model_sizes(job.card, find_framework(plan.options.recipe)))
    return plan


def _place(job: StepJob, seconds: float) -> Place:
    """Search the plans of a row's framework, and compare the published one with the best and with drawn ones."""
    began, plan = time.monotonic(), _plan(job, job.words)
    common = {word: value for word, value in job.words.items() if word not in CHOSEN}
    request = SearchRequest(
        model=job.card.name,
        card=job.card.digest,
        systems=(job.system.name,),
        digests=("",),
        ranks=(plan.world,),
        words=job.profile.plan_words(common),
        allow=tuple(each for each in ("cp", "zero", "recompute", "schedule") if each != "cp" or plan.cp > 1),
        framework=job.profile.name,
        top=3,
    )
    result = searching.search(request, job.card, [job.system], seconds=seconds)
    (place,) = searching.places_of(request, job.card, [job.system])
    mine = compared(place, result, job.words, lambda done, of: None, seconds)
    return Place(
        row=f"{job.row.source}: {job.row.title}",
        framework=job.profile.name,
        ranks=plan.world,
        plans=result.size,
        covered=result.covered,
        step=mine.plan.step,
        best=None if result.best is None else result.best.step,
        fits=mine.fits,
        drawn=mine.drawn,
        better=mine.better,
        code=mine.plan.code,
        why=mine.plan.why,
        seconds=time.monotonic() - began,
    )


def _line(number: int, place: Place) -> str:
    best = "none fits" if place.best is None else f"{place.best / 1e9:,.3f} s"
    state = "" if place.covered else ", not covered"
    return (
        f"{number:2} {place.row} ({place.framework}, {place.ranks:,} ranks)\n"
        f"   {place.step / 1e9:,.3f} s, best {best} of {place.plans:,} plans{state}, {place.seconds:.0f} s; "
        f"{place.better} of {place.drawn} drawn are better; {place.code}{'' if place.fits else ', does not fit'}\n"
        f"   {place.why}"
    )


if __name__ == "__main__":
    main()
