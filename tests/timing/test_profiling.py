"""One function profiles: durations, the step, and its figures of merit."""

import math
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import pytest

from stagedb.errors import UsageError
from stagedb.lowering.columns import COMPUTE, Workload
from stagedb.systems import Durations, Measured, System, load_system
from stagedb.systems.cost_model import Costs, Work
from stagedb.systems.system import Overlap
from stagedb.timing import Scaling, profile_job
from tests.timing.plain import PLAIN
from tests.timing.test_timeline import PLANS, instance
from tests.traces.synthetic import workload


def computing(*, tp: int, dp: int, pp: int, microbatches: int) -> Workload:
    """A workload whose operators compute in bf16, two of them again."""
    made = workload(tp=tp, dp=dp, pp=pp, microbatches=microbatches)
    classes = []
    for each in made.classes:
        ops = each.ops
        phase = tuple(
            "recompute" if name.endswith("mm.grad_x") else old for name, old in zip(ops.name, ops.phase, strict=True)
        )
        dtype = tuple("bf16" if type == COMPUTE else old for type, old in zip(ops.type, ops.dtype, strict=True))
        classes.append(replace(each, ops=replace(ops, phase=phase, dtype=dtype)))
    return replace(made, classes=tuple(classes))


def test_figures_of_merit_follow_from_flops_and_time() -> None:
    job = computing(tp=2, dp=2, pp=2, microbatches=4)
    found = profile_job(job, PLAIN)
    merit = found.merit
    runs = [
        (int(columns.ops.flops[op]) * int(spent.ops.runs[op]) * lane.ranks, columns.ops.phase[op])
        for lane, columns, spent in zip(
            found.times.network.lanes, found.times.network.columns, found.times.lanes, strict=True
        )
        for op in range(len(columns.ops))
    ]
    whole, again = sum(flops for flops, _ in runs), sum(flops for flops, phase in runs if phase == "recompute")
    assert (merit.hardware_flops, merit.model_flops) == (whole, whole - again)
    assert 0 < again < whole
    # One TFLOP/s is a thousand FLOPs a nanosecond.
    assert merit.hfu == float(Fraction(whole, 1000 * found.step * 8))
    assert merit.mfu == float(Fraction(whole - again, 1000 * found.step * 8))
    assert (merit.dtype, merit.peak, merit.world) == ("bf16", 1e12, 8)
    assert merit.tokens_per_second == pytest.approx(merit.tokens * 1e9 / found.step)
    assert merit.tokens_per_second_per_accelerator == pytest.approx(merit.tokens * 1e9 / found.step / 8)


def test_every_lanes_time_adds_up_to_the_step() -> None:
    found = profile_job(computing(tp=2, dp=2, pp=3, microbatches=4), PLAIN)
    for lane in found.times.lanes:
        assert lane.busy + lane.exposed + lane.bubble + lane.idle == found.step


def test_the_gain_of_a_scaling_is_what_the_step_gets_shorter() -> None:
    job = computing(tp=2, dp=1, pp=2, microbatches=2)
    plain, fast = profile_job(job, PLAIN), profile_job(job, PLAIN, scalings=[Scaling.parse("compute=0.5")])
    assert (plain.gain, fast.unscaled) == (0, plain.step)
    assert fast.gain == plain.step - fast.step > 0
    assert fast.merit.mfu is not None and plain.merit.mfu is not None and fast.merit.mfu > plain.merit.mfu


def test_a_scaling_given_twice_counts_twice() -> None:
    made, half, quarter = workload(), Scaling.parse("collective:tp=0.5"), Scaling.parse("collective:tp=0.25")
    assert profile_job(made, PLAIN, scalings=[half, half]).step == profile_job(made, PLAIN, scalings=[quarter]).step


@pytest.mark.parametrize(
    ("ns", "scalings", "reason"),
    [
        (10**30, (), "takes more than 36 years"),
        (10**400, (), "takes more than 36 years"),
        (10**18, (), "on 8 ranks is longer than stagedb counts"),
        (10**15, ("compute=999999",), "takes more than 36 years"),
    ],
)
def test_a_step_that_is_too_long_to_count_is_refused(ns: int, scalings: tuple[str, ...], reason: str) -> None:
    made = workload()
    kind = next(iter(made.classes[0].ops.kind))
    measured = Durations([Measured(ns=Fraction(ns), where="line 2", kind=kind)])
    with pytest.raises(UsageError, match=reason):
        profile_job(made, PLAIN, measured, [Scaling.parse(each) for each in scalings])


def test_what_blocks_is_waited_for_and_goes_with_scalings_and_measured_durations() -> None:
    job = instance(**PLANS["scattered"])
    plain = load_system("h100")
    # On one stream, too, a rank waits for some axes and not for others.
    for streams in ("axis", "one"):
        system = replace(plain, overlap=Overlap(streams=streams))
        free, messages, both = (profile_job(job, system, blocking=axes) for axes in ("", "pp", " pp, tp,pp"))
        assert free.step < messages.step < both.step
        assert (free.blocking, messages.blocking, both.blocking) == ((), ("pp",), ("tp", "pp"))
        for lane in both.times.lanes:
            assert lane.busy + lane.exposed + lane.bubble + lane.idle == both.step
        halved = profile_job(job, system, scalings=[Scaling.parse("send=0")], blocking=("tp", "pp"))
        assert halved.unscaled == both.step
        assert halved.gain == both.step - halved.step > 0
        # What takes no time is not waited for.
        assert halved.step == profile_job(job, system, scalings=[Scaling.parse("send=0")], blocking="tp").step
        slow = Durations((Measured("slow", Fraction(10**6), kind="send"),))
        late = [profile_job(job, system, slow, blocking=axes).step for axes in ((), ("pp",))]
        assert both.step < late[0] < late[1]


