"""Meshes and groups: a bijection of ranks and coordinates, and groups that partition the world."""

from collections import Counter
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagedb.errors import UsageError
from stagedb.plans.graph_options import GraphOptions
from stagedb.plans.mesh import GROUP_AXES, Mesh, first_id, groups, members
from stagedb.plans.plan import Plan
from stagedb.plans.written_words import RANK_ORDER

plans = st.builds(
    Plan,
    dp=st.integers(1, 5),
    tp=st.integers(1, 6),
    pp=st.integers(1, 5),
    rank_order=st.sampled_from(list(permutations(RANK_ORDER))),
)


@given(plans)
def test_rank_and_coordinates_are_a_bijection(plan: Plan) -> None:
    mesh = Mesh.of(plan)
    assert mesh.world == plan.world
    for rank in range(mesh.world):
        assert mesh.rank(**mesh.coordinates(rank)) == rank


@given(plans, st.integers(1, 6))
def test_groups_hold_the_ranks_that_differ_along_their_axis_only(plan: Plan, kv_heads: int) -> None:
    mesh = Mesh.of(plan)
    for made in groups(plan, kv_heads, ("tp", "dp", "pp")):
        members = [tuple(made.ranks(index)) for index in range(made.count)]
        assert sorted(rank for group in members for rank in group) == list(range(mesh.world))
        for index, group in enumerate(members):
            assert len(group) == mesh.size(made.axis) > 1
            assert [mesh.coordinates(rank)[made.axis] for rank in group] == list(range(len(group)))
            others = {tuple(v for k, v in mesh.coordinates(rank).items() if k != made.axis) for rank in group}
            assert len(others) == 1
            assert [made.index_of(rank) for rank in group] == [index] * len(group)


@given(plans, st.integers(1, 6))
def test_ids_are_consecutive_and_equally_long(plan: Plan, kv_heads: int) -> None:
    made = groups(plan, kv_heads, ("tp", "kv", "dp", "pp", "embedding"))
    ids = [axis.first + index for axis in made for index in range(axis.count)]
    assert ids == list(range(ids[0], ids[0] + len(ids))) if ids else True
    assert len({len(str(gid)) for gid in ids}) <= 1
    assert all(gid >= 1 for gid in ids)


@pytest.mark.parametrize(("count", "first"), [(0, 1), (9, 1), (10, 10), (90, 10), (91, 100), (900, 100), (901, 1000)])
def test_first_id(count: int, first: int) -> None:
    assert first_id(count) == first


def test_tp_is_innermost_and_pp_outermost() -> None:
    tp, dp = groups(Plan(dp=2, tp=2, pp=2), 8, ("tp", "dp"))
    assert [list(tp.ranks(index)) for index in range(tp.count)] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert [list(dp.ranks(index)) for index in range(dp.count)] == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert (tp.first, dp.first) == (1, 5)


def test_embedding_groups_are_the_ends_of_each_pipeline() -> None:
    (made,) = groups(Plan(tp=2, pp=4), 8, ("embedding",))
    assert [list(made.ranks(index)) for index in range(made.count)] == [[0, 6], [1, 7]]
    assert [made.index_of(rank) for rank in range(8)] == [0, 1, None, None, None, None, 0, 1]


def test_kv_groups_are_the_neighbours_that_share_a_head() -> None:
    (made,) = groups(Plan(tp=8, dp=2), 4, ("kv",))
    assert [list(made.ranks(index)) for index in range(made.count)] == [[r, r + 1] for r in range(0, 16, 2)]
    (strided,) = groups(Plan(tp=4, dp=2, rank_order=("dp", "tp", "cp", "pp")), 2, ("kv",))
    assert [list(strided.ranks(index)) for index in range(strided.count)] == [[0, 2], [1, 3], [4, 6], [5, 7]]


