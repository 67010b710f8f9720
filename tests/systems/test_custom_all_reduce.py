"""All-reduces of engines: their rule by hand, where they are used, and that nothing else changes."""

import json
from dataclasses import replace
from fractions import Fraction

import pytest

from stagedb.errors import UsageError
from stagedb.systems import CollectiveWork, Costs, Dimension, System, Timed, load_system
from stagedb.systems.system import CustomAllReduce
from stagedb.systems.system_files import parse_system, system_names
from stagedb.systems.system_numbers import with_numbers
from stagedb.timing import step_of
from tests import lowered

KERNELS = CustomAllReduce(Fraction(3000), Fraction(9000), Fraction(1, 2), 1 << 20, (2, 4, 8))


def system_with(kernels: CustomAllReduce | None, kind: str = "switch") -> System:
    """Nodes of eight at 100 GB/s whose library takes 10 us a step, without tables."""
    base = load_system("h100")
    inner = Dimension("inside", 8, kind, Fraction(100), Fraction(10**4), custom_all_reduce=kernels)
    outer = Dimension("outside", None, "switch", Fraction(100), Fraction(10**4), custom_all_reduce=None)
    return replace(base, dimensions=(inner, outer), tables=())


def taken(size: int, ranks: int = 8, kind: str = "all_reduce", engine: bool = True) -> Timed:
    return Costs(system_with(KERNELS), 16, engine=engine).collective(CollectiveWork(kind, size, tuple(range(ranks))))


def test_a_rank_reads_the_buffers_of_all_others_or_its_part_of_them_and_then_their_sums() -> None:
    # Half of 100 GB/s: 20 ns a thousand bytes.
    assert taken(8000) == Timed(3000 + 7 * 160, "one-shot", "inside", (("inside", 7 * 8000),))
    assert taken(80_000) == Timed(9000 + 2 * 7 * 200, "two-shot", "inside", (("inside", 2 * 7 * 10_000),))
    assert taken(80_000, ranks=4) == Timed(3000 + 3 * 1600, "one-shot", "inside", (("inside", 3 * 80_000),))
    # Two ranks read as many bytes in both.
    assert taken((1 << 20) - 16, ranks=2).rule == "one-shot"
    assert taken(51, ranks=2).ns == 3001  # 1.02 ns, rounded once


def test_links_of_a_fully_connected_dimension_to_other_ranks_are_idle() -> None:
    costs = Costs(system_with(KERNELS, "fully-connected"), 8, engine=True)
    few = costs.collective(CollectiveWork("all_reduce", 8000, (0, 1)))
    assert few.ns == 3000 + 160 * 7
    assert costs.collective(CollectiveWork("all_reduce", 8000, tuple(range(8)))).ns == taken(8000).ns


@pytest.mark.parametrize(
    "work",
    [
        CollectiveWork("all_reduce", 1 << 20, tuple(range(8))),  # at the limit
        CollectiveWork("all_reduce", 8000, (0, 1, 2)),  # three ranks
        CollectiveWork("all_reduce", 8000, tuple(range(16))),  # two domains
        CollectiveWork("all_reduce", 8000, (0, 8)),  # the outer dimension alone
        CollectiveWork("all_reduce", 8000, (7, 8)),  # a domain's border
        CollectiveWork("all_reduce", 8000, (0, 1, 8, 9)),  # two ranks of each of two domains
        CollectiveWork("all_reduce", 8000, (3,)),
        CollectiveWork("all_reduce", 0, tuple(range(8))),
        CollectiveWork("all_gather", 8000, tuple(range(8))),
        CollectiveWork("reduce_scatter", 8000, tuple(range(8))),
    ],
    ids=str,
)
def test_what_has_no_such_kernel_is_the_library_s(work: CollectiveWork) -> None:
    library = Costs(system_with(None), 16).collective(work)
    assert Costs(system_with(KERNELS), 16, engine=True).collective(work) == library
    assert Costs(system_with(KERNELS), 16).collective(work) == library


def test_the_library_is_kept_where_it_is_faster() -> None:
    slow = replace(KERNELS, one_shot=Fraction(10**6), two_shot=Fraction(10**6))
    work = CollectiveWork("all_reduce", 8000, tuple(range(8)))
    assert Costs(system_with(slow), 16, engine=True).collective(work).rule == "tree"


