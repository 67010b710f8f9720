"""The iterations of an engine that serves, as a run has them: annotations with the requests of each."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stagedb.plans.request_batches import RequestBatch
from stagedb.plans.request_lists import engine_batch
from stagedb.runs.rank_trace import Annotation

_NAMED = re.compile(r"(?:execute_(?:\d+_)?context_\d+\(|step\[|prefill\[|decode\[)", re.ASCII)


@dataclass(frozen=True)
class EngineIteration:
    """One iteration. number: its place in the run, from 0. place: that of its annotation among those of its rank.

    batch: its requests; None if its name does not have all sums that an attention needs.
    """

    number: int
    place: int
    annotation: Annotation
    batch: RequestBatch | None

    @property
    def workflow(self) -> str | None:
        """The workflow of a plan that runs such a step.

        None if its requests are unknown, and for drafts of several lengths, or next to prompts, which no plan has.
        """
        if self.batch is None:
            return None
        prompts, answers = self.batch.prefill, self.batch.decode
        if answers.q == answers.n:
            return ("mixed" if answers.n else "prefill") if prompts.n else "decode"
        return None if prompts.n or answers.q**2 != answers.n * answers.qq else "speculative"


def engine_iterations(annotations: Sequence[Annotation]) -> tuple[EngineIteration, ...]:
    """The iterations among the annotations of a rank, by start; none in runs of other programs.

    An engine may name an iteration twice, one name around the other: the one with sums counts, or else the outer one.
    """
    named = [place for place, each in enumerate(annotations) if _NAMED.match(each.name)]
    found = [(place, engine_batch(annotations[place].name)) for place in named]
    detailed = [(place, batch) for place, batch in found if batch is not None]
    chosen = detailed or found
    apart = _without_nested(annotations, [place for place, _ in chosen])
    batches = dict(chosen)
    return tuple(
        EngineIteration(number, place, annotations[place], batches[place]) for number, place in enumerate(apart)
    )


def _without_nested(annotations: Sequence[Annotation], places: Iterable[int]) -> list[int]:
    """Those that no other one is around, by start; of copies on several threads the first."""
    kept: list[int] = []
    end = -1
    for place in sorted(places, key=lambda place: (annotations[place].start, -annotations[place].end)):
        if annotations[place].start >= end:
            kept.append(place)
            end = annotations[place].end
    return kept
