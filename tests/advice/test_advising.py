"""Advice names the change that a search over all plans near a plan finds best, on plans with different bounds."""

import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from itertools import product
from multiprocessing.context import ForkProcess
from typing import Any

import psutil
import pytest

from stagedb.api import Stagedb
from stagedb.errors import StagedbError, UsageError
from stagedb.graphs.model_graph import build_graph
from stagedb.memory import memory_of
from stagedb.models import Card, load_card
from stagedb.plans import Plan
from stagedb.search.advising import Advice, advise
from stagedb.search.trials import Outcome, Trials
from stagedb.search.what_ifs import what_ifs
from stagedb.store import Store
from stagedb.store.contents.memory import analyse
from stagedb.store.contents.stored_programs import read_workload
from stagedb.systems import load_system
from stagedb.timing import Scaling, profile_job
from tests import lowered

H100 = load_system("h100")

PLANS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "memory": ("llama3-8b", 2, {"dp": 2, "micro_batch_size": 8, "global_batch_size": 16, "seq_len": 8192}),
    "bubble": ("llama3-8b", 8, {"pp": 4, "dp": 2, "global_batch_size": 8, "seq_len": 4096}),
    "dp": ("llama3-8b", 2, {"dp": 64, "global_batch_size": 64, "seq_len": 1024, "recipe": "megatron", "zero": 1}),
    "tp": ("llama3-70b", 2, {"tp": 16, "sp": True, "global_batch_size": 2, "seq_len": 4096}),
    "ep": ("qwen3-30b-a3b", 2, {"tp": 2, "dp": 16, "ep": 16, "sp": True, "global_batch_size": 16, "seq_len": 4096}),
}
"""By what bounds it: a model, its number of layers, and a plan."""


def small(name: str) -> tuple[Card, dict[str, Any]]:
    model, layers, words = PLANS[name]
    return dataclasses.replace(load_card(model), layers=layers, name=f"{model}-{layers}"), words


