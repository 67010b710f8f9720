"""Experts with everything else: context parallelism, uneven loads, pipelines, sharding; and what a load costs."""

import dataclasses
import functools
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagedb.errors import UsageError
from stagedb.graphs.model_graph import build_graph
from stagedb.ir.expressions import evaluate
from stagedb.plans import GraphOptions, Plan, plan_for
from stagedb.schedules import SCHEDULES
from tests.ir.environments import environment
from tests.ir.tiny import card
from tests.sampling import examples
from tests.semantics.running import Example, example, pipeline
from tests.semantics.step import Run, run
from tests.semantics.test_experts import assert_same
from tests.symbolic_rows import communication
from tests.symbolic_rows import flops as flops_of

EVEN: tuple[int, ...] = ()
LOADS = [EVEN, (2, 1, 1, 0), (0, 0, 2, 2), (1, 0, 1, 2), (3, 0, 1, 4)]
"""How many of four or eight choices in a row go to each expert; a token may choose one twice here."""


@functools.lru_cache(maxsize=64)
def case(style: str, options: GraphOptions, load: tuple[int, ...]) -> tuple[Example, Example, Run]:
    model = card(style, layers=4)
    plain = dataclasses.replace(options, zero=0, recompute="none", cp_kind="none")
    whole = dataclasses.replace(example(build_graph(model, plain), microbatches=2), load=load)
    some = dataclasses.replace(example(build_graph(model, options), microbatches=2), load=load)
    return some, whole, whole.run_whole()


@settings(max_examples=examples(50), deadline=None)
@given(
    style=st.sampled_from(["moe", "deepseek"]),
    recipe=st.sampled_from(["torch", "megatron"]),
    kind=st.sampled_from(
        ["none", "allgather-kv", "ulysses", "ring-allgather", "ring-alltoall", "ring-p2p", "ulysses-ring"]
    ),
    sp=st.booleans(),
    expert_tp=st.booleans(),
    zero=st.sampled_from([0, 1, 2, 3]),
    recompute=st.sampled_from(["none", "full"]),
    load=st.sampled_from(LOADS),
    degrees=st.sampled_from(
        [(1, 2, 1, 2), (2, 2, 1, 2), (2, 2, 1, 4), (2, 2, 2, 4), (4, 1, 2, 2), (4, 2, 1, 4), (1, 4, 1, 2), (1, 4, 1, 4)]
    ),
    schedule=st.sampled_from(["none", *(name for name, each in SCHEDULES.items() if not each.fewest)]),
)
def test_experts_compute_the_same_in_every_product(
    style: str,
    recipe: Any,
    kind: Any,
    sp: bool,
    expert_tp: bool,
    zero: Any,
    recompute: Any,
    load: tuple[int, ...],
    degrees: tuple[int, int, int, int],
    schedule: str,
) -> None:
    dp, cp, tp, ep = degrees
    if cp == 1:
        kind = "none"
    elif kind == "ulysses-ring" and cp < 4:
        kind = "ring-p2p"
    elif (
        kind == "none"
        or (recipe == "megatron" and kind in ("ring-allgather", "ring-alltoall"))
        or (kind == "ulysses" and tp * cp > (4 if recipe == "torch" else 2))
    ):
        kind = "allgather-kv"
    near = 2 if kind == "ulysses-ring" else 1
    if recipe == "megatron" and zero == 2:
        zero = 3
    if sum(load) > 4 and ((tp > 1 and sp) or cp > 2):
        load = EVEN  # a rank has four choices of a sequence
    options = GraphOptions(recipe=recipe, sp=sp, expert_tp=expert_tp, zero=zero, recompute=recompute, cp_kind=kind)
    some, plain, whole = case(style, options, load)
    if schedule == "none":
        some = dataclasses.replace(some, tokens=some.tokens[:4], labels=some.labels[:4])
        whole = dataclasses.replace(plain, tokens=some.tokens, labels=some.labels).run_whole()
        assert_same(some.run(dp=dp, cp=cp, tp=tp, ep=ep, cpa=near), whole)
        return
    chunks = 2 if SCHEDULES[schedule].several_chunks else 1
    layers = (1,) * 4 if chunks == 2 else (1, 3)
    plan = pipeline(some.graph, schedule, layers, 2, chunks)
    assert_same(some.run_pipelined(plan, dp=dp, cp=cp, tp=tp, ep=ep, cpa=near), whole)


