"""A system as a framework uses it: what runs during what, in which pieces."""

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from importlib.resources import files

import yaml

from stagedb.errors import UsageError
from stagedb.frameworks.profiles import FrameworkProfile, find_profile
from stagedb.systems import System
from stagedb.systems.system_files import STRETCHED


@dataclass(frozen=True)
class Calibration:
    """A fitted number: how many times its measured time an operator takes in the steps of some frameworks.

    systems: the presets with the accelerator that it was fitted on, or one of its kind. rows: that fixed it. shared:
    whether it holds for other frameworks on these systems, too.
    """

    frameworks: tuple[str, ...]
    systems: tuple[str, ...]
    operator: str
    factor: Fraction
    rows: int
    shared: bool


@lru_cache(maxsize=1)
def calibrations() -> tuple[Calibration, ...]:
    """The fitted numbers: `calibrations.yaml` in this folder."""
    text = files("stagedb.timing").joinpath("calibrations.yaml").read_text(encoding="utf-8")
    return tuple(
        Calibration(
            **{
                **row,
                "frameworks": tuple(row["frameworks"]),
                "systems": tuple(row["systems"]),
                "factor": Fraction(str(row["factor"])),
            }
        )
        for row in yaml.safe_load(text)
    )


def stretch_of(system: System, profile: FrameworkProfile) -> tuple[tuple[str, Fraction], ...]:
    """By operator, its factor in the steps of a framework on a system whose table has its time alone.

    Without a number of its own a framework has the mean of those that others share on the system, of its own recipe if
    there are some. The measured time of matmuls in bf16 alone is that of an idle accelerator: on a system without any
    number, they take the mean of all that are shared. A system without tables has such shares in its curves.
    """
    found = []
    for operator in STRETCHED:
        if not any(table.operator == operator.partition("-")[0] for table in system.tables):
            continue
        rows = [row for row in calibrations() if row.operator == operator]
        here = [row for row in rows if system.name in row.systems]
        shared = [row for row in here if row.shared]
        chosen = (
            [row for row in here if profile.name in row.frameworks]
            or [row for row in shared if profile.recipe in {find_profile(name).recipe for name in row.frameworks}]
            or shared
            or ([] if here else [row for row in rows if row.shared])
        )
        if chosen:
            found.append((operator, sum((row.factor for row in chosen), Fraction(0)) / len(chosen)))
    return tuple(found)


def as_used_by(system: System, profile: FrameworkProfile, kernels: str = "") -> System:
    """The system with the overlap of a framework. UsageError if its own file names another one."""
    if system.overlap.framework not in ("", profile.name):
        raise UsageError(
            f"the system {system.name} has overlap.framework {system.overlap.framework}: leave --framework "
            f"{profile.name} out, or the key in the system's file"
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
        stretch=stretch_of(system, profile),
        taken=hiding.taken,
        copies=hiding.copies,
        merges=hiding.merges,
        keys=hiding.keys,
    )
    if not overlap.stretch:
        return replace(system, overlap=overlap)
    # The framework's own numbers are in place of the system's share for any of them.
    return replace(system, overlap=overlap, accelerator=replace(system.accelerator, sustained=Fraction(1)))