def near(words: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every plan with one choice changed, from lists of all values: most are refused, or are the plan itself."""
    own = {"tp": 1, "pp": 1, "dp": 1, "ep": 1, "micro_batch_size": 1, "virtual_stages": 1, "zero": 0, **words}
    own |= {"sp": words.get("sp", False), "recompute": "none", "recipe": words.get("recipe", "torch")}
    for word, values in {
        "sp": (False, True) if own["tp"] > 1 else (),
        "recipe": ("torch", "megatron"),
        "zero": range(4),
        "recompute": ("none", "full", "core", "pointwise"),
    }.items():
        yield from ({**words, word: value} for value in values if value != own[word])
    for word, value in product(("micro_batch_size", "virtual_stages", "ep"), (2**power for power in range(7))):
        if value in (2 * own[word], own[word] / 2):
            yield {**words, word: value}
    if own["ep"] > 1:
        yield {**words, "dispatch": "ranks"}
        yield {**words, "dispatch": "nodes", "node_ranks": 8 // own["tp"]}
    if own["pp"] > 1:
        yield {**words, "schedule": "zb-h1"}
    ranks = own["tp"] * own["pp"] * own["dp"]
    for tp, pp in product((2**power for power in range(7)), repeat=2):
        degrees = {"tp": tp, "pp": pp, "dp": ranks // (tp * pp)}
        factors = sorted(degree / own[axis] for axis, degree in degrees.items())
        if ranks % (tp * pp) == 0 and factors == [0.5, 1, 2]:
            yield {**words, **degrees, "sp": own["sp"] and tp > 1}


def searched(card: Card, words: dict[str, Any]) -> tuple[int, int]:
    """The step and the peak of a plan."""
    program = lowered.program(card, **words)
    peak = max(sum(each.usage.at(each.peak).values()) for each in memory_of(program))
    return profile_job(program.workload, H100).step, peak


def stored(store: Store, card: Card, words: dict[str, Any]) -> tuple[int, int]:
    """The same from its instance in a store."""
    instance = Stagedb(store).instantiate(card, **words)
    peak = max(sum(each.usage.at(each.peak).values()) for each in analyse(store, instance.id))
    return profile_job(read_workload(store, instance.id), H100).step, peak


@pytest.mark.parametrize("name", list(PLANS))
def test_the_best_change_is_that_of_a_search(embedded_store: Store, name: str) -> None:
    assert_best(embedded_store, name, searched)


def test_the_best_change_is_that_of_a_search_in_a_store(store: Store) -> None:
    assert_best(store, "memory", partial(stored, store))


def assert_best(store: Store, name: str, search: Callable[[Card, dict[str, Any]], tuple[int, int]]) -> None:
    card, words = small(name)
    found = Stagedb(store).advise(model=card, **words)
    assert found.bound == name
    step, peak = search(card, words)
    assert (found.step, found.peak) == (step, peak)
    outcomes = set()
    for each in near(words):
        try:
            outcomes.add(search(card, each))
        except UsageError:
            continue
    rows = list(found.changes)
    best = min((ns, held) for ns, held in outcomes if held <= 80e9)
    assert rows[0]["fits"] and rows[0]["step"] <= best[0], "a pair of changes may be better"
    assert outcomes <= {(row["step"], row["peak"]) for row in rows}
    if best[0] < step or peak > 80e9:
        assert f"the best change is {rows[0]['change']}: " in found.verdict
    assert [row["saving"] for row in rows] == [step - row["step"] for row in rows]


def trials(name: str) -> tuple[Trials, Plan]:
    card, words = small(name)
    plan = Plan.from_mapping(words)
    graph = build_graph(card, plan.options)
    return Trials(lambda options: build_graph(card, options), graph.sizes, H100), plan


@pytest.mark.parametrize("compute", ["in-order", "out-of-order"])
def test_a_what_if_is_the_step_that_runs_with_it(compute: str) -> None:
    made, plan = trials("ep")
    system = dataclasses.replace(H100, overlap=dataclasses.replace(H100.overlap, compute=compute))
    workload = made.copied(plan).workload
    job = profile_job(workload, system)
    found = {each.name: each for each in what_ifs(job.times, job.durations, system)}
    for each in found.values():
        if each.options:
            scalings = [Scaling.parse(text) for text in each.options[1::2]]
            assert profile_job(workload, system, scalings=scalings).step == each.step
            assert each.step <= job.step
    fast = dataclasses.replace(system.accelerator, launch=Fraction(0))
    assert found["no launch overhead"].step == profile_job(workload, dataclasses.replace(system, accelerator=fast)).step
    assert found["matmuls at the peak"].step < job.step
    assert {"communication over ep twice as fast", "communication over tp twice as fast"} <= found.keys()


def test_a_step_without_a_bubble_has_only_the_work_of_its_fullest_rank() -> None:
    made, plan = trials("bubble")
    job = profile_job(made.copied(plan).workload, H100)
    (found,) = [each for each in what_ifs(job.times, job.durations, H100) if each.name == "no bubble"]
    assert found.step == max(lane.busy + lane.exposed + lane.idle for lane in job.times.lanes) < job.step


def test_two_changes_are_tried_where_none_alone_fits() -> None:
    card, words = small("memory")
    plan = Plan.from_mapping({**words, "micro_batch_size": 10, "global_batch_size": 20})
    graph = build_graph(card, plan.options)
    found = advise(Trials(lambda options: build_graph(card, options), graph.sizes, H100), plan)
    best = found.best
    assert not found.fits
    assert best is not None and best.fits and len(best.change) > 1
    alone = [each for each in found.changes if not each.fits]
    assert all(set(best.change.items()) != set(each.change.items()) for each in alone)


def test_every_plan_that_is_tried_is_reported(embedded_store: Store) -> None:
    seen: list[tuple[int, int, str]] = []
    found = Stagedb(embedded_store).advise(
        model=small("tp")[0],
        tp=2,
        dp=2,
        seq_len=64,
        progress=lambda done, of, outcome: seen.append((done, of, outcome)),
    )
    of = len(found.changes) + len(found.refused)
    assert [(done, whole) for done, whole, _ in seen] == [(done, of) for done in range(of + 1)]
    named = {outcome.partition(":")[0] for _, _, outcome in seen if outcome}
    assert named == {row["change"] for row in found.changes}


def test_without_a_card_the_graph_remains(store: Store) -> None:
    card, words = small("bubble")
    made = Stagedb(store).instantiate(card, **words)
    found = Stagedb(store).advise(made.id)
    assert "schedule zb-h1" in [row["change"] for row in found.changes]
    assert "--model" in found.refused["recipe megatron"]
    assert len(Stagedb(store).instances()) == 1


def in_processes(count: int | None, name: str, **more: Any) -> tuple[Advice, list[int]]:
    """Advice by so many processes, and the reported numbers of tried plans."""
    made, plan = trials(name)
    plan = Plan.from_mapping({**plan.to_dict(), **more})
    seen: list[int] = []
    return advise(dataclasses.replace(made, processes=count), plan, lambda done, of, change: seen.append(done)), seen


@pytest.mark.parametrize("more", [{}, {"micro_batch_size": 10, "global_batch_size": 20}], ids=["alone", "pairs"])
def test_several_processes_give_what_one_gives(more: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def compared(found: Advice) -> object:
        return found.changes, list(found.refused.items()), found.bound, found.what_ifs, found.job.step

    copies: list[ForkProcess] = []
    start = ForkProcess.start

    def started(self: ForkProcess) -> None:
        copies.append(self)
        start(self)

    monkeypatch.setattr(ForkProcess, "start", started)
    one, alone = in_processes(1, "memory", **more)
    assert not copies
    several, reported = in_processes(3, "memory", **more)
    assert compared(several) == compared(one) and reported == alone
    assert len(copies) > 2 and len(copies) % 3 == 0 and not any(each.is_alive() for each in copies)


def test_a_process_that_ends_ends_the_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    made, plan = trials("tp")
    mine, outcome = os.getpid(), Trials.outcome

    def killed(self: Trials, plan: Plan) -> Outcome:
        if os.getpid() != mine and plan.options.recipe == "megatron":
            os.kill(os.getpid(), signal.SIGKILL)
        return outcome(self, plan)

    monkeypatch.setattr(Trials, "outcome", killed)
    with pytest.raises(StagedbError, match=r"for recipe megatron ended with signal SIGKILL.*nothing was written"):
        advise(dataclasses.replace(made, processes=2), plan)


def test_an_error_of_a_process_is_that_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    made, plan = trials("tp")

    def broken(self: Trials, plan: Plan) -> Outcome:
        raise ZeroDivisionError(plan.options.recipe)

    monkeypatch.setattr(Trials, "outcome", broken)
    with pytest.raises(ZeroDivisionError):
        advise(dataclasses.replace(made, processes=2), plan)


LONG = """
import signal

from stagedb.graphs.model_graph import build_graph
from stagedb.models import load_card
from stagedb.plans import Plan
from stagedb.search.advising import advise
from stagedb.search.trials import Trials
from stagedb.systems import load_system

card, plan = load_card("llama3-70b"), Plan.from_mapping({"tp": 8, "pp": 4, "global_batch_size": 64, "seq_len": 8192})
graph = build_graph(card, plan.options)
trials = Trials(lambda options: build_graph(card, options), graph.sizes, load_system("h100"), processes=2)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
advise(trials, plan, lambda done, of, change: print("trying", flush=True))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_its_processes_end_with_it(number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", LONG],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        for _ in range(2):  # at the start, and after the first plan
            assert process.stdout.readline() == "trying\n"
        copies = psutil.Process(process.pid).children()
        assert len(copies) == 2
        # The keyboard's interrupt goes to all of them.
        (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
        errors = process.stderr.read()
    assert process.returncode == -number
    assert errors.count("Traceback") == (1 if number == signal.SIGINT else 0)
    _, alive = psutil.wait_procs(copies, timeout=300)
    assert alive == []
