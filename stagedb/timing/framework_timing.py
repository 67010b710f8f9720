"""A system as a framework uses it: what runs during what, in which pieces."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from importlib.resources import files

import yaml

from stagedb.errors import UsageError
from stagedb.frameworks.profiles import EACH, FrameworkProfile
from stagedb.mentions import Word
from stagedb.systems import System
from stagedb.systems.system_files import STRETCHED


@dataclass(frozen=True)
class Calibration:
    """A fitted number: how many times its measured time an operator takes in a step, or of `EXPERTS` the `issue_share`.

    frameworks: those that run it with the same kernel; empty: all. systems: the presets with the accelerator that it
    was fitted on, or one of its kind; empty: all. reason: what makes the operator slower. rows: the number
    of published steps that it was fitted to.
    """

    operator: str
    frameworks: tuple[str, ...]
    systems: tuple[str, ...]
    factor: Fraction
    rows: int
    reason: str

    def holds(self, framework: str, system: str) -> bool:
        """Whether the fitted number applies to steps of a framework on a system. framework, system: names."""
        return framework in (self.frameworks or (framework,)) and system in (self.systems or (system,))


@lru_cache(maxsize=1)
def calibrations() -> tuple[Calibration, ...]:
    """The fitted numbers: `calibrations.yaml` in this folder."""
    text = files("stagedb.timing").joinpath("calibrations.yaml").read_text(encoding="utf-8")
    return tuple(
        Calibration(
            operator=row["operator"],
            frameworks=tuple(row.get("frameworks", ())),
            systems=tuple(row.get("systems", ())),
            factor=Fraction(str(row["factor"])),
            rows=row["rows"],
            reason=row["reason"],
        )
        for row in yaml.safe_load(text)
    )


def stretch_of(
    system: System, profile: FrameworkProfile, numbers: Sequence[Calibration] | None = None
) -> tuple[tuple[str, Fraction], ...]:
    """By operator, its factor in the steps of a framework on a system whose table has its time alone.

    numbers: the fitted ones that are known; None: all of `calibrations`.

    Several numbers of an operator multiply: each has a cause of its own. One of matmuls holds in all formats. Their
    measured time is that of an accelerator that computes nothing else. So on a system without a number of its own they
    take the mean of the others. A system without tables has such shares in its curves.
    """
    known = calibrations() if numbers is None else numbers
    factors = []
    for operator in STRETCHED:
        dtype = "fp8" if operator.endswith("fp8") else "bf16"
        measured = operator.partition("-")[0]
        if not any((table.operator, table.dtype) == (measured, dtype) for table in system.tables):
            continue
        own = [calibration for calibration in known if calibration.operator == measured]
        chosen = [calibration.factor for calibration in own if calibration.holds(profile.name, system.name)]
        if measured == "matmul" and not chosen and own:
            chosen = [sum((calibration.factor for calibration in own), Fraction(0)) / len(own)]
        if chosen:
            factors.append((operator, math.prod(chosen, start=Fraction(1))))
    return tuple(factors)


EXPERTS = "experts"
"""The operator of the number that is the `issue_share` of a system's overlap."""


def issue_share(numbers: Sequence[Calibration] | None = None) -> Fraction:
    """The share of a host's time for a matmul of a linear layer in which it issues one of an expert; 0: not known.

    numbers: as in `stretch_of`.
    """
    known = calibrations() if numbers is None else numbers
    return next((each.factor for each in known if each.operator == EXPERTS), Fraction(0))


def as_used_by(
    system: System, profile: FrameworkProfile, kernels: str = "", numbers: Sequence[Calibration] | None = None
) -> System:
    """The system with the overlap of a framework. UsageError if its own file names another one.

    numbers: as in `stretch_of`. kernels: the value of the plan's `kernels`; empty: the usual one.
    """
    if system.overlap.framework not in ("", profile.name):
        raise UsageError(
            f"the system {system.name} has overlap.framework {system.overlap.framework}: leave "
            f"{Word('framework', profile.name)} out, or the key in the system's file"
        )
    hiding = profile.hides(kernels)
    overlap = replace(
        system.overlap,
        framework=profile.name,
        chunked=hiding.chunked,
        reduced=hiding.reduced,
        gathered=hiding.gathered,
        casts=hiding.casts,
        sums=hiding.sums,
        stretch=stretch_of(system, profile, numbers),
        taken=hiding.taken,
        copies=hiding.copies,
        merges=hiding.merges,
        keys=hiding.keys,
        issue_share=issue_share(numbers) if hiding.issues == EACH else Fraction(0),
        issued=system.overlap.issued if hiding.issues == EACH else (),
    )
    if not overlap.stretch:
        return replace(system, overlap=overlap)
    # Where fitted numbers of the framework are known, they replace the share that the system has for all frameworks.
    return replace(system, overlap=overlap, accelerator=replace(system.accelerator, sustained=Fraction(1)))