COPIES = [
    (GraphOptions(zero=3), (4, 1, 1, 2, 2)),
    (GraphOptions(zero=2, sp=True), (4, 1, 2, 2, 2)),
    (GraphOptions(zero=3, cp_kind="allgather-kv"), (4, 2, 1, 2, 2)),
    (GraphOptions(zero=3, sp=True, expert_tp=False), (4, 1, 2, 2, 2)),
    (GraphOptions(zero=3, sp=True, expert_tp=False), (2, 1, 2, 2, 2)),
    # Two ranks share one expert, and cut it along its second axis.
    (GraphOptions(zero=3, cp_kind="allgather-kv"), (4, 2, 1, 4, 1)),
    (GraphOptions(zero=2, cp_kind="allgather-kv", grad_sync=False), (4, 2, 1, 4, 1)),
    (GraphOptions(recipe="megatron", zero=3, cp_kind="allgather-kv"), (4, 2, 1, 4, 1)),
    (GraphOptions(recipe="megatron", zero=1), (4, 1, 2, 2, 2)),
    (GraphOptions(recipe="megatron", zero=3, sp=True, expert_tp=False), (4, 1, 2, 4, 2)),
]
"""Options, and degrees dp, cp, tp, ep, hsdp."""


@pytest.mark.parametrize("load", [EVEN, (2, 1, 1, 0)])
@pytest.mark.parametrize(("options", "degrees"), COPIES)
def test_copies_of_parts_with_divided_experts_compute_the_same(
    options: GraphOptions, degrees: tuple[int, int, int, int, int], load: tuple[int, ...]
) -> None:
    dp, cp, tp, ep, hsdp = degrees
    some, plain, _ = case("moe", options, load)
    some = dataclasses.replace(some, tokens=some.tokens[:4], labels=some.labels[:4])
    whole = dataclasses.replace(plain, tokens=some.tokens, labels=some.labels).run_whole()
    assert_same(some.run(dp=dp, cp=cp, tp=tp, ep=ep, hsdp=hsdp), whole)
    names = ["bucket.gradients.scatter.experts", "bucket.gradients.replicas.experts", "bucket.gradients.replicas.dense"]
    env = environment(some.graph, dp, tp, hsdp, cp=cp, ep=ep)
    for name in names:
        (bucket,) = [op for op in some.graph.ops if op.name == name]
        if evaluate(bucket.present or "1", env) <= 0:
            continue
        ops = tuple(dataclasses.replace(op, present="0") if op.name == name else op for op in some.graph.ops)
        wrong = dataclasses.replace(some, graph=dataclasses.replace(some.graph, ops=ops))
        with pytest.raises((AssertionError, ValueError)):
            assert_same(wrong.run(dp=dp, cp=cp, tp=tp, ep=ep, hsdp=hsdp), whole)


@pytest.mark.parametrize("load", [load for load in LOADS if load])
def test_a_load_changes_what_is_computed_where_and_not_how_much(load: tuple[int, ...]) -> None:
    """The sum over ranks of experts' FLOPs is that of all routed tokens; a rank's share is that of its experts."""
    graph = build_graph(card("moe"), GraphOptions())
    ranks = [environment(graph, dp=4, ep=2, load=load, ep_rank=rank) for rank in range(2)]
    of_experts = [op for op in graph.ops if ".experts." in op.name]
    flops = [sum(evaluate(flops_of(op), env) for op in of_experts) for env in ranks]
    routed = ranks[0]["B"] * ranks[0]["S"] * ranks[0]["K"]
    assert 2 * sum(flops) == 3 * routed * 2 * 3 * ranks[0]["H"] * ranks[0]["FE"]
    shares = [Fraction(sum(load[at : at + 2]), sum(load)) for at in (0, 2)]
    assert [Fraction(each, sum(flops)) for each in flops] == shares