def test_the_rules_of_a_simulator_have_no_such_kernels() -> None:
    base = system_with(KERNELS)
    simulated = replace(base, collectives=replace(base.collectives, model="astra-sim"))
    work = CollectiveWork("all_reduce", 8000, tuple(range(8)))
    assert Costs(simulated, 8, engine=True).collective(work) == Costs(simulated, 8).collective(work)


@pytest.mark.parametrize("name", system_names())
def test_a_preset_has_them_if_its_library_was_measured_over_nvlink(name: str) -> None:
    system = load_system(name)
    measured = any(each.operator == "collective" for each in system.tables) and system.dimensions[0].name == "nvlink"
    assert [each.custom_all_reduce is not None for each in system.dimensions] == [measured] + [False] * (
        len(system.dimensions) - 1
    )
    assert parse_system(json.dumps(system.to_dict())) == system
    assert any("custom all-reduce" in each for each in system.sources) is measured


def test_measured_all_reduces_of_engines_are_near() -> None:
    costs = Costs(load_system("h100"), 8, engine=True)
    # us of vLLM 0.24.0 and TensorRT-LLM 1.3.0rc20 on an H100: aiconfigurator-core 0.12.0, custom_allreduce_perf.
    for ranks, size, *us in (
        (2, 32768, 4.4, 2.9),
        (4, 131072, 5.8, 4.3),
        (8, 16384, 5.3, 3.6),
        (8, 1 << 20, 15.0, 26.0),
    ):
        ns = costs.collective(CollectiveWork("all_reduce", size, tuple(range(ranks)))).ns
        assert 0.8 * min(us) < ns / 1000 < 1.2 * max(us)


def without(system: System) -> System:
    return replace(system, dimensions=tuple(replace(each, custom_all_reduce=None) for each in system.dimensions))


@pytest.mark.parametrize(
    ("words", "tokens"),
    [
        ({"workflow": "decode", "micro_batch_size": 4, "cache_len": 64}, 4),
        ({"workflow": "prefill", "micro_batch_size": 4, "seq_len": 64}, 4 * 64),
        ({"workflow": "mixed", "requests": ["1x64+0", "3x1+64"]}, 64 + 3),
    ],
    ids=["decode", "prefill", "mixed"],
)
def test_steps_of_serving_have_them_and_a_file_without_them_turns_them_off(
    words: dict[str, object], tokens: int
) -> None:
    system = load_system("h100")
    workload = lowered.program("gpt2", tp=2, **words).workload
    work = CollectiveWork("all_reduce", tokens * 768 * 2, (0, 1))
    library, own = (Costs(system, 2, engine=each).collective(work).ns for each in (False, True))
    off = step_of(workload, without(system))
    # Two in each of 12 layers, and one of the embedding.
    assert off - step_of(workload, system) == 25 * (library - own) > 0
    assert step_of(workload, with_numbers(system, {"network.nvlink.custom_all_reduce.limit": Fraction(0)})) == off


@pytest.mark.parametrize("words", [{}, {"workflow": "forward-only"}], ids=["training", "forward"])
def test_steps_of_other_workflows_do_not(words: dict[str, object]) -> None:
    system = load_system("h100")
    workload = lowered.program("gpt2", tp=2, seq_len=64, **words).workload
    assert step_of(workload, system) == step_of(workload, without(system))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "ring"}, "leave it out of a ring"),
        ({"ranks": [1, 2]}, "2 or more"),
        ({"share": 0}, "a share above 0"),
        ({"limit": -1}, "0 for none"),
        ({"one_shot": None}, "one_shot"),
        ({"three_shot": 1}, "three_shot"),
    ],
)
def test_a_file_that_could_not_be_meant_is_refused(change: dict[str, object], message: str) -> None:
    content = load_system("h100").to_dict()
    inner = content["network"][0]
    place = inner if "kind" in change else inner["custom_all_reduce"]
    place.update(change)
    with pytest.raises(UsageError, match=message):
        parse_system(json.dumps(content))
