"""The derivative of a step by each number of the system: which hardware shortens it, and by how much."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from stagedb.advice.sweeping import PointTrials
from stagedb.advice.trials import Trials
from stagedb.plans import Plan
from stagedb.shared_work import Answer, shared
from stagedb.systems.system_numbers import SystemNumber, system_numbers, with_numbers

LITTLE, MUCH = Fraction(101, 100), Fraction(11, 10)
"""Factors by which a number gets better: a rate is multiplied by one, a time divided."""


@dataclass(frozen=True)
class NumberGain:
    """What a step gains by a better number of the system.

    number: of the system. elasticity: d ln step / d ln number, between the step with the number 1 % lower and 1 %
    higher: -1 for a rate that alone decides the step, +1 for such a time. little, much: ns by which the step gets
    shorter with the number 1 % and 10 % better.
    """

    number: SystemNumber
    elasticity: float
    little: int
    much: int


@dataclass(frozen=True)
class Sensitivity:
    """The step of a plan by each number of its system. step: ns. peak: bytes of the fullest rank.

    room: bytes of an accelerator; None without a limit. gains: those that shorten the step most first.
    """

    step: int
    peak: int
    room: int | None
    gains: tuple[NumberGain, ...]


def sensitivity(trials: Trials, plan: Plan, tried: Callable[[int, int], None] = lambda done, of: None) -> Sensitivity:
    """Time a plan with each number of its system lower and higher: rates, capacities, the launch and latencies.

    Those of the host are tried where the plan keeps something there. Shares, such as what matmuls sustain, and curves
    are left out: nobody sells them. The sum of the elasticities of rates less those of times is -1, because a system
    that is faster in all of them runs the step faster by as much.
    tried: called with how many numbers are tried, of how many. Raises UsageError if the plan or the system does not
    suit the model.
    """
    runs = PointTrials(trials)
    copied, peak = runs.lowered(plan)
    step = runs.step(copied.workload, trials.system)
    hostless = plan.options.offload == "none"
    bought = (each for each in system_numbers(trials.system).values() if each.bought)
    numbers = [each for each in bought if not (hostless and each.keys[0] == "host")]

    def work(at: int) -> Answer:
        return {
            "steps": [runs.step(copied.workload, with_numbers(trials.system, each)) for each in _values(numbers[at])]
        }

    tried(0, len(numbers))
    found: dict[int, NumberGain] = {}
    for at, answer in shared(work, [each.path for each in numbers], trials.processes):
        found[at] = _gain(numbers[at], answer["steps"])
        tried(len(found), len(numbers))
    # Sorting is stable, so that numbers with equal gains keep the order of a system's file.
    gains = sorted((found[at] for at in sorted(found)), key=lambda each: (each.much, -abs(each.elasticity)))
    return Sensitivity(step, peak, trials.system.accelerator.room, tuple(gains))


def _values(number: SystemNumber) -> list[dict[str, Fraction]]:
    """The number 1 % lower, 1 % higher, and 10 % better."""
    value = Fraction(number.value or 0)
    return [{number.path: each} for each in (value / LITTLE, value * LITTLE, _better(number, MUCH))]


def _better(number: SystemNumber, factor: Fraction) -> Fraction:
    value = Fraction(number.value or 0)
    return value / factor if number.is_time else value * factor


def _gain(number: SystemNumber, steps: Sequence[int]) -> NumberGain:
    lower, higher, much = steps
    elasticity = math.log(higher / lower) / (2 * math.log(LITTLE)) if lower and higher else 0.0
    return NumberGain(number, elasticity, lower if number.is_time else higher, much)
