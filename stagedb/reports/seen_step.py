"""A step that was recorded next to the one that its plan expects, by terms that both have."""

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Mapping

import numpy as np

from stagedb.files.texts import EVEN
from stagedb.reports.step_difference import StepSums, exposed_by_axis, grown, in_short, longer
from stagedb.reports.terminal_chart import span
from stagedb.runs.measured_run import exposed_of
from stagedb.runs.overlaps import communicates
from stagedb.runs.run_difference import RunSums
from stagedb.runs.run_match import RunMatch

UNKNOWN = "unknown ranks"
"""The axis of what is communicated in a group that the recording does not name."""


def seen_sums(found: RunMatch, name: str, tokens: int) -> StepSums:
    """Where the time of a recorded step goes [ns], the mean of its ranks and steps.

    The bubble is the time in which a rank only sends and receives messages. Exposed communication is by the axes of the
    plan. name: what a sentence calls the run. tokens: of a step.
    """
    run, whole = found.run, RunSums(found.run)
    axes = axes_of(found)
    exposed: dict[str, float] = defaultdict(float)
    for rank, timed in run.timed.items():
        facts = run.lane_of[rank].ops
        alone = exposed_of(timed.start, timed.end, communicates(facts))
        for place in np.flatnonzero(alone).tolist():
            if facts[place].type == "collective":
                # The name of an axis ends where the kind begins.
                axis = axes.get((rank, place), facts[place].axis or UNKNOWN).replace(" ", "_")
                exposed[f"{axis} {facts[place].kind}"] += int(alone[place]) / len(run.timed) / whole.steps
    parts = {"busy": {}, "exposed": dict(exposed)}
    return StepSums(name, round(whole.step), tokens, run.job_ranks, whole.terms, parts)


def axes_of(found: RunMatch) -> Mapping[tuple[int, int], str]:
    """The axis of the plan by rank and op of the run.

    An op that the plan does not have is on the axis of most others whose group has the same name in the run.
    """
    known: dict[tuple[int, int], str] = {}
    named: dict[str | None, Counter[str]] = defaultdict(Counter)
    for (rank, _), match in found.ranks.items():
        facts = found.run.lane_of[rank].ops
        for pair in (*match.matched, *match.changed):
            axis, place = match.planned[pair.planned].axis, match.seen[pair.seen].place
            if axis:
                known[rank, place] = axis
                named[facts[place].axis][axis] += 1
    usual = {group: counted.most_common(1)[0][0] for group, counted in named.items()}
    for rank in found.run.timed:
        for place, op in enumerate(found.run.lane_of[rank].ops):
            if op.type == "collective" and op.axis in usual:
                known.setdefault((rank, place), usual[op.axis])
    return known


def expected_sums(planned: StepSums) -> StepSums:
    """The sums of a profile in the terms of a run: messages between stages are part of the bubble.

    A run does not separate the time of a message from the wait for it.
    """
    sent = exposed_by_axis(planned).get("pp", 0.0)
    terms = {**planned.terms, "exposed": planned.terms["exposed"] - sent, "bubble": planned.terms["bubble"] + sent}
    exposed = {what: ns for what, ns in planned.parts["exposed"].items() if not what.startswith("pp ")}
    return dataclasses.replace(planned, terms=terms, parts={"busy": {}, "exposed": exposed})


def seen_verdict(expected: StepSums, seen: StepSums) -> str:
    """One sentence: how long a recorded step takes, how long it should take, and the terms that make the difference."""
    name, more = in_short(seen.name), longer(expected, seen)
    text = f"a step of {name} takes {span(seen.step, 4, zeros=True)}"
    if more is None:
        return f"{text}, and {span(expected.step)} was expected"
    if abs(more) < EVEN:
        return f"{text}, as was expected"
    times = f"{more + 1:,.0f}" if more >= 99 else f"{more + 1:.3g}"
    share = f"{times} times" if more >= 1 else f"{abs(more):.2%} {'more' if more > 0 else 'less'} than"
    text += f", {share} the expected {span(expected.step, 4, zeros=True)}"
    why = grown(expected, seen) if more > 0 else ""
    return f"{text}: {why}" if why else text
