"""Fit the numbers of `stagedb/timing/calibrations.yaml`: how much slower a kernel is in a framework's step than alone.

    scripts/fit_steps                 # fit all numbers, and print the table of docs/step-predictions.md
    scripts/fit_steps --only nemo     # those of one framework
    scripts/fit_steps --check         # exit 1 if a fitted number differs from the one in the file

Only rows that are *calibrated on* are read (`stagedb.validation.known_rows`): a seed drew them, half of each source at
most. Numbers that share a framework on the same systems are fitted together, by the least sum of squared relative
errors. They have two decimals.
"""

import argparse
import itertools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from stagedb.build.model_graph import build_graph
from stagedb.systems import System
from stagedb.timing.framework_terms import in_step
from stagedb.timing.framework_timing import Calibration
from stagedb.timing.hidden_communication import hidden
from stagedb.timing.node_graph import NodeGraph, node_graph_of
from stagedb.timing.op_durations import JobDurations, time_ops
from stagedb.timing.timeline import Order, clock, run_step
from stagedb.validation.known_rows import fitted_together, fixing_rows
from stagedb.validation.step_prediction import plan_of
from stagedb.validation.step_rows import StepJob, StepRow, job_of
from stagedb.workload.copied_instances import GraphInMemory, copy_in_memory
from stagedb.workload.instance_columns import Workload

FACTORS = np.arange(100, 501) / 100
"""The factors that are tried."""

_MOST_ROUNDS = 6
_AROUND = 15
"""Factors of each number that are tried around the solution of the linear model."""

_PROBE = Fraction(1, 100)
"""By how much a factor is changed to see what the step does."""

Floats = npt.NDArray[np.float64]
Factors = tuple[Fraction, ...]


@dataclass(frozen=True)
class TimedRow:
    """A row whose kernels are timed alone. order: that of its step, which does not depend on durations."""

    row: StepRow
    system: System
    workload: Workload
    network: NodeGraph
    alone: JobDurations
    order: Order

    @classmethod
    def of(cls, job: StepJob) -> "TimedRow":
        plan = plan_of(job)
        graph = GraphInMemory.of(build_graph(job.card, plan.options))
        workload = copy_in_memory(graph, plan).workload
        network = node_graph_of(workload, job.system.overlap.streams, job.system.network(len(workload.ranks)))
        alone = time_ops(workload, network.lanes, job.system)
        blocking = job.profile.hides(job.row.cells.get("kernels", "")).blocking
        order = run_step(network, alone.ns, job.system.overlap.compute, blocking=blocking).order
        return cls(job.row, job.system, workload, network, alone, order)

    def step(self, numbers: Sequence[Calibration], factors: Factors) -> float:
        """The step with these factors of the numbers that hold for it, over the published one."""
        framework, name = self.system.overlap.framework, self.system.name
        own = {
            number.operator: factor
            for number, factor in zip(numbers, factors, strict=True)
            if framework in number.frameworks and name in number.systems
        }
        stretch = tuple({**dict(self.system.overlap.stretch), **own}.items())
        system = replace(self.system, overlap=replace(self.system.overlap, stretch=stretch))
        lanes = self.network.lanes
        ns = in_step(self.workload, [lane.rank_class for lane in lanes], self.alone, system)
        ns = hidden(self.workload, lanes, ns, system)
        return clock(self.order, self.network.lengths(ns.ns)).step / 1e9 / self.row.seconds


def fit(numbers: Sequence[Calibration], rows: Sequence[StepRow]) -> tuple[Factors, list[float]]:
    """The fitted factors of numbers that are fitted together, and the error of each row with them.

    The step is close to linear in a factor. So each round takes the best factors of a linear model around the last
    ones, until they stay.
    """
    timed = [TimedRow.of(job_of(row)) for row in rows]
    at: Factors = tuple(each.factor for each in numbers)
    for _ in range(_MOST_ROUNDS):
        base = np.array([row.step(numbers, at) for row in timed])
        slopes = np.stack(
            [(np.array([row.step(numbers, probe) for row in timed]) - base) / float(_PROBE) for probe in _probes(at)]
        )
        best = _best(base, slopes, at)
        if best == at:
            break
        at = best
    return at, [row.step(numbers, at) - 1 for row in timed]


def rows_of(numbers: Sequence[Calibration]) -> tuple[StepRow, ...]:
    """The rows that fix one of these numbers, each once."""
    fixing = fixing_rows()
    return tuple(dict.fromkeys(row for number in numbers for row in fixing[number]))


def _probes(at: Factors) -> Iterator[Factors]:
    for which in range(len(at)):
        yield tuple(factor + _PROBE * (number == which) for number, factor in enumerate(at))


def _best(base: Floats, slopes: Floats, at: Factors) -> Factors:
    """The factors with the least sum of squared errors, if steps change with these slopes.

    They are those of two decimals around the solution of the linear model.
    """
    now = np.array([float(each) for each in at])
    solved = now + np.linalg.lstsq(slopes.T, 1 - base, rcond=None)[0]
    around = [FACTORS[np.argsort(np.abs(FACTORS - each), kind="stable")[:_AROUND]] for each in solved]
    tried = np.array(list(itertools.product(*(np.sort(each).tolist() for each in around))))
    moved = tried - now
    cost = ((base + moved @ slopes - 1) ** 2).sum(axis=1)
    return tuple(Fraction(str(round(each, 2))) for each in tried[int(cost.argmin())].tolist())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="a framework")
    parser.add_argument("--check", action="store_true", help="exit 1 if a number differs from the file's")
    options = parser.parse_args()
    same = True
    print("| frameworks | systems | operator | factor | in the file | rows |\n|---|---|---|---:|---:|---:|")
    for numbers in fitted_together():
        if options.only and not any(options.only in each.frameworks for each in numbers):
            continue
        own = rows_of(numbers)
        factors, errors = fit(numbers, own)
        for number, factor in zip(numbers, factors, strict=True):
            fixing = len(fixing_rows()[number])
            same &= (factor, fixing) == (number.factor, number.rows)
            print(
                f"| {', '.join(number.frameworks)} | {', '.join(number.systems)} | {number.operator} "
                f"| {float(factor):g} | {float(number.factor):g} ({number.rows} rows) | {fixing} |"
            )
        for row, error in zip(own, errors, strict=True):
            print(f"    {error:+.1%}  {row.title}", file=sys.stderr)
    sys.exit(0 if same or not options.check else 1)


if __name__ == "__main__":
    main()
