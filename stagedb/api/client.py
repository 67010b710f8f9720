"""The verbs on one store."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack

from stagedb.api import catalog, listing, lookup
from stagedb.api.plan_keywords import GraphWords, PlanWords
from stagedb.api.python_words import all_for_python, for_python
from stagedb.api.results import (
    Advised,
    Chart,
    Difference,
    Exported,
    Gains,
    GraphInfo,
    InstanceInfo,
    Memory,
    Profile,
    ProfileInfo,
    QueryInfo,
    Rows,
    RunInfo,
    SearchInfo,
    Swept,
    Thing,
    Viewed,
    ViewedSearch,
)
from stagedb.api.stored_verbs import RunVerbs, SearchVerbs, SummaryVerbs
from stagedb.lazy_names import deferred
from stagedb.store import Store, Unfinished
from stagedb.store import connect as open_connection

if TYPE_CHECKING:
    from stagedb import plans
    from stagedb.api import (
        checking,
        dumps,
        jobs,
        memory_rows,
        model_names,
        plan_lists,
        querying,
        removing,
        system_choice,
        team,
        trace_sets,
        wanted_instances,
    )
    from stagedb.api.advice import Tried
    from stagedb.api.memory_rows import RequestWords
    from stagedb.api.neighbourhood import ShortestPath, SubGraph
    from stagedb.api.simulating import Simulated
    from stagedb.api.sweeping import Vary
    from stagedb.models import Card
    from stagedb.store import Notice
    from stagedb.store.answer_parts import FoundGraph
    from stagedb.store.contents.profiles import Progress
    from stagedb.systems.measured_durations import Durations
    from stagedb.systems.system import System
    from stagedb.timing import Scaling
else:
    # A listing or a query needs few of them, and starts in half of the time without the others.
    checking, dumps, plan_lists, memory_rows, model_names, querying = deferred(
        *("stagedb.api.checking", "stagedb.api.dumps", "stagedb.api.plan_lists", "stagedb.api.memory_rows"),
        *("stagedb.api.model_names", "stagedb.api.querying"),
    )
    removing, system_choice, team, trace_sets, wanted_instances = deferred(
        *("stagedb.api.removing", "stagedb.api.system_choice", "stagedb.api.team", "stagedb.api.trace_sets"),
        "stagedb.api.wanted_instances",
    )
    jobs, plans = deferred("stagedb.api.jobs", "stagedb.plans")


@all_for_python
class Stagedb(RunVerbs, SearchVerbs, SummaryVerbs):
    """A connection to one store, made by `stagedb.connect()`. It is a context manager, because it keeps connections
    open.

    Models are named as on the command line: a name of the library, the path of a card or of a Hugging Face
    `config.json`, or a graph of the store. Keyword arguments give the plan: they are the words of the command line's
    options. A request that cannot be served raises `stagedb.errors.UsageError` and changes nothing. A failure raises
    `StagedbError`.
    """

    def __init__(self, store: Store) -> None:
        self.store = store

    def __str__(self) -> str:
        return f"stagedb store at {self.store.uri} ({self.store.engine})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection. An embedded store ends by itself, some time after its last connection."""
        self.store.close()

    def build(self, model: "str | Card", /, **words: Unpack[GraphWords]) -> GraphInfo:
        """Write the model's symbolic graph to the store, unless it is there already.

        model: a name of the library, a path, or a card. words: options of the graph.
        """
        source = model_names.find_source(self.store, model, plans.typed_words(words))
        return dataclasses.replace(source.in_store(self.store), padding=wanted_instances.vocabulary_padding(source))

    def instantiate(
        self, target: "str | Card", /, *, name: str | None = None, **words: Unpack[PlanWords]
    ) -> InstanceInfo:
        """Copy a model, or a graph of the store, out under a plan.

        target: a model, its card, or the id (or its start) of a graph. name: as in `name`. words: of the plan. Without
        `seq_len` it is the sequence length that the model was trained with; the result's `usual_length` has its reason.
        """
        return wanted_instances.of_model(self.store, target, plans.typed_words(words), name).make(
            self.store, wanted_instances.StageClock()
        )

    def export(
        self,
        target: str | None = None,
        /,
        *,
        model: "str | Card | None" = None,
        out: Path | str | None = None,
        only: str | None = None,
        shard: str | None = None,
        granularity: str = "op",
        system: "str | Path | System | None" = None,
        profile: str | None = None,
        durations_in_traces: bool = False,
        then: Sequence[str] = (),
        steps: int = 1,
        send_to: str | None = None,
        packed: bool = False,
        force: bool = False,
        resume: bool = False,
        format: str = "et",
        compress: bool = False,
        replay: bool | None = None,
        simulator: str | None = None,
        progress: Callable[[int, int, int], None] | None = None,
        **words: Unpack[PlanWords],
    ) -> Exported:
        """Write the traces of an instance, one for each rank, and make what is missing for it.

        target: id or name of an instance; with words, its plan changed by them. model: a model instead, under the plan
        of the words. Neither: the newest instance, or in an empty store llama3-70b with tp 8 and pp 16. out: the
        directory (`./NAME-RANKS` if not given). only: ranks to write, such as `0-63,128` or `0-1023:8`. shard: instead,
        one of N equal parts, such as `0/4`, in a directory of its own (`./NAME-RANKS.0of4`).

        granularity: `op`, a node for each operator, or `block`, which merges the operators between two communications
        into one node with the sums. system: of the simulator's inputs, a preset's name or a file's path (`h100`
        if not given). profile: id or name of a profile, whose instance is exported; nodes have its durations, and the
        simulator's inputs its system. durations_in_traces: profile the instance on the system, and write these
        durations. then: instances whose steps of serving follow on the same ranks. steps: of the last one, if it is a
        decode, each with a token more in the cache. send_to: a decode on further ranks, numbered behind these, to which
        a prefill sends its caches. packed: one small file (`./NAME-RANKS.packed`) that `unpack` expands.

        force: replace the trace set, or empty directory, with this name. resume: go on with an interrupted export, and
        repair a finished one. format: a name of `stagedb.traces.formats.FORMATS`. compress: gzip the traces, which
        ASTRA-sim does not read. replay: run the traces as a simulator would before they get their name; by default for
        small worlds. simulator: that of the inputs, a name of `stagedb.traces.simulators.SIMULATORS`. progress: called
        with the traces written, all traces, and bytes.
        """
        from stagedb.traces import Request

        form = Request(
            Path(), force, format, compress, replay, resume=resume, granularity=granularity, packed=packed,
            simulator=simulator,
        )  # fmt: skip
        after = tuple(then), steps, send_to
        request = trace_sets.ExportRequest(out, only, shard, system, profile, durations_in_traces, form, *after)
        with jobs.shown(self.store, "export", model if target is None else target, "ranks") as job:
            watch = jobs.watched(job, progress)
            done = trace_sets.export(self.store, target, model, plans.typed_words(words), request, watch)
            job.about("instance", done.instance.id)
            return done

    def simulate(
        self, directory: Path | str, /, *, binary: Path | str | None = None, timeout: float = 3600.0
    ) -> "Simulated":
        """Run an unmodified simulator on a trace set, and put its ranks next to the profile of the same step.

        directory: a set that `export` wrote, of an instance of this store. binary: the simulator's program; without
        it that of the environment's `ASTRA_SIM`, of the search path, or of a checkout `astra-sim` here. timeout:
        seconds after which it is ended. The simulator's inputs are written anew from the set's manifest. The profile is
        that of the set's durations, or else of the set's system. Raises StagedbError if ranks do not finish.
        """
        from stagedb.api import simulating

        return simulating.simulate(self.store, directory, binary, timeout=timeout)

    def query(
        self,
        query: str,
        /,
        params: Mapping[str, Any] | None = None,
        *,
        instance: str | None = None,
        profile: str | None = None,
        run: str | None = None,
        timeout: float = 60.0,
        most: int | None = None,
        progress: "Progress | None" = None,
        graph: bool = False,
        plan: Literal["explain", "profile"] | None = None,
    ) -> Rows:
        """Answer a Cypher text that only reads, or a named query (`queries` lists them).

        instance: id or name of the instance for `$instance`; the newest by default. profile: id or name of the profile
        for `$profile`; the newest by default, of that instance if one is given. run: id or name of a run that was
        imported, for `$run`; named queries about the time of a profile answer for the run instead. timeout: seconds
        after which the query is ended. most: rows that are read; `cut` of the result shows that there are more.
        progress: called while nodes of ranks and groups are written, which the first query about them does: how many
        there are, of how many. graph: the result's `graph` has the nodes and relationships in its rows. plan: the
        result's `plan` has how the store answers; `explain` does not run the query, `profile` measures it. query: the
        text or the name. params: values of its other parameters, by name. Raises UsageError for a text that could
        write, and for unknown names.
        """
        given = dict(params or {})
        return querying.run(self.store, query, given, instance, profile, run, timeout, most, progress, graph, plan)

    def queries(self) -> list[QueryInfo]:
        """The named queries, and those that users saved in the store."""
        return [*querying.queries(), *querying.saved(self.store)]

    def save_query(self, name: str, text: str, /) -> QueryInfo:
        """Save a query for the team: Cypher that only reads, with the header of the named queries.

        name: yours, or with your workspace before it, as in `name`. It replaces the query of this name. Raises
        UsageError for a text that could write, and for a header that does not match it.
        """
        return querying.save(self.store, name, text)

    def forget_query(self, name: str, /) -> None:
        """Delete a saved query of yours or of your workspace. name: that of `save_query`."""
        querying.forget(self.store, name)

    def sub_graph(
        self,
        *nodes: str,
        more: Sequence[tuple[str, str]] = (),
        known: Sequence[str] = (),
        answers: "Sequence[FoundGraph]" = (),
        asked: str | None = None,
    ) -> "SubGraph":
        """Nodes of the store with some neighbours of each kind, as a graph to draw.

        nodes: keys, a label and an id, such as `Instance/72846b91ed30244dec2f`. more: pairs of such a key and the name
        of a kind of neighbours, of which more are wanted. known: keys of nodes without their neighbours. answers: what
        `query` found with `graph=True`. asked: the key of a node whose kinds of neighbours are wanted. The graph has
        all relationships between its nodes. Raises UsageError for a node that is not there.
        """
        from stagedb.api import neighbourhood

        return neighbourhood.sub_graph(self.store, nodes, more, known, answers, asked)

    def shortest_path(
        self, source: str, target: str, /, *, over: str | None = None, timeout: float = 60.0
    ) -> "ShortestPath":
        """A shortest path between two nodes of the store, and the query that finds it.

        source, target: keys as in `sub_graph`. over: the type of all its relationships, such as `DEP`; their direction
        counts if there is such a path in either one. timeout: seconds for a query. Raises UsageError for unknown names.
        """
        from stagedb.api import neighbourhood

        return neighbourhood.shortest_path(self.store, source, target, over, timeout)

    def graphs(self) -> list[GraphInfo]:
        """The graphs of the store, the newest first."""
        return catalog.graphs(self.store)

    def instances(self) -> list[InstanceInfo]:
        """The instances of the store, the newest first."""
        return catalog.instances(self.store)

    def profiles(self) -> list[ProfileInfo]:
        """The profiles of the store, the newest first."""
        return catalog.profiles(self.store)

    def searches(self) -> list[SearchInfo]:
        """The searches of the store, the newest first."""
        return catalog.searches(self.store)

    def ls(
        self,
        kind: str | None = None,
        /,
        *,
        model: str | None = None,
        system: str | None = None,
        tag: str | None = None,
        mine: bool = False,
        sort: str = "created",
        limit: int | None = None,
    ) -> Rows:
        """The content of the store: plan, step (ns), MFU and memory peak (bytes) of what there is.

        kind: graphs, instances, profiles, searches, runs, or unfinished: what a process builds or deletes. model: only
        of this model. system: only profiles and searches on it. tag: only what has it. mine: only what the caller made,
        asked for or named. sort: created (the caller's own first), name, ranks, step, mfu or memory. limit: the most
        rows of each kind.
        """
        return listing.listing(self.store, kind, model, system, tag, mine, sort, limit)

    def find(
        self,
        *,
        model: str | None = None,
        system: str | None = None,
        fits: bool = False,
        limit: int = 100,
        **words: Unpack[PlanWords],
    ) -> Rows:
        """Instances that somebody profiled, a row for each profile, the most tokens a second an accelerator first.

        model: the model's name. system: the system's name. fits: only those whose fullest rank fits into the memory of
        an accelerator. limit: the most rows. words: values that the plans have. Profiles with scaled durations are
        left out. Step in ns, memory and room in bytes; both are None, and `fits` too, for a profile of an older
        stagedb, until somebody profiles the same again. Raises UsageError if the store has nothing of the model or the
        system.
        """
        return plan_lists.find(self.store, model, system, plans.typed_words(words), fits, limit)

    def show(self, word: str, /) -> Thing:
        """One graph, instance, profile, search or run, by id, start of an id, or name. word: any of these."""
        return lookup.find(self.store, word)

    def classes(self, instance: str, /) -> Rows:
        """The rank classes of an instance: their stages, layers, ranks, operators and tasks."""
        return self.query("classes", instance=instance)

    def memory(
        self,
        target: str | None = None,
        /,
        *,
        model: "str | Card | None" = None,
        system: "str | Path | System | None" = None,
        keep: bool = True,
        fitting: "RequestWords | None" = None,
        **words: Unpack[PlanWords],
    ) -> Memory:
        """The memory of one rank of each class over a step: peaks, phases, tensors.

        target, model and words: as in `export`, by default the newest instance. system: the one whose accelerator is to
        hold it; by default that of the newest profile. The result is computed once and kept in the store, where
        queries read it from `Memory`, `MemoryLevel` and `MemoryTensor` nodes. keep: False computes what the store does
        not have in memory, the instance too, and writes nothing. fitting: count the requests that fit, too, with the
        memory of `system` unless they have a capacity.
        """
        named = None if system is None else system_choice.resolve_system(system)
        wanted = wanted_instances.find_wanted(self.store, target, model, plans.typed_words(words))
        if keep or wanted.there is not None:
            found = wanted.make(self.store, wanted_instances.StageClock(), asks=keep)
            peaks, levels, tensors = memory_rows.rows_of(self.store, found, keep)
        else:
            found, program = wanted_instances.program_of(self.store, wanted)
            peaks, levels, tensors = memory_rows.rows_of_program(program)
        has = system_choice.accelerator_of(self.store, found, named)
        room, reserve = (None, {}) if has is None else (has.room, has.reserved)
        fit = None if fitting is None else memory_rows.counted(self.store, wanted, (peaks, levels), fitting, has)
        return Memory(found, peaks, levels, tensors, room, reserve, fit)

    def profile(
        self,
        target: str | None = None,
        /,
        *,
        model: "str | Card | None" = None,
        system: "str | Path | System | None" = None,
        durations: "str | Path | Durations | None" = None,
        scale: "Sequence[str | Scaling]" = (),
        blocking: str | Sequence[str] = (),
        framework: str | None = None,
        name: str | None = None,
        keep: bool = True,
        progress: "Progress | None" = None,
        **words: Unpack[PlanWords],
    ) -> Profile:
        """Time a step of an instance on a system, and store where the time goes.

        target, model and words: as in `export`, by default the newest instance. system: a preset's name or a file's
        path.
        durations: measured durations, which replace modelled ones: a file that `stagedb.api.durations` reads, or its
        result. scale: factors on durations, such as `collective:tp=0.5`; several that match an op multiply. blocking:
        mesh axes whose communication a rank waits for before it computes on, such as `tp,pp`, because its framework
        does. framework: a name of `stagedb.frameworks.profiles.FRAMEWORK_PROFILES`, which implies words of the plan
        (given ones come first), blocking, and what runs during what. name: a name for the profile. progress: called
        with the number of written rows and of all rows. The same profile is stored once. keep: False writes nothing,
        which a reader's account may do; an instance that the store does not have is computed in memory.

        Queries read it from `Profile`, `LaneTime`, `OpTime` and `TaskTime` nodes. Raises UsageError if the system has
        no room or no rate for the job, for a scaling that matches nothing, and for an unknown axis.
        """
        from stagedb.api import profiling

        inputs = profiling.inputs(system, durations, scale, blocking, framework)
        clock = wanted_instances.StageClock()
        wanted = wanted_instances.find_wanted(
            self.store, target, model, profiling.framework_words(framework, model, plans.typed_words(words))
        )
        inputs.system.network(wanted.plan.world)  # checks that the job has room, before anything is made
        if not keep:
            return profiling.run_only(self.store, wanted, inputs, name, clock)
        with jobs.shown(self.store, "profile", model if target is None else target, "rows") as job:
            instance = wanted.make(self.store, clock)
            clock.lap("instance")
            watched = jobs.watched(job, progress)
            found = profiling.run(self.store, instance, inputs, name, clock.lap, clock.seconds, watched)
            job.about("profile", found.info.id)
            return found

    def advise(
        self,
        target: str | None = None,
        /,
        *,
        model: "str | Card | None" = None,
        system: "str | Path | System | None" = None,
        blocking: str | Sequence[str] = (),
        framework: str | None = None,
        progress: "Tried | None" = None,
        **words: Unpack[PlanWords],
    ) -> Advised:
        """What bounds a step, and which plans near it are faster, or fit into the accelerator's memory.

        target, model and words: as in `export`, by default the newest instance. system, blocking, framework: as in
        `profile`.
        Each plan near it has one choice changed, on the same ranks and with the same global batch, and is timed on the
        system as a profile would be. Nothing is written to the store. The graph of another framework, sharding or
        recomputation is built from the model's card; without a card these plans are in `refused`. progress: called with
        how many plans are tried, of how many, and what came out of the last one.
        """
        from stagedb.api import advice, profiling, provenance

        inputs = profiling.inputs(system, None, (), blocking, framework)
        target, model, given = provenance.resolved(self.store, target, model, plans.typed_words(words))
        wanted = wanted_instances.find_wanted(
            self.store, target, model, profiling.framework_words(framework, model, given)
        )
        asked = provenance.Asked(target, model, system, blocking, framework)
        return advice.advise_on(self.store, wanted, asked, given, inputs, progress)

    def sweep(
        self,
        target: str | None = None,
        /,
        *,
        vary: "Vary",
        together: bool = False,
        model: "str | Card | None" = None,
        system: "str | Path | System | None" = None,
        blocking: str | Sequence[str] = (),
        framework: str | None = None,
        progress: "Tried | None" = None,
        **words: Unpack[PlanWords],
    ) -> Swept:
        """Time a plan with some of its words, or numbers of its system, varied: a row for each combination.

        target, model and words: as in `export`, by default the newest instance. system, blocking, framework: as in
        `profile`. vary: values by name, such as `{"tp": [1, 2, 4], "system.network.nvlink.bandwidth": "450,900"}`, or
        texts, `["tp=1,2,4", "micro_batch_size=1..8"]`. A name is a word of a plan, `system`, or `system.` and the
        path of a number by the keys of the system's file; a network dimension has its name as its key. together: the
        first values of all, then the second ones, and so on, in place of every combination.

        A combination that is no plan is a row with the reason in `refused`. Measured times of operators change as the
        formula does that the system has for them without tables. Nothing is written to the store. progress: as in
        `advise`. Raises UsageError for what cannot be varied.
        """
        from stagedb.api import provenance, sweeping

        asked = provenance.Asked(target, model, system, blocking, framework)
        request = sweeping.SweepRequest.of(self.store, asked, plans.typed_words(words))
        return sweeping.sweep_on(self.store, request, vary, together=together, progress=progress)

    def sensitivity(
        self,
        target: str | None = None,
        /,
        *,
        model: "str | Card | None" = None,
        system: "str | Path | System | None" = None,
        blocking: str | Sequence[str] = (),
        framework: str | None = None,
        progress: "Tried | None" = None,
        **words: Unpack[PlanWords],
    ) -> Gains:
        """What to buy: the derivative of the step by each number of the system, and the step with it 10 % better.

        All parameters are those of `advise`. Numbers are peaks, bandwidths, capacities, the launch and latencies; 10 %
        better is 1.1 times a rate, and a time over 1.1. Nothing is written to the store. progress: called with each
        number that is tried.
        """
        from stagedb.api import provenance, sweeping

        asked = provenance.Asked(target, model, system, blocking, framework)
        return sweeping.gains_on(
            self.store, sweeping.SweepRequest.of(self.store, asked, plans.typed_words(words)), progress
        )

    def diff(self, first: str, second: str, /, *, fail_above: str | float | None = None) -> Difference:
        """The differences between two instances, or two profiles and their instances; by id or name.

        Instances have the times of their newest profiles, if both have one on one system. fail_above: the share by
        which the second step may be longer, `"3%"` or 0.03, for as many tokens as the first has. The result's
        `failed` is whether it is longer by more, `failure` the sentence that names the term that grew. Raises
        UsageError for an unknown word, for an instance compared with a profile, and for a share that is none.
        """
        from stagedb.api import comparing

        return comparing.compare(self.store, first, second, fail_above)

    def timeline(
        self,
        target: str | None = None,
        /,
        *,
        model: "str | Card | None" = None,
        profile: str | None = None,
        system: "str | Path | System | None" = None,
        durations: "str | Path | Durations | None" = None,
        scale: "Sequence[str | Scaling]" = (),
        blocking: str | Sequence[str] = (),
        framework: str | None = None,
        out: Path | str | None = None,
        granularity: str | None = None,
        only: str | None = None,
        force: bool = False,
        progress: "Progress | None" = None,
        **words: Unpack[PlanWords],
    ) -> Viewed:
        """Write a trace for Perfetto's viewer that shows when everything of a step runs on a system.

        target, model, words: what to run, as in `export`; a target alone may be a profile. profile: id or name of a
        profile of the store, which is run again; or system, durations, scale, blocking and framework, as in `profile`.
        out: the file (`./NAME-RANKS.pftrace` by default). granularity: `op`, or `task` for slices of tasks only; by
        default `op` if that makes at most half a million slices. only: pipeline stages to show, such as `0,4-7`.
        force: replace a timeline of the same name. progress: as in `profile`. The store keeps the profile of the step.
        """
        from stagedb.api import profiling, views

        inputs = profiling.inputs_or_profile(profile, system, durations, scale, blocking, framework)
        chosen = bool(system or durations or scale or blocking or framework)
        asked = views.StepRequest(
            target, model, profiling.framework_words(framework, model, plans.typed_words(words)), inputs, chosen
        )
        return views.save_timeline(self.store, asked, out, granularity, only, force, progress)

    def chart(
        self,
        target: str | None = None,
        /,
        *,
        model: "str | Card | None" = None,
        profile: str | None = None,
        system: "str | Path | System | None" = None,
        durations: "str | Path | Durations | None" = None,
        scale: "Sequence[str | Scaling]" = (),
        blocking: str | Sequence[str] = (),
        framework: str | None = None,
        width: int = 120,
        only: str | None = None,
        color: bool = False,
        progress: "Progress | None" = None,
        **words: Unpack[PlanWords],
    ) -> Chart:
        """The timeline as text: a Gantt chart of the pipeline's stages.

        target, model, words: as in `export`; profile, system, durations, scale, blocking, framework: as in `timeline`.
        width: of the chart, in columns. only: stages to show. color: with the colours of a terminal. The result is a
        text with two attributes: its `instance`, and the `profile` of the step, which the store keeps.
        Raises UsageError if the chart would be too narrow.
        """
        from stagedb.api import profiling, views

        inputs = profiling.inputs_or_profile(profile, system, durations, scale, blocking, framework)
        chosen = bool(system or durations or scale or blocking or framework)
        asked = views.StepRequest(
            target, model, profiling.framework_words(framework, model, plans.typed_words(words)), inputs, chosen
        )
        return views.draw_chart(self.store, asked, width, only, color, progress)

    def report(
        self,
        target: str | None = None,
        second: str | None = None,
        /,
        *,
        model: "str | Card | None" = None,
        profile: str | None = None,
        system: "str | Path | System | None" = None,
        durations: "str | Path | Durations | None" = None,
        scale: "Sequence[str | Scaling]" = (),
        blocking: str | Sequence[str] = (),
        framework: str | None = None,
        out: Path | str | None = None,
        force: bool = False,
        progress: "Progress | None" = None,
        **words: Unpack[PlanWords],
    ) -> Viewed:
        """Write a report of a step on a system as one HTML file that fetches nothing.

        out: the file (`./NAME-RANKS.html` by default). All other parameters are those of `timeline`. second: a report
        that compares two steps (`./NAME-and-NAME.html` by default). `target` and it are profiles or instances, by id
        or name; instances are timed with system, durations, scale and blocking.
        """
        from stagedb.api import profiling, views

        inputs = profiling.inputs_or_profile(profile, system, durations, scale, blocking, framework)
        chosen = bool(system or durations or scale or blocking or framework)
        asked = views.StepRequest(
            target, model, profiling.framework_words(framework, model, plans.typed_words(words)), inputs, chosen
        )
        if second is None:
            return views.save_report(self.store, asked, out, force, progress)
        return views.save_pair(self.store, asked, second, out, force, progress)

    def report_search(
        self, search: str | None = None, /, *, out: Path | str | None = None, force: bool = False
    ) -> ViewedSearch:
        """Write the report of a search as one HTML file that fetches nothing: all candidates, fronts, why plans lose.

        search: its id, or the start of it; the newest by default. out: the file (`./MODEL-RANKS-search.html` by
        default). force: replace an earlier report.
        """
        from stagedb.api import search_views

        return search_views.save_search_report(self.store, search, out, force)

    def names_search(self, word: str, /) -> bool:
        """Whether a word is the start of a search's id, and names neither an instance nor a profile."""
        others = lookup.find_instance(self.store, word) or lookup.find_profile(self.store, word)
        return others is None and lookup.find_search(self.store, word) is not None

    def report_page(self, profile: str, second: str | None = None, /) -> str:
        """The report of a profile as HTML that fetches nothing; with a second one, the report that compares both.

        profile, second: by id or name. Nothing is written, neither to the store nor to a file.
        """
        from stagedb.api import views

        return views.report_page(self.store, profile, second)

    def name(self, word: str, name: str, /) -> InstanceInfo | ProfileInfo | RunInfo:
        """Let a name mean an instance, a profile or a run. It moves if it is yours and means another one.

        name: yours (`base`), or with a space (`team/base`), which is your user or your workspace. Names of others do
        not change. Several names may mean one thing. word: id, start of an id, or a name that it has.
        """
        return team.name(self.store, word, name)

    def tag(self, word: str, /, *tags: str, remove: bool = False) -> Thing:
        """Tag a graph, an instance, a profile or a search with words, or take these tags off.

        word: id, start of an id, or name. tags: one or more. remove: take them off.
        """
        return team.tag(self.store, word, tags, remove)

    def note(self, word: str, text: str, /) -> Thing:
        """Write a note about a graph, an instance, a profile or a search. Earlier notes remain.

        word: id, start of an id, or name. text: of the note.
        """
        return team.note(self.store, word, text)

    def log(self, word: str | None = None, /, *, user: str | None = None, days: float = 30.0, limit: int = 100) -> Rows:
        """What changed the store, the newest first: when, who, what, with which version and command.

        word: only about this graph, instance or profile, by id or name, or about what is removed by its whole id.
        user: only what this user did. days: how far back. limit: at most so many rows.
        """
        return team.log(self.store, word, user, days, limit)

    def origin(self, word: str, /) -> Rows:
        """Who made a graph, an instance or a profile, when and how: a row for each of its inputs, with its digest.

        word: id, start of an id, or name.
        """
        return team.origin(self.store, word)

    def rm(self, word: str, /, *, force: bool = False) -> "list[removing.Removed]":
        """Remove a name, and what it means unless somebody needs it; or a thing by its id. Returns what was removed.

        With a name, what has other names, or what other users made, stays. With an id, such a thing is refused with
        UsageError, as is a graph that instances need; `force` removes all of it. An instance is removed with its
        profiles. word: a name, an id, or the start of one.
        """
        return removing.remove(self.store, word, force)

    def dump(self, path: Path, /, *words: str, force: bool = False, notice: "Notice | None" = None) -> int:
        """Write graphs, instances, profiles, searches and runs, with all that they need, into a file for another store.

        words: names or ids; without any, the whole store. force: replace a file. notice: called with a line for each
        thing. Returns the number of things. Raises UsageError for an unknown word, and for a file that is there.
        """
        return dumps.dump(self.store, Path(path), words, force, notice)

    def load(self, path: Path, /, *, notice: "Notice | None" = None) -> int:
        """Write what this store lacks of a dump. Returns the number of things written.

        All of the file is checked first. Raises DumpError, and writes nothing, for a file that is not sound.
        """
        return dumps.load(self.store, Path(path), notice)

    def push(self, *words: str, to: "str | Stagedb", insecure: bool = False, notice: "Notice | None" = None) -> int:
        """Send graphs, instances, profiles, searches and runs, with what they are made from, to a store without them.

        words: names or ids. to: an address, a name of the configuration file, `embedded`, or an open store. insecure:
        as in `connect`. notice: called with a line for each thing. Returns the number of new things there.

        Everything is checked before anything is written. The account in NEO4J_USERNAME and NEO4J_PASSWORD belongs to
        NEO4J_URI, else to this store if it is a server, and is sent to no other one. Raises UsageError if both are the
        same store.
        """
        if isinstance(to, Stagedb):
            return dumps.move(self.store, to.store, words, notice or (lambda line: None))
        return dumps.push(self.store, words, to, insecure, notice)

    def pull(self, *words: str, source: "str | Stagedb", insecure: bool = False, notice: "Notice | None" = None) -> int:
        """Fetch the graphs, instances, profiles, searches and runs of another store that this one lacks.

        source: the other store. All else is as in `push`; names are those of the other store. Returns the number of new
        things here.
        """
        if isinstance(source, Stagedb):
            return dumps.move(source.store, self.store, words, notice or (lambda line: None))
        return dumps.pull(self.store, words, source, insecure, notice)

    def check(self, *, notice: "Notice | None" = None) -> "tuple[checking.StoreProblem, ...]":
        """All that is wrong in the store: what belongs to nothing, what is unfinished, what is not as it was made.

        Nothing is written. notice: called with a line for each graph, instance and profile that was checked.
        """
        return checking.check(self.store, notice or (lambda line: None))

    def repair(self, problems: "Sequence[checking.StoreProblem]") -> int:
        """Remove what `check` found and nobody can read any more. Returns how many things were removed."""
        return checking.repair(self.store, problems)

    def gc(
        self, *, dead: bool = False, unnamed_older_than: float | None = None, dry_run: bool = False
    ) -> "list[Unfinished | removing.Unused]":
        """Remove what ended processes left (`dead`), and what nobody named or tagged. Returns what was removed.

        unnamed_older_than: days since somebody made it or asked for it. dry_run: remove nothing, and return what would
        be removed. Raises UsageError if neither is given.
        """
        seconds = None if unnamed_older_than is None else unnamed_older_than * 86_400
        return removing.collect(self.store, dead=dead, unnamed_older_than=seconds, dry_run=dry_run)


@for_python
def connect(store: str | None = None, *, database: str | None = None, insecure: bool = False) -> Stagedb:
    """Open a store: see `stagedb.connect`."""
    return Stagedb(open_connection(store, database=database, insecure=insecure))
