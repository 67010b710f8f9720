"""The iterations of an engine that serves, as a run has them, next to what a plan of their requests takes."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any

from stagedb.api import lookup, provenance
from stagedb.api.answer_hints import preset_of
from stagedb.api.results import Rows, RunInfo
from stagedb.api.sweeping import SweepRequest, trials_of
from stagedb.errors import UsageError
from stagedb.mentions import Word, call
from stagedb.plans.request_batches import NotEnoughError, batch_of
from stagedb.runs.measured_run import without_times
from stagedb.search.trials import Trials
from stagedb.store import Store

COLUMNS = ("rank", "number", "workflow", "prefills", "decodes", "tokens", "keys", "seen", "busy", "expected", "ratio")
KEEP = ("number", "workflow", "seen", "expected", "ratio", "tokens", "keys")
UNITS = {"seen": "ns", "busy": "ns", "expected": "ns"}


@dataclass(frozen=True)
class SeenIterations:
    """The iterations of a run, a row each.

    rows: `seen` is from the first op that an iteration launched to the end of the last, `busy` the part in which one of
    them ran, `expected` the step of a plan with its requests, `ratio` expected over busy, as no plan has the pauses of
    an engine's host. model, system: what was planned on what; None if nothing was. unknown: iterations whose names do
    not have all sums of their requests, or that check drafts which no plan has.
    """

    run: RunInfo
    model: str | None
    rows: Rows
    unknown: int
    system: str | None = None

    def __str__(self) -> str:
        ratios = [row[-1] for row in self.rows.rows if row[-1] is not None]
        if not ratios:
            return f"{_counted(len(self.rows))} of run {self.run.id[:12]}"
        off = mean(abs(ratio - 1) for ratio in ratios)
        return (
            f"{_counted(len(ratios))} of run {self.run.id[:12]} next to {self.model} on {self.system}: expected is "
            f"{100 * off:.1f}% off the time in which ops ran, in the mean"
        )


def _counted(number: int) -> str:
    return f"{number:,} iteration{'' if number == 1 else 's'}"


def iterations(
    store: Store,
    run: str,
    rank: int | None,
    request: SweepRequest | None,
    alike: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> SeenIterations:
    """See `Stagedb.iterations`."""
    info = lookup.the_run(store, run)
    found = store.read("run/iterations", run=info.id, rank=rank)
    if info.times is None:
        raise without_times(info.name or info.id[:12])
    if not found:
        where = "" if rank is None else f" on rank {rank}"
        raise UsageError(
            f"run {info.id[:12]} has no iterations of an engine{where}: vLLM, SGLang and ATOM name them in the traces "
            f"that they profile; other runs have steps ({call('show', info.id[:12])})"
        )
    first = [row for row in found if row["rank"] == found[0]["rank"]]
    if request is not None and request.asked.system is None:
        request = replace(request, asked=replace(request.asked, system=_system_of(info)))
    expected, model = _expected(store, first, request, alike, progress or (lambda done, of: None))
    rows = []
    for row in first:
        seen, planned = row["finish"] - row["start"], expected.get(_key(row))
        ratio = None if planned is None or not row["busy"] else planned / row["busy"]
        own = {**row, "seen": seen, "expected": planned, "ratio": ratio}
        rows.append(tuple(own[name] for name in COLUMNS))
    unknown = sum(row["workflow"] is None for row in first)
    system = None if request is None else request.inputs(None).system.name
    return SeenIterations(info, model, Rows(COLUMNS, tuple(rows), keep=KEEP, units=UNITS), unknown, system)


def _system_of(run: RunInfo) -> str:
    """The preset of a run's accelerators. UsageError without one."""
    found = preset_of(run)
    if found is not None:
        return found
    raise UsageError(
        f"run {run.id[:12]} ran on {', '.join(run.devices) or 'an accelerator without a name'}: name its system with "
        f"{Word('system')}"
    )


_Key = tuple[str, tuple[str, ...]]


def _key(row: Any) -> _Key:
    return row["workflow"] or "", tuple(row["requests"] or ())


def _expected(
    store: Store,
    rows: list[Any],
    request: SweepRequest | None,
    alike: bool,
    progress: Callable[[int, int], None],
) -> tuple[dict[_Key, int], str | None]:
    """ns of the step of each distinct batch, and the name of the model."""
    if request is None:
        return {}, None
    keys = list(dict.fromkeys(_key(row) for row in rows if row["workflow"] is not None))
    found: dict[_Key, int] = {}
    trials: Trials | None = None
    model = None
    for workflow, requests in keys:
        planned = batch_of(requests).alike.texts if alike else requests
        source, plan = request.planned(store, {"workflow": workflow, "requests": list(planned)})
        model = model or (source.card or source.origin).name
        trials = trials or trials_of(store, source, request.inputs(None))
        try:
            found[workflow, requests] = trials.step(trials.copied(plan))
        except NotEnoughError as error:
            raise NotEnoughError(
                f"{error}; or plan the requests of an iteration as if all had the mean length, with "
                f"{Word('alike', True)}"
            ) from None
        progress(len(found), len(keys))
    return found, model


def requested(store: Store, asked: provenance.Asked, words: dict[str, Any]) -> SweepRequest | None:
    """What iterations are planned for: a model or an instance under the words of a plan; None if neither is named.

    Raises UsageError for words of the requests, which the iterations have.
    """
    own = sorted({"workflow", "requests", "seq_len", "cache_len", "micro_batch_size"} & words.keys())
    if own:
        raise UsageError(f"iterations have their own requests: leave {', '.join(own)} out")
    if asked.model is None and asked.target is None:
        if words:
            raise UsageError(f"the words of a plan ({', '.join(words)}) need a model: name it")
        return None
    return SweepRequest.of(store, asked, words)
