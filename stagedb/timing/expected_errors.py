"""The error to expect of a predicted step: that of published steps which had no part in it.

A kind is an accelerator, a framework, and whether the model has experts. Where published steps of the kind are known,
the error is that of those which fixed no number. Otherwise it is that of the nearest kinds, each predicted by numbers
that were fitted without any row of its kind, or on its accelerator where that is another one. `expected_errors.yaml` in
this folder has these for each kind; docs/step-predictions.md explains them, and `scripts/fit_steps` writes them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from importlib.resources import files

import yaml

from stagedb.lowering.columns import Workload
from stagedb.mentions import OPTIONS, Word
from stagedb.systems import System
from stagedb.systems.system_files import load_system, system_names
from stagedb.workflows import find_workflow

FEW = 3
"""Rows that an error needs at least: with fewer, all rows of the kind count, and then those of the nearest kinds."""


@dataclass(frozen=True)
class ErrorFigures:
    """Absolute errors of some published steps: their number, their mean and the worst, as shares."""

    rows: int
    mean: float
    worst: float


@dataclass(frozen=True)
class KindErrors:
    """The errors of predicted steps of one kind: an accelerator, a framework, and whether the model has experts.

    held_out: errors of this kind's published steps that fixed no fitted number, with the fitted numbers as they are.
    apart: errors of all its published steps, with numbers fitted without them. elsewhere: with numbers fitted without
    any step on the accelerator. unnamed: errors of its published steps, predicted as if no framework were named.
    """

    accelerator: str
    framework: str
    experts: bool
    held_out: ErrorFigures
    apart: ErrorFigures
    elsewhere: ErrorFigures
    unnamed: ErrorFigures

    @property
    def name(self) -> str:
        """The kind in words."""
        return f"{self.framework} on {self.accelerator}"


@dataclass(frozen=True)
class ExpectedError:
    """The error to expect, as shares of the step, and which published steps it is from, in words.

    rows: their number. same_kind: whether they are of the same kind.
    """

    rows: int
    mean: float
    worst: float
    same_kind: bool
    reason: str

    def __str__(self) -> str:
        return f"{self.mean:.1%} in the mean, {self.worst:.1%} at worst, {self.reason}"


@lru_cache(maxsize=1)
def expected_errors() -> tuple[KindErrors, ...]:
    """The errors of all kinds."""
    text = files("stagedb.timing").joinpath("expected_errors.yaml").read_text(encoding="utf-8")
    return tuple(
        KindErrors(
            row["accelerator"],
            row["framework"],
            row["experts"],
            *(ErrorFigures(**row[name]) for name in ("held_out", "apart", "elsewhere", "unnamed")),
        )
        for row in yaml.safe_load(text)
    )


@dataclass(frozen=True)
class ServedErrors:
    """Absolute errors of measured times a token: their number, their median, their mean and the worst, as shares."""

    rows: int
    median: float
    mean: float
    worst: float

    def __str__(self) -> str:
        return f"{self.median:.1%} in the median, {self.mean:.1%} in the mean, {self.worst:.1%} at worst"


@lru_cache(maxsize=1)
def _served_errors() -> dict[str, ServedErrors]:
    text = files("stagedb.timing").joinpath("served_errors.yaml").read_text(encoding="utf-8")
    return {name: ServedErrors(**row) for name, row in yaml.safe_load(text).items()}


def served_error(experts: bool) -> str:
    """The error to expect of the time a token of engines, in words: that of measured ones, to which nothing is fitted.

    experts: whether the model has experts.
    """
    error = _served_errors()["experts" if experts else "dense"]
    return (
        f"{error}, as {error.rows} measured times a token of models {'with' if experts else 'without'} experts on H100 "
        "and H200 are off"
    )


def has_experts(workload: Workload) -> bool:
    """Whether a step runs matmuls of experts."""
    return any(facts.of_experts for columns in workload.classes for facts in columns.ops.facts)


def not_compared(workflow: str) -> str:
    """Why steps of a workflow have no error to expect; empty for those with an optimizer, as published steps are.

    workflow: its name.
    """
    return "" if find_workflow(workflow).optimizes else f"no published step of {workflow} was compared"


def error_of_step(system: System, workload: Workload) -> ExpectedError | None:
    """The error to expect of a timed step; None for a workflow without published steps to compare with."""
    return None if not_compared(workload.plan["workflow"]) else expected_error(system, has_experts(workload))


def error_words(system: System, workload: Workload) -> str:
    """The error to expect of a timed step, in words, with the published steps that it comes from."""
    error = error_of_step(system, workload)
    return f"unknown, as {not_compared(workload.plan['workflow'])}" if error is None else str(error)


def expected_error(system: System, experts: bool) -> ExpectedError:
    """The error to expect of a step on a system. experts: whether the model has experts.

    The errors are those of the framework that the system's `overlap` names, or of steps without a named framework.
    """
    model, framework, named = _models(experts), system.overlap.framework, system.accelerator.name
    alike = [errors for errors in expected_errors() if errors.experts == experts]
    on_accelerator = [errors for errors in alike if errors.accelerator == named] if _is_known(system) else []
    if not framework:
        return _unnamed(system, alike, on_accelerator, model)
    own = next((errors for errors in on_accelerator if errors.framework == framework), None)
    if own is not None and own.held_out.rows >= FEW:
        of = own.held_out
        reason = f"as {_steps(of.rows)} of {model} with {own.name} that fixed no number"
        return ExpectedError(of.rows, of.mean, of.worst, True, reason)
    if own is not None and own.apart.rows >= FEW:
        of = own.apart
        reason = f"as {_steps(of.rows)} of {model} with {own.name} are off when no number is fitted to them"
        return ExpectedError(of.rows, of.mean, of.worst, True, reason)
    others = "with other frameworks" if own is None else "with any framework"
    beyond = [errors for errors in alike if errors.framework == framework]
    if sum(errors.apart.rows for errors in on_accelerator) >= FEW:
        of, left_out = _pooled([errors.apart for errors in on_accelerator]), "their kind"
        of_steps = f"{others} on {named} ({_names([errors.framework for errors in on_accelerator])})"
    elif sum(errors.apart.rows for errors in beyond) >= FEW:
        of, left_out = _pooled([errors.elsewhere for errors in beyond]), "their accelerator"
        of_steps = f"with {framework} on other accelerators ({_names([errors.accelerator for errors in beyond])})"
    else:
        of, left_out = _pooled([errors.elsewhere for errors in alike]), "their accelerator"
        of_steps = f"{others} on other accelerators ({_names([errors.accelerator for errors in alike])})"
    known = "none" if own is None else f"only {own.apart.rows}"
    reason = (
        f"as {_steps(of.rows)} of {model} {of_steps} are off when no number is fitted to {left_out}: {known} with "
        f"{framework} on {_shown(system)} {'is' if known in ('none', 'only 1') else 'are'} known, so that yours may be "
        "further off"
    )
    return ExpectedError(of.rows, of.mean, of.worst, False, reason)


def _unnamed(
    system: System, alike: Sequence[KindErrors], on_accelerator: Sequence[KindErrors], model: str
) -> ExpectedError:
    """The error where no framework is named."""
    of = _pooled([errors.unnamed for errors in on_accelerator or alike])
    where = f"on {_names([errors.accelerator for errors in on_accelerator or alike])}"
    reason = f"as {_steps(of.rows)} of {model} {where} are off without the name of their framework"
    if not on_accelerator:
        reason += f": none on {_shown(system)} is known, so that yours may be further off"
    return ExpectedError(of.rows, of.mean, of.worst, False, f"{reason} ({OPTIONS.word(Word('framework'))} names yours)")


def _is_known(system: System) -> bool:
    """Whether its accelerator is that of a preset with the same times of kernels. The network may be another one."""
    own = replace(system.accelerator, sustained=Fraction(1)), system.tables
    presets = (load_system(name) for name in system_names())
    return any((replace(each.accelerator, sustained=Fraction(1)), each.tables) == own for each in presets)


def _shown(system: System) -> str:
    """An accelerator in words."""
    return system.accelerator.name if _is_known(system) else f"an accelerator of your own ({system.accelerator.name})"


def _pooled(errors: Sequence[ErrorFigures]) -> ErrorFigures:
    """The errors of several kinds as those of one, each row with the same weight."""
    rows = sum(each.rows for each in errors)
    mean = sum(each.rows * each.mean for each in errors) / rows
    return ErrorFigures(rows, mean, max(each.worst for each in errors))


def _models(experts: bool) -> str:
    return "models with experts" if experts else "dense models"


def _steps(rows: int) -> str:
    return f"{rows} published step{'' if rows == 1 else 's'}"


def _names(names: Sequence[str]) -> str:
    return ", ".join(sorted(set(names)))
