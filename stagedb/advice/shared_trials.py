"""Plans tried in several processes at once (`shared_work`). What comes back is two numbers or a message."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from stagedb.advice.trials import Outcome, Trials
from stagedb.errors import UsageError
from stagedb.plans import Plan
from stagedb.shared_work import shared


@dataclass(frozen=True)
class Trial:
    """A plan to try. name: its change in words. words: all words of the plan. fitting: only if its memory fits."""

    name: str
    words: Mapping[str, Any]
    fitting: bool = False


@dataclass(frozen=True)
class NoOutcome:
    """Why there is no outcome. message: that of the UsageError; empty for a plan that does not fit."""

    message: str = ""


Result = Outcome | NoOutcome


def results(trials: Trials, asked: Sequence[Trial]) -> Iterator[tuple[int, Result]]:
    """The place of each trial and its result, as they end.

    asked: the trials. Raises StagedbError if a process ends before its trial does.
    """
    names = [each.name for each in asked]
    for at, answer in shared(lambda at: asdict(result(trials, asked[at])), names, trials.processes):
        yield at, NoOutcome(**answer) if "message" in answer else Outcome(**answer)


def result(trials: Trials, trial: Trial) -> Result:
    """The result of a trial, in this process."""
    try:
        plan = Plan.from_mapping(trial.words)
        outcome = trials.outcome_that_fits(plan) if trial.fitting else trials.outcome(plan)
    except UsageError as error:
        return NoOutcome(error.message)
    return NoOutcome() if outcome is None else outcome
