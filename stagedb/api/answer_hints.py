"""What an answer lacks since nobody recorded, wrote or computed it yet, what does that, and what may be an error."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stagedb.api import catalog, lookup
from stagedb.api.results import RunInfo
from stagedb.mentions import OPTIONS, call
from stagedb.store import Statement, Store, Table

MEMORY = re.compile(r":Memory(Level|Tensor)?\b")
"""Labels of the nodes that `memory` writes."""

LATE_RANKS = "analyze/runs/late_ranks"
"""The named query whose rows compare clocks; its column `certain` is false where that may be all they are."""

AGAINST_PLAN, NEXT_TO_PROFILE = "analyze/runs/run_against_plan", "analyze/runs/seen_and_planned"
"""The named queries about a run and the instance that it was matched with."""

MODULE_TIME = "analyze/runs/module_time"
"""A named query that needs Python's calls in a recording."""

MODULE_SHARE = "analyze/runs/module_share"
"""Another one: the parts of a run, two of which are of modules."""

_WITHOUT_MODULES = "modules were not recorded: torch.profiler.profile(with_stack=True) records Python's calls"


def hints_of(
    store: Store, text: str, statement: Statement | None, answer: Table, given: Mapping[str, Any]
) -> Iterator[str]:
    """What a reader of an answer should know.

    text: the query. statement: the named one, or None. answer: its columns and rows. given: its parameters, with ids.
    """
    if answer.unwritten:
        yield (
            f"the answer is without {answer.unwritten:,} ranks and their groups, whose nodes nobody wrote yet: a query "
            "of one instance writes them, such as MATCH (r:Rank {instance: $instance}) RETURN count(r)"
        )
    if not answer.rows and MEMORY.search(text) and "instance" in given:
        yield from _without_memory(store, str(given["instance"]))
    if statement is None:
        return
    if "wire_bytes" in answer.columns and "profile" in given:
        yield from _without_wires(store, str(given["profile"]))
    if statement.name == LATE_RANKS:
        yield from _about_waits(store, answer, str(given["run"]))
    if statement.name == MODULE_TIME and {row[answer.columns.index("module")] for row in answer.rows} == {None}:
        yield _WITHOUT_MODULES
    if statement.name == MODULE_SHARE and not {row[answer.columns.index("part")] for row in answer.rows} & {
        "module",
        "gradients",
    }:
        yield _WITHOUT_MODULES
    if statement.name in (AGAINST_PLAN, NEXT_TO_PROFILE):
        yield from _about_match(store, answer, str(given["run"]), statement.name == NEXT_TO_PROFILE)


def hints_about_run(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Iterator[str]:
    """How to record what is missing in the answer to a question about profiles that was asked about a run."""
    if "bytes" in columns and any(row[columns.index("bytes")] is None for row in rows):
        yield (
            "rows without bytes: the traces do not have the size of every such message. The execution traces of the "
            "ranks have them (ExecutionTraceObserver): record both, and import them together"
        )


def _without_memory(store: Store, instance: str) -> Iterator[str]:
    if not store.read("memory/all_peaks", instance=instance):
        short = instance[: catalog.SHORT_ID]
        yield f"the memory of instance {short} is not computed yet: {OPTIONS.call(call('memory', short))} does that"


def _without_wires(store: Store, profile: str) -> Iterator[str]:
    there = store.read("profile/figures", profile=profile)
    if there and there[0]["dimensions"] is None:
        yield "an older stagedb made this profile, without the traffic into the network: profile it again"


def _about_match(store: Store, answer: Table, run: str, timed: bool) -> Iterator[str]:
    """Why there is nothing to compare a run with. timed: the answer has times, which depend on systems."""
    short = run[: catalog.SHORT_ID]
    matched = store.read("match/newest", run=run)
    if not matched:
        yield (
            f"the run is compared with no plan yet: {OPTIONS.call(call('match', short))} finds its plan, and "
            f"{OPTIONS.call(call('match', short, 'INSTANCE'))} takes one of the store"
        )
        return
    instance = matched[0]["instance"]
    if not timed and not answer.rows:
        yield f"the run was compared with instance {instance[: catalog.SHORT_ID]}, and nothing differs"
    if timed and not lookup.profiles_of(store, instance):
        profile = OPTIONS.call(call("profile", instance[: catalog.SHORT_ID]))
        yield f"the instance that the run was compared with has no times yet: {profile} makes them, on a system"
    if timed and answer.rows:
        at = answer.columns.index("system")
        for system in dict.fromkeys(str(row[at]) for row in answer.rows):
            yield from filter(None, [other_system(lookup.the_run(store, run), instance, system)])


def _about_waits(store: Store, answer: Table, run: str) -> Iterator[str]:
    """Which waits the clocks are too uncertain for, and why a run has none."""
    unsure = sum(not row[answer.columns.index("certain")] for row in answer.rows)
    if unsure:
        which = "the last row has" if unsure == 1 else f"the last {unsure:,} rows have"
        yield f"{which} waits that are no longer than the error of the clocks: there may be none"
    if not answer.rows and lookup.the_run(store, run).world == 1:
        yield (
            "one rank of the run was imported, and whom others wait for needs the traces of several: import the files "
            "of all ranks together"
        )


# The system that a run was recorded on, by the names of its accelerators, next to the one that a plan is timed on.

_WORD = re.compile(r"[a-z0-9]+")


def preset_of(run: RunInfo) -> str | None:
    """The preset whose words are among those of a run's accelerators, the one with most; None without one."""
    words = _words(run)
    found = [each for each in _presets() if words.issuperset(each.split("-"))]
    return max(found, key=lambda each: each.count("-"), default=None)


def other_system(run: RunInfo, instance: str, system: str) -> str:
    """A sentence on a run that was recorded on other processors than its plan is timed on, with what to do.

    instance: id of the plan's instance. system: name of the system of its profile. Empty if both are the same, and
    where names do not show it: systems of one's own may have any, and not every recording has those of its devices.
    """
    if system not in _presets():
        return ""
    on_cpus = run.tool == "kineto" and not run.devices
    # A device whose name has no number, such as `GPU`, may be any.
    named = any(letter.isdigit() for name in run.devices for letter in name)
    if not on_cpus and (not named or system.split("-")[0] in _words(run)):
        return ""
    better = None if on_cpus else preset_of(run)
    ways = [] if better is None else [f"{OPTIONS.call(call('profile', instance[:12], system=better))} times it there"]
    ways.append(f"{OPTIONS.call(call('systems', 'calibrate', run.id[:12]))} fits a system to runs like it")
    recorded = "CPUs" if on_cpus else ", ".join(run.devices)
    return (
        f"the plan is timed on {system}, and the run was recorded on {recorded}: their times differ by that, too; "
        f"{', and '.join(ways)}"
    )


def _presets() -> tuple[str, ...]:
    """The names of the systems that come with the program."""
    # Few answers are about systems, which take longer to load than a query.
    from stagedb.systems import system_names

    return system_names()


def _words(run: RunInfo) -> set[str]:
    return set(_WORD.findall(" ".join(run.devices).lower()))