@pytest.mark.parametrize("hsdp", [1, 2])
@pytest.mark.parametrize("order", [("tp", "cp", "dp", "pp"), ("pp", "cp", "dp", "tp")])
def test_the_ranks_of_dp_alone_have_groups_of_their_own(order: tuple[str, ...], hsdp: int) -> None:
    plan = Plan(GraphOptions(zero=3 if hsdp > 1 else 0), dp=4, cp=2, tp=2, hsdp=hsdp, rank_order=order)
    mesh = Mesh.of(plan)
    data, shared = groups(plan, 8, ("data", "dp"))
    for made, expected in ((data, {"dp": 4, "cp": 1}), (shared, {"dp": 4 // hsdp, "cp": 2})):
        for rank in range(plan.world):
            index = made.index_of(rank)
            assert index is not None
            members = [mesh.coordinates(other) for other in made.ranks(index)]
            assert mesh.coordinates(rank) in members
            for axis in ("dp", "cp", "tp"):
                assert len({each[axis] for each in members}) == expected.get(axis, 1)


@pytest.mark.parametrize(
    ("words", "order"),
    [
        ({"dp": 8, "ep": 2}, ("tp", "cp", "dp", "pp")),
        ({"dp": 4, "cp": 2, "ep": 4}, ("tp", "cp", "dp", "pp")),
        ({"dp": 4, "cp": 2, "ep": 2, "tp": 2}, ("pp", "cp", "dp", "tp")),
        ({"dp": 4, "cp": 2, "ep": 8, "tp": 2, "sp": True, "expert_tp": False}, ("tp", "cp", "dp", "pp")),
        ({"dp": 4, "ep": 2, "tp": 2, "sp": True, "expert_tp": False}, ("tp", "cp", "dp", "pp")),
    ],
)
def test_copies_share_experts_as_they_share_other_weights(words: dict[str, object], order: tuple[str, ...]) -> None:
    """A copy is a block of the ranks of experts: in it each expert is on as many ranks, at the same places."""
    plan = Plan.from_mapping({"zero": 3, "hsdp": 2, "pp": 2, "rank_order": order, **words})
    mesh = Mesh.of(plan)
    inner = [axis for axis in order if axis in ("cp", "dp") or (axis == "tp" and words.get("expert_tp") is False)]
    fixed = [axis for axis in order if axis not in inner]

    def place(rank: int) -> tuple[int, int, tuple[int, ...]]:
        """The copy, the experts of a rank, and where it is on axes that experts are not spread over."""
        at, number, scale = mesh.coordinates(rank), 0, 1
        for axis in inner:
            number, scale = number + at[axis] * scale, scale * mesh.size(axis)
        return at["dp"] // (plan.dp // 2), number % plan.ep, tuple(at[axis] for axis in fixed)

    made = {each.axis: each for each in groups(plan, 8, GROUP_AXES)}
    alike, across, among = (made.get(axis) for axis in ("edp", "dp_replicate", "ep"))
    assert across is not None
    assert among is not None
    for rank in range(plan.world):
        mine = place(rank)
        expected = [other for other in range(plan.world) if place(other) == mine]
        if alike is None:
            assert expected == [rank]
        else:
            assert list(alike.ranks(alike.index_of(rank) or 0)) == expected
        assert {place(other)[1:] for other in across.ranks(across.index_of(rank) or 0)} == {mine[1:]}
        assert {place(other)[0] for other in across.ranks(across.index_of(rank) or 0)} == {0, 1}
        assert {place(other)[0::2] for other in among.ranks(among.index_of(rank) or 0)} == {mine[0::2]}
        assert len({place(other)[1] for other in among.ranks(among.index_of(rank) or 0)}) == plan.ep


def test_neighbours_on_cp_and_the_places_of_their_ring_make_cp() -> None:
    plan = Plan(cp=6, ulysses=2, tp=2)
    near, ring = groups(plan, 8, ("cpa", "cpr"))
    assert (near.axis, list(near.ranks(0)), ring.axis, list(ring.ranks(0))) == ("cpr", [0, 4, 8], "cpa", [0, 2])
    assert [ring.index_of(rank) for rank in (0, 2, 4)] == [0, 0, 2]


def test_no_group_of_one_and_none_that_is_not_wanted() -> None:
    assert groups(Plan(dp=2, tp=1, pp=2), 8, ("tp", "kv", "embedding")) != ()
    assert [made.axis for made in groups(Plan(dp=2, tp=1, pp=2), 8, ("tp", "kv", "embedding"))] == ["embedding"]
    assert groups(Plan(tp=8), 8, ("kv", "dp", "pp")) == ()


@given(
    st.sampled_from([(2, 2), (4, 2), (4, 4), (6, 3), (8, 2)]),
    st.integers(1, 3),
    st.integers(1, 3),
    st.sampled_from(list(permutations(RANK_ORDER))),
)
def test_whole_experts_are_divided_among_neighbours_along_tp_cp_and_dp(
    degrees: tuple[int, int], tp: int, pp: int, order: tuple[str, ...]
) -> None:
    """Groups on ep and edp are rows and columns of the ranks of a stage; where pp parts those, it is refused."""
    dp, ep = degrees
    words = {"dp": dp, "ep": ep, "tp": tp, "pp": pp, "rank_order": order}
    between = tp > 1 and pp > 1 and 0 < sorted(("tp", "dp", "pp"), key=order.index).index("pp") < 2
    options = GraphOptions(sp=True, expert_tp=False)
    if between:
        with pytest.raises(UsageError, match="puts pp among tp, cp and dp"):
            Plan(options=options, **words)  # type: ignore[arg-type]
        return
    plan = Plan(options=options, **words)  # type: ignore[arg-type]
    mesh = Mesh.of(plan)
    found = {made.axis: made for made in groups(plan, 8, ("ep", "edp"))}
    assert set(found) == {"ep", "edp"} if dp * tp > ep else {"ep"}
    for rank in range(plan.world):
        stage = [other for other in range(plan.world) if mesh.coordinates(other)["pp"] == mesh.coordinates(rank)["pp"]]
        at = stage.index(rank)
        places = {"ep": stage[at // ep * ep : at // ep * ep + ep], "edp": stage[at % ep :: ep]}
        for axis, made in found.items():
            index = made.index_of(rank)
            assert index is not None
            assert list(made.ranks(index)) == places[axis]
    assert sum(members(plan).values()) == dp * tp


@given(
    st.sampled_from([(2, 2), (4, 2), (4, 4), (6, 3), (8, 2)]),
    st.integers(1, 3),
    st.integers(1, 3),
    st.sampled_from(list(permutations(RANK_ORDER))),
)
def test_experts_are_divided_among_neighbours_along_dp(
    degrees: tuple[int, int], tp: int, pp: int, order: tuple[str, ...]
) -> None:
    """A rank's group on ep is of consecutive places on dp, that on edp of every ep-th: together they make dp."""
    dp, ep = degrees
    plan = Plan(dp=dp, ep=ep, tp=tp, pp=pp, rank_order=order)
    mesh = Mesh.of(plan)
    found = {made.axis: made for made in groups(plan, 8, ("ep", "edp"))}
    assert set(found) == {"ep", "edp"} if dp > ep else {"ep"}
    for rank in range(plan.world):
        here = mesh.coordinates(rank)
        places = {"ep": [here["dp"] // ep * ep + i for i in range(ep)], "edp": list(range(here["dp"] % ep, dp, ep))}
        for axis, made in found.items():
            index = made.index_of(rank)
            assert index is not None
            assert [mesh.coordinates(other) for other in made.ranks(index)] == [
                {**here, "dp": place} for place in places[axis]
            ]


@pytest.mark.parametrize("words", [{}, {"expert_tp": False}])
@pytest.mark.parametrize("order", [("tp", "cp", "dp"), ("tp", "dp", "cp"), ("cp", "dp", "tp"), ("dp", "cp", "tp")])
def test_coordinates_of_members_are_those_of_each_rank(order: tuple[str, ...], words: dict[str, object]) -> None:
    for tp, cp, dp, ep in [(2, 3, 4, 2), (2, 2, 6, 4), (1, 1, 12, 3), (3, 4, 2, 8), (2, 1, 8, 8)]:
        degrees = {"tp": tp, "cp": cp, "dp": dp, "ep": ep, "global_batch_size": dp, "seq_len": 4096 * 3}
        plan = Plan.from_mapping({**degrees, "rank_order": [*order, "pp"], **words})
        axes = sorted(plan.expert_axes, key=plan.rank_order.index)
        mesh = Mesh(tuple((axis, getattr(plan, axis)) for axis in axes))
        alike = 1 if "tp" in axes else tp
        found = Counter((mesh.coordinates(rank)["cp"], rank % ep, 0) for rank in range(mesh.world))
        assert members(plan) == {member: count * alike for member, count in found.items()}