def test_tokens_travel_as_experts_are_chosen() -> None:
    """They leave their ranks in equal parts, and come back from each rank of ep in as many as it has received."""
    graph = build_graph(card("moe"), GraphOptions())
    ranks = [environment(graph, dp=2, ep=2, load=(2, 1, 1, 0), ep_rank=rank) for rank in range(2)]
    own = ranks[0]["B"] // 2 * ranks[0]["S"] * ranks[0]["K"] * ranks[0]["H"] * 2
    moves = [op for op in graph.ops if op.axis == "ep" and op.block == "layer"]
    sizes = {
        (
            str(op.template),
            *(
                evaluate(text, env)
                for text in (communication(op).comm_bytes, communication(op).comm_out_bytes)
                for env in ranks
            ),
        )
        for op in moves
    }
    fullest, other = own * 3 // 2, own // 2
    sent = {("forward", own, own, fullest, other), ("forward", fullest, other, own, own)}
    assert sizes == sent | {("input_gradient", *rest) for _, *rest in sent}


@pytest.mark.parametrize("load", [load for load in LOADS[1:] if sum(load) == 4])
def test_with_a_capacity_a_load_changes_no_size(load: tuple[int, ...]) -> None:
    """Why the two are refused together: with slots for all, any choice runs in the sizes of even ones.

    The simulated ranks compare the array of every tensor with the sizes that the graph has for a capacity factor alone.
    """
    some, _, _ = case("moe", GraphOptions(), load)
    plain = dataclasses.replace(some, tokens=some.tokens[:4], labels=some.labels[:4])
    whole = plain.run_whole()
    for dp, ep in ((1, 1), (2, 2), (4, 2)):
        env = environment(some.graph, dp=dp, ep=ep) | {"capacity": 2, "per": 1}
        found = run(some.graph, env, some.weights, plain.tokens, plain.labels, expert_load=load)
        assert_same(found, whole)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (
            {"expert_load": (1, 2, 1)},
            r"has values for 3 experts, the model has 4: give it 4 whole numbers",
        ),
        ({"expert_load": (1, 1, 1)}, r"has values for 3 experts, the model has 4: give it 4 whole numbers"),
        (
            {"expert_load": (2, 1, 1, 1)},
            r"sums to 5, which does not divide the 16 routed tokens of a rank .*the sum 16",
        ),
        ({"expert_load": (3, 1, 0, 0)}, r"3 of 4 choices to expert 0: .* one expert gets at most 2"),
        ({"expert_load": (2, -1, 1, 2)}, r"is 2, -1, 1, 2: .* none below 0"),
        ({"expert_load": (0, 0, 0, 0)}, r"not all 0"),
        ({"expert_load": (2, 1, 1, 0), "capacity_factor": 1.0}, r"leave --capacity-factor out, or leave --expert"),
    ],
)
def test_a_load_that_does_not_suit_is_refused(words: dict[str, Any], reason: str) -> None:
    sizes = build_graph(card("moe"), GraphOptions()).sizes
    Plan(dp=4, ep=2, seq_len=8, expert_load=(2, 1, 1, 0)).check(sizes)
    Plan(dp=4, ep=2, seq_len=8, expert_load=(4, 8, 4, 0)).check(sizes)
    with pytest.raises(UsageError, match=reason):
        Plan(**{"seq_len": 8, **words}).check(sizes)


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("load.yaml", "- 1\n- two\n", "the load of expert 1 is 'two'"),
        ("load.yaml", "[1, 2", "load.yaml, line [12]: "),
        ("load.json", "{}", "is no list"),
        ("load.yaml", "!!python/object/apply:os.system ['true']", "load.yaml, line [12]: "),
    ],
)
def test_a_file_that_holds_no_load_is_refused(tmp_path: Any, name: str, text: str, reason: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(UsageError, match=reason):
        Plan.from_mapping({"expert_load": str(path)})
    path.write_text("[2, 1, 1, 0]")
    assert Plan.from_mapping({"expert_load": str(path)}).expert_load == (2, 1, 1, 0)
    assert Plan.from_mapping({"expert-load": "2,1,1,0"}).expert_load == (2, 1, 1, 0)
    for text, item in (("1,x", "x"), ("0.5,--1", "--1"), ("1,nan", "nan"), ("0.5,", "")):
        with pytest.raises(UsageError, match=f"of shares, not .*: '{item}' is neither"):
            Plan.from_mapping({"expert-load": text})
    with pytest.raises(UsageError, match="cannot read the load of experts"):
        Plan.from_mapping({"expert_load": str(tmp_path / "none.yaml")})


SHARES = {"L": 2, "H": 8, "A": 2, "KV": 2, "D": 4, "F": 8, "V": 16, "E": 4, "K": 2, "FE": 8}


@pytest.mark.parametrize(
    ("shares", "load"),
    [
        ("0.3,0.1,0.2,0.4", (19, 6, 13, 26)),  # of 64 choices: 19.2, 6.4, 12.8, 25.6, with the largest remainders up
        ([0.3, 0.1, 0.2, 0.4], (19, 6, 13, 26)),
        ("1.2,0.4,0.8,1.6", (19, 6, 13, 26)),  # multiples of the even share are shares too
        ("0.333,0.333,0.167,0.167", (21, 21, 11, 11)),
        ("0.5,0.5,0.0,0.0", (1, 1, 0, 0)),
        ([0.49999, 0.49999, 0.00001, 0.00001], (1, 1, 0, 0)),
        ("0.25,0.25,0.25,0.25", (1, 1, 1, 1)),
        ("2,1,1,0", (2, 1, 1, 0)),
    ],
)
def test_shares_of_experts_are_the_nearest_whole_choices_of_a_rank(shares: Any, load: tuple[int, ...]) -> None:
    words = {"expert_load": shares, "dp": 2, "ep": 2, "seq_len": 32}
    assert plan_for(words, SHARES).expert_load == load
    assert Plan.from_mapping({"expert_load": "0.3,0.1,0.2,0.4"}).expert_load == (3, 1, 2, 4)
    assert Plan.from_mapping({"expert_load": ".3,.1,.2,.4"}).expert_load == (3, 1, 2, 4)


def test_a_file_has_shares_too(tmp_path: Any) -> None:
    for name, text in (("load.yaml", "- 0.3\n- 0.1\n- 0.2\n- 0.4\n"), ("load.json", "[0.3, 0.1, 0.2, 0.4]")):
        path = tmp_path / name
        path.write_text(text)
        words = {"expert_load": str(path), "dp": 2, "ep": 2, "seq_len": 32}
        assert plan_for(words, SHARES).expert_load == (19, 6, 13, 26)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ({"expert_load": "0.5,0.25,0.25"}, "has values for 3 experts, the model has 4"),
        ({"expert_load": "0.6,0.2,0.1,0.1"}, "6 of 10 choices to expert 0: .* one expert gets at most 5"),
        ({"expert_load": "0.5,-0.5,0.5,0.5"}, "none below 0"),
        ({"expert_load": "0.0,0.0,0.0,0.0"}, "not all 0"),
        ({"expert_load": "0.3,0.1,0.2,0.4", "capacity_factor": 1.0}, "leave --expert-load out"),
    ],
)
def test_shares_that_no_model_can_have_are_refused(words: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        plan_for({**words, "dp": 2, "seq_len": 32}, SHARES)


def test_one_load_in_other_words_is_one_plan() -> None:
    digests = [Plan(expert_load=load).digest for load in ((), (1,) * 8, (3,) * 8, (2, 1) * 4, (4, 2) * 4)]
    assert len(set(digests[:3])) == 1
    assert digests[3] == digests[4] != digests[0]
    assert Plan(expert_load=(4, 2)).expert_load == (2, 1)


@pytest.mark.parametrize("ep", [1, 2, 4])
def test_ranks_of_tp_that_share_no_tokens_compute_each_once(ep: int) -> None:
    """FLOPs of experts on all ranks are those of all routed tokens; without sp every rank of tp would do them all."""
    graph = build_graph(card("moe"), GraphOptions(sp=True, expert_tp=False))
    plan = Plan(options=GraphOptions(sp=True, expert_tp=False), dp=2, tp=2, ep=ep, micro_batch_size=2, seq_len=8)
    plan.check(graph.sizes)
    env = plan.env(graph.sizes)
    flops = sum(evaluate(flops_of(op), env) for op in graph.ops if ".experts." in op.name)
    routed = env["B"] * env["S"] * env["K"]
    assert plan.world * flops == 3 * routed * 2 * 3 * env["H"] * env["FE"]
    with pytest.raises(
        UsageError, match="the same tokens, as no step of training does: take --sp, or leave --no-expert-tp out"
    ):
        Plan(options=GraphOptions(expert_tp=False), dp=4, tp=2, ep=ep, seq_len=8).check(graph.sizes)
    Plan(options=GraphOptions(expert_tp=False), dp=4, ep=ep, seq_len=8).check(graph.sizes)