def test_a_step_of_too_many_operators_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    made = computing(tp=2, dp=2, pp=2, microbatches=4)
    nodes = len(profile_job(made, PLAIN).times.network)
    monkeypatch.setattr("stagedb.timing.node_graph.MOST_NODES", nodes)
    profile_job(made, PLAIN)
    monkeypatch.setattr("stagedb.timing.node_graph.MOST_NODES", nodes - 1)
    # Nothing has been made for each operator by then: of a hundred million that takes more memory than there is.
    monkeypatch.delattr("stagedb.timing.node_graph._Part.of")
    with pytest.raises(UsageError, match=rf"a step of {nodes} operators .* take fewer micro-batches"):
        profile_job(made, PLAIN)


def test_what_cannot_block_is_refused() -> None:
    job = computing(tp=2, dp=1, pp=2, microbatches=2)
    with pytest.raises(UsageError, match=r"unknown axis 'x': --blocking takes axes .* tp, kv, cp, .*pp, embedding"):
        profile_job(job, PLAIN, blocking="tp,x")
    with pytest.raises(UsageError, match=r"--blocking needs a system that runs in-order \(overlap.compute\)"):
        profile_job(job, replace(PLAIN, overlap=Overlap(compute="out-of-order")), blocking="tp")
    # A framework waits for an axis whether a job has it or not.
    assert profile_job(job, PLAIN, blocking="cp").step == profile_job(job, PLAIN).step


def test_an_infinite_peak_has_no_utilization() -> None:
    accelerator = load_system("h100").accelerator
    peak = {**accelerator.peak, "bf16": float("inf")}
    system: System = replace(load_system("h100"), accelerator=replace(accelerator, peak=peak))
    assert profile_job(computing(tp=2, dp=1, pp=1, microbatches=1), system).merit.mfu is None


def test_all_wait_for_what_the_fullest_experts_take_in() -> None:
    even = {"style": "moe", "dp": 4, "ep": 4, "recipe": "megatron"}
    job = {}
    for name, load in (("even", ()), ("uneven", (4, 2, 1, 1))):
        rows = instance(**even, **({"expert_load": load} if load else {}))
        job[name] = profile_job(rows, load_system("h100"))
    took: dict[tuple[str, str], set[int]] = {}
    for name, found in job.items():
        for columns, times in zip(found.times.network.columns, found.times.lanes, strict=True):
            for op, text in enumerate(columns.ops.name):
                if text.endswith("dispatch.all_to_all.ep"):
                    took.setdefault((name, text), set()).add(int(times.ops.time[op]))
                    assert columns.ops.size[op] > 0
    for (name, text), times_ in took.items():
        assert len(times_) == 1, (name, text)  # ranks of a group end together
    for _, text in [key for key in took if key[0] == "even"]:
        assert min(took["uneven", text]) > max(took["even", text])


def test_experts_with_uneven_loads_take_the_time_of_their_mean() -> None:
    """Six experts, some with 5,462 tokens and some with 5,461, are as fast as if all had the same number."""
    costs = Costs(load_system("h100"), 8)
    rows, sides = 5462, (2048, 7168)

    def took(flops: int) -> int:
        return costs.work(Work("matmul", "bf16", flops, 10**9, (6, rows, *sides), grouped=True)).ns

    full = 2 * 6 * rows * math.prod(sides)
    assert took(full * 32768 // (6 * rows)) == pytest.approx(took(full), rel=1e-3)
    assert took(full // 2) < 0.7 * took(full)


@pytest.mark.parametrize("load", [(), (4, 2, 1, 1)])
def test_what_is_sent_to_experts_comes_back(load: tuple[int, ...]) -> None:
    """A rank sends back what its experts received: all ranks together as much as they sent there, in the same time."""
    words = {"style": "moe", "dp": 4, "ep": 4, "recipe": "megatron"}
    rows = instance(**words, **({"expert_load": load} if load else {}))
    job = profile_job(rows, load_system("h100"))
    sent: Counter[str] = Counter()
    took: dict[str, set[int]] = {}
    for lane, columns, durations in zip(
        job.times.network.lanes, job.times.network.columns, job.durations.lanes, strict=True
    ):
        for op, name in enumerate(columns.ops.name):
            if columns.ops.axis[op] == "ep" and columns.ops.phase[op] == "forward":
                way = "there" if ".dispatch." in name else "back"
                sent[way] += lane.ranks * sum(size for _, size in durations.wires[op])
                took.setdefault(way, set()).add(int(durations.ns[op]))
    assert sent["there"] == sent["back"] > 0
    assert max(took["there"]) == max(took["back"])
