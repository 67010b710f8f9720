"""The verbs of `Stagedb` on what a store keeps in addition to plans: runs, searches, summaries and jobs."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stagedb.api import catalog
from stagedb.api.python_words import all_for_python
from stagedb.api.results import Rows, RunInfo, Searched
from stagedb.lazy_names import deferred
from stagedb.store import Store

if TYPE_CHECKING:
    from typing import Unpack

    from stagedb.api.iterations import SeenIterations
    from stagedb.api.jobs import JobInfo
    from stagedb.api.matching import CalibratedSystem, MatchedRun
    from stagedb.api.plan_comparison import PlanComparison
    from stagedb.api.plan_keywords import PlanWords
    from stagedb.api.plan_summaries import SavedSummary
    from stagedb.api.run_views import ExportedRun, ViewedRun
    from stagedb.models import Card
    from stagedb.reports.plan_summary import PlanSummary
    from stagedb.runs.stored_run import RunWhatIf
    from stagedb.systems.system import System

# The verbs on runs that were imported, of `Stagedb`.


@all_for_python
class RunVerbs:
    """The verbs of `Stagedb` on runs that were imported. store: the connection."""

    store: Store

    def runs(self) -> list[RunInfo]:
        """The runs of the store that were recorded, the newest first."""
        return catalog.runs(self.store)

    def import_run(
        self,
        *paths: Path,
        name: str | None = None,
        keep_names: bool = False,
        progress: "Callable[[int, int, str], None] | None" = None,
        notes: Callable[[str], None] | None = None,
    ) -> RunInfo:
        """Import a run that a profiler recorded: its trace files, or directories with them.

        paths: JSON of PyTorch's profiler (Kineto), a file a rank, as it is or compressed with gzip; or SQLite exports
        of Nsight Systems, which have a rank for each process with a device; all of one recording of one job. Execution
        traces without profiles, and traces of Chakra without durations, are a run without times. A run that the store
        has is found by its files, and nothing is read. name: of the run, as `name` sets it. keep_names: keep the names
        of the files, which may contain host names and user names. progress: called with what is done, of how much, and
        of what. notes: called with what is not read because an import that was interrupted had read it. Raises
        UsageError for a file that is no such trace, and for files of different jobs.
        """
        from stagedb.api import importing, jobs

        with jobs.shown(self.store, "import", "a run" if name is None else name, "bytes") as job:
            watched = jobs.watched(job, progress, {"writing": "rows"})
            run = importing.import_run(self.store, paths, name, keep_names, watched, notes or (lambda text: None))
            job.about("run", run.id)
            return run

    def export_run(
        self,
        run: str,
        /,
        *,
        out: Path | str | None = None,
        system: "str | Path | System | None" = None,
        force: bool = False,
        resume: bool = False,
        format: str = "et",
        compress: bool = False,
        replay: bool | None = None,
        simulator: str | None = None,
        progress: "Callable[[int, int, int], None] | None" = None,
    ) -> "ExportedRun":
        """Write a run that was imported as Chakra traces, one for each recorded rank, with measured durations.

        run: its id or name. out: the directory (`./NAME-RANKS` if not given). system: of the simulator's inputs, for
        the network; `h100` if not given. format: `et` or `json`. force, resume, compress, replay, simulator, progress:
        as of `export`. Nodes are in the order in which they ran, and there is none for waiting: a node of kind `host`
        is what the host did, one of kind `gap` is what no dependency explains.
        """
        from stagedb.api import jobs, run_views
        from stagedb.traces import Request

        place = Path() if out is None else Path(out)
        request = Request(place, force, format, compress, replay, resume=resume, simulator=simulator)
        with jobs.shown(self.store, "export", run, "ranks") as job:
            done = run_views.export_run(self.store, run, request, system, jobs.watched(job, progress))
            job.about("run", done.run.id)
            return done

    def timeline_run(self, run: str, /, *, out: Path | str | None = None, force: bool = False) -> "ViewedRun":
        """Write a run that was imported as one trace for Perfetto's viewer, with all ranks on one clock.

        run: its id or name. out: the file (`./NAME-RANKS.pftrace` if not given). force: replace another one.
        """
        from stagedb.api import run_views

        return run_views.save_run_timeline(self.store, run, out, force)

    def report_run(self, run: str, /, *, out: Path | str | None = None, force: bool = False) -> "ViewedRun":
        """Write a report of a run that was imported: one HTML file.

        run: its id or name. out: the file (`./NAME-RANKS.html` if not given). force: replace another one.
        """
        from stagedb.api import run_views

        return run_views.save_run_report(self.store, run, out, force)

    def replay_run(self, run: str, /, *, scale: Sequence[str] = (), without: Sequence[str] = ()) -> "RunWhatIf":
        """Time a run that was imported again, from what its ops waited for: what would it take if this were faster?

        run: its id or name. scale: `WHAT[:WHICH]=FACTOR`, such as `collective=0.5`, `compute:matmul=2` or `rank:3=0.9`;
        words are those of `stagedb.runs.stored_run.RUN_SELECTORS`. without: kinds of dependencies to leave out, of
        `stagedb.runs.stored_run.KINDS_OF_DEPENDENCY`. Raises UsageError for one that chooses nothing.
        """
        from stagedb.api import run_views

        return run_views.replay_run(self.store, run, scale, without)

    def match(
        self, run: str, instance: str | None = None, /, *, progress: "Callable[[int, int], None] | None" = None
    ) -> "MatchedRun":
        """Match a run that was imported with an instance, op by op. The store keeps the match.

        run: its id or name. instance: id or name. Without it the plan is found from the run alone, and its instance is
        made: degrees from what ranks communicate, sizes of the model from recorded shapes, and the words of the plan
        under which most of the run is as planned; the result's `found` has them, and what stays open. progress:
        called with the relationships that were written, and with all of them. Raises UsageError for a run of a job with
        another number of ranks than the instance has, and for one from which no plan follows, such as one without
        times.
        """
        from stagedb.api import matching

        return matching.match(self.store, run, instance, progress)

    def iterations(
        self,
        run: str,
        /,
        *,
        rank: int | None = None,
        model: "str | Card | None" = None,
        system: "str | Path | System | None" = None,
        framework: str | None = None,
        alike: bool = False,
        progress: "Callable[[int, int], None] | None" = None,
        **words: "Unpack[PlanWords]",
    ) -> "SeenIterations":
        """The iterations of an engine that serves in a run that was imported, a row each with its requests and times.

        run: its id or name. rank: of the run; by default the first one that has iterations. model: of the library, a
        card or a config: each iteration is then planned with its own requests, and the row has the step that is
        expected next to the one that was seen. system: by default the preset with the accelerator that the run names.
        framework: as in `profile`. alike: plan the requests of an iteration as if all had the mean length, which models
        with windows need. words: of the plan, such as `tp`, without those of requests. progress: called with the
        different batches that were planned, and with all. Nothing is written. Raises UsageError for a run without
        iterations.
        """
        from stagedb.api import iterations, provenance
        from stagedb.plans import typed_words

        asked = provenance.Asked(None, model, system, (), framework)
        request = iterations.requested(self.store, asked, typed_words(words))
        return iterations.iterations(self.store, run, rank, request, alike, progress)

    def calibrate(
        self,
        runs: Sequence[str],
        /,
        *,
        base: "str | Path | System | None" = None,
        predict: Sequence[str] = (),
        framework: str | None = None,
        name: str = "calibrated",
    ) -> "CalibratedSystem":
        """Fit a system to runs that were imported and matched, and predict steps with it.

        runs: their ids or names. base: the system, a preset's name or a file's path, whose other numbers and form of
        curves it keeps; None: one with a flat network of one dimension, and no curves. predict: other runs, which are
        predicted and not fitted. Without them each of several runs is predicted by a fit to the rest. framework: a name
        of `stagedb.frameworks.profiles.FRAMEWORK_PROFILES` that made the runs, whose copies and casts are then known.
        name: of the system. Raises UsageError for a run without a match or with fewer ops than its plan, for runs
        without matmuls, and for runs that are faster than the base can be.
        """
        from stagedb.api import matching

        return matching.calibrated(self.store, runs, base, predict, framework, name)

    def run_ops(self, run: str, /) -> Rows:
        """The ops of a run that was imported, a row for each op of each rank; times in ns from the run's begin.

        `work` is the op's own time without waiting for other ranks, `gap` what no dependency explains before it. In a
        run without times they are None.
        """
        from stagedb.api import run_views

        return run_views.run_ops(self.store, run)

    def run_collectives(self, run: str, /) -> Rows:
        """The collectives and messages of a run that was imported, a row for each member; times in ns.

        `ready` is when the last member began, `waits` how long this one waited for that, `last` the rank of it. In a
        run without times they are None.
        """
        from stagedb.api import run_views

        return run_views.run_collectives(self.store, run)


# The verbs on searches that a store keeps, of `Stagedb`.

if TYPE_CHECKING:
    from stagedb.api import jobs, searching
    from stagedb.api.searching import Report, Systems
    from stagedb.models import Card
else:
    # A listing or a query runs without these two modules, which take long to import.
    jobs, searching = deferred("stagedb.api.jobs", "stagedb.api.searching")


@all_for_python
class SearchVerbs:
    """The verbs of `Stagedb` on searches. store: the connection."""

    store: Store

    def search(
        self,
        model: "str | Card",
        ranks: Sequence[int],
        system: "Systems" = None,
        *,
        allow: Sequence[str] | None = None,
        room: int | None = None,
        by: str = "step",
        where: str = "",
        top: int = 5,
        seconds: float | None = None,
        prices: Mapping[str, float] | None = None,
        watts: Mapping[str, float] | None = None,
        framework: str | None = None,
        progress: "Report | None" = None,
        words: Mapping[str, Any] | None = None,
        shard: str | None = None,
        on: str | None = None,
        compare: Mapping[str, Any] | None = None,
    ) -> Searched:
        """`stagedb.search`, whose result the store keeps: every candidate is a node, and the best lead to instances.

        The arguments are those of `stagedb.search`. The same search is read from the store if it is there. One that was
        stopped, or that ended before all plans were tried, goes on with what it has. shard: which part of the search
        this call searches, such as `3/8` for the third of eight; the result is what all finished shards have found, and
        the whole search when they all are. on: the address of a Ray cluster; its machines need no store.
        compare: words of a plan that is compared with the best one.
        """
        asked = searching.SearchAsked.of(
            model, ranks, system, allow, room, by, where, top, prices, watts, framework, words
        )
        with jobs.shown(self.store, "search", model, "plans") as job:
            watched = jobs.watched(job, progress)
            found = searching.search_in(self.store, asked, seconds, watched, shard, on, compare)
            job.about("search", found.id)
            return found

    def searched(self, search: str | None = None, /) -> Searched:
        """A search of the store with its candidates. search: its id, or the start of it; the newest by default."""
        return searching.searched_in(self.store, search)


# The verbs on summaries of plans, plans next to each other, and jobs, of `Stagedb`.


@all_for_python
class SummaryVerbs:
    """The verbs of `Stagedb` on summaries of plans, comparisons of plans, and jobs. store: the connection."""

    store: Store

    def jobs(self) -> "list[JobInfo]":
        """The newest exports, imports, searches and profiles of all users: those that run first, the newest first.

        The store keeps 200 that took longer than a second. One without a sign of life for a minute was lost.
        """
        from stagedb.api import jobs

        return jobs.jobs(self.store)

    def plan_summary(
        self,
        target: str | None = None,
        /,
        *,
        tokens: int | str | None = None,
        price_hour: float | str | None = None,
        watts: float | str | None = None,
        price_kwh: float | str | None = None,
    ) -> "PlanSummary":
        """A plan on a page: its step, memory, days, price, energy, the expected error, and what it was compared with.

        target: a profile, or an instance with one, by id or name; the newest instance by default. tokens: to train on,
        such as `15T`. price_hour: of an accelerator and hour. watts: that an accelerator takes. price_kwh: of a kWh.
        Nothing has a price by default. Writes nothing.
        """
        from stagedb.api import plan_summaries
        from stagedb.reports.plan_summary import PlanPrices

        prices = PlanPrices.of({"tokens": tokens, "price_hour": price_hour, "watts": watts, "price_kwh": price_kwh})
        return plan_summaries.plan_summary(self.store, target, prices)

    def save_summary(
        self,
        target: str | None = None,
        /,
        *,
        tokens: int | str | None = None,
        price_hour: float | str | None = None,
        watts: float | str | None = None,
        price_kwh: float | str | None = None,
        out: Path | str | None = None,
        force: bool = False,
    ) -> "SavedSummary":
        """Write the same as a PDF.

        target, tokens, price_hour, watts, price_kwh: as in `plan_summary`. out: the file (`./NAME-RANKS.pdf` if not
        given). force: replace a PDF of this name.
        """
        from stagedb.api import plan_summaries
        from stagedb.reports.plan_summary import PlanPrices

        prices = PlanPrices.of({"tokens": tokens, "price_hour": price_hour, "watts": watts, "price_kwh": price_kwh})
        return plan_summaries.save_summary(self.store, target, prices, out, force)

    def compare(self, *words: str) -> "PlanComparison":
        """2 to 8 instances or profiles next to each other: plans, terms of the step, memory by category, work.

        words: ids or names. Instances have the times of their newest profiles, if all have one on one system. Writes
        nothing. Raises UsageError for unknown words, and for kinds that do not go together.
        """
        from stagedb.api import plan_comparison

        return plan_comparison.compare(self.store, words)
