"""Groups that straddle a domain of the network, and the number of accelerators with which none does."""

import json
from dataclasses import replace

import pytest

from stagedb.errors import UsageError
from stagedb.lowering.columns import Workload
from stagedb.systems import Costs, System, load_system, parse_system
from stagedb.timing import profile_job, timed_step
from stagedb.timing.network_position import placed, straddles
from tests.timing.test_hidden_communication import workload


def domains(places: int, use: int | None = None) -> System:
    system = load_system("gb200-nvl72")
    inner = replace(system.dimensions[0], size=places, use=use)
    return replace(system, dimensions=(inner, *system.dimensions[1:]))


def by_hand(made: Workload, axis: str, places: int) -> int:
    """The groups of an axis with ranks of two domains."""
    groups, at, found = made.groups, 0, 0
    for name, size in zip(groups.axis, groups.sizes.tolist(), strict=True):
        ranks = groups.ranks[at : at + size].tolist()
        at += size
        found += name == axis and len({rank // places for rank in ranks}) > 1
    return found


@pytest.mark.parametrize("places", [6, 7, 9, 11])
def test_groups_in_two_domains_are_named_with_a_number_that_avoids_it(places: int) -> None:
    made = workload(tp=4, sp=True, dp=8, global_batch_size=8)
    (found,) = straddles(made, domains(places))
    assert (found.axis, found.dimension, found.places) == ("tp", "nvlink", places)
    assert found.groups == by_hand(made, "tp", places) > 0
    assert found.use == places // 4 * 4
    assert by_hand(made, "tp", found.use) == 0
    assert straddles(made, domains(places, found.use)) == ()
    assert f"{found.groups} of 8 groups of tp straddle" in str(found)


def test_a_number_serves_all_axes_that_fit() -> None:
    made = workload(tp=2, sp=True, dp=6, pp=2, global_batch_size=12)
    assert {each.use for each in straddles(made, domains(7))} == {6}
    assert straddles(made, domains(24)) == ()


def test_the_smallest_groups_come_first_where_one_number_does_not_serve_all() -> None:
    made = workload(tp=4, sp=True, dp=3, pp=2, global_batch_size=6)  # blocks of 4, of 12, and of 24
    (found,) = straddles(made, domains(10))
    assert (found.axis, found.use, by_hand(made, "tp", 8)) == ("tp", 8, 0)


def test_a_group_that_fits_in_no_domain_is_no_straddle() -> None:
    made = workload(tp=4, sp=True, dp=2)
    assert straddles(made, domains(2)) == ()


@pytest.mark.parametrize("places", [6, 7, 9, 11])
def test_a_job_without_a_number_is_placed_so_that_no_group_straddles(places: int) -> None:
    made = workload(tp=4, sp=True, dp=8, global_batch_size=8)
    use = places // 4 * 4
    job = profile_job(made, domains(places))
    assert job.system == domains(places, use)
    (note,) = job.remarks
    assert note.startswith(f"placed on {use} of the {places} accelerators of each domain of nvlink")
    assert "no group of tp straddles" in note
    given = profile_job(made, domains(places, use))
    assert (job.step, given.remarks) == (given.step, ())
    assert timed_step(made, domains(places), None, ())[1].step == job.step
    assert job.step < profile_job(made, domains(places, places)).step


def test_a_job_keeps_the_number_of_its_system() -> None:
    made = workload(tp=4, sp=True, dp=8, global_batch_size=8)
    for use in (6, 7, 9):
        job = profile_job(made, domains(9, use))
        assert (job.system, job.placements) == (domains(9, use), ())
        assert [each.startswith("warning: ") for each in job.remarks] == [True]


def test_a_job_that_needs_every_place_is_placed_on_all() -> None:
    made = workload(tp=4, sp=True, dp=8, global_batch_size=8)  # 32 ranks
    system = domains(7)
    for nodes, use in ((5, None), (8, 4)):
        whole = replace(system, dimensions=(system.dimensions[0], replace(system.dimensions[1], size=nodes)))
        found, placements = placed(made, whole)
        assert (found.dimensions[0].use, len(placements)) == (use, use is not None)
        assert len(straddles(made, found)) == (use is None)


def test_what_does_not_straddle_is_placed_on_all() -> None:
    for made, system in (
        (workload(tp=4, sp=True, dp=8, global_batch_size=8), domains(72)),
        (workload(tp=4, sp=True, dp=8, global_batch_size=8), domains(8)),
        (workload(tp=4, sp=True, dp=2), domains(2)),
    ):
        assert placed(made, system) == (system, ())


def test_a_job_takes_the_accelerators_that_it_uses() -> None:
    some, all_ = domains(72, 64), domains(64)
    assert [each.places for each in some.network(256)] == [64, 4]
    group = tuple(range(48, 80))
    times = [Costs(each, 256).placed("all_gather", 1 << 24, Costs(each, 256).placement(group)) for each in (some, all_)]
    assert times[0] == times[1]
    assert parse_system(json.dumps(some.to_dict()), "it") == some


@pytest.mark.parametrize(("at", "use"), [(0, 73), (0, 0), (1, 4)])
def test_use_is_of_a_switch_with_a_size(at: int, use: int) -> None:
    words = load_system("gb200-nvl72").to_dict()
    words["network"][at]["use"] = use
    with pytest.raises(UsageError, match="use"):
        parse_system(json.dumps(words), "it")
