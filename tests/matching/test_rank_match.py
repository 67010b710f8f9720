"""Ops without shapes, as those of a graph that is replayed, are known by their kinds and places."""

from collections.abc import Sequence

import pytest

from stagedb.runs.rank_match import ATTENTION, MATMUL, Known, PlannedOp, RankMatch, SeenOp, match_rank

Dims = tuple[int, ...] | None

PLANNED = (
    (MATMUL, (32, 5120, 2880)),
    (ATTENTION, (32, 64, 8, 1, 1721, 64)),
    (MATMUL, (32, 2880, 4096)),
    (MATMUL, (32, 32, 2880)),
    (MATMUL, (32, 2880, 5760)),
)


def matched(seen: Sequence[tuple[str, Dims]]) -> RankMatch:
    planned = [PlannedOp(at, 0, kind, f"op {at}", 0, "forward", dims) for at, (kind, dims) in enumerate(PLANNED)]
    ops = [
        SeenOp(at, kind, dims, None, None, "bf16", False, f"kernel {at}", "forward", None, 10 * at, 10 * at + 9)
        for at, (kind, dims) in enumerate(seen)
    ]
    return match_rank(planned, ops, Known.of(ops))


@pytest.mark.parametrize("shaped", [range(0), range(4, 5), range(2), range(1, 5), range(5)], ids=str)
def test_what_has_no_shape_is_known_by_its_kind(shaped: range) -> None:
    found = matched([(kind, dims if at in shaped else None) for at, (kind, dims) in enumerate(PLANNED)])
    assert [(each.planned, each.seen) for each in found.pairs] == [(at, at) for at in range(len(PLANNED))]
    assert len(found.matched) == len(PLANNED) and not found.missing and not found.extra


@pytest.mark.parametrize("shaped", [range(4, 5), range(1, 5), range(5)], ids=str)
def test_one_of_another_size_is_seen(shaped: range) -> None:
    own = [(kind, dims if at in shaped else None) for at, (kind, dims) in enumerate(PLANNED)]
    found = matched([*own[:-1], (MATMUL, (32, 2880, 1440))])
    assert [(each.planned, each.seen) for each in found.changed] == [(4, 4)]
    assert len(found.matched) == len(PLANNED) - 1


def test_one_of_another_size_is_seen_where_it_was_moved() -> None:
    found = matched([(ATTENTION, None), (MATMUL, (32, 2880, 1440)), *((MATMUL, None) for _ in range(3))])
    assert [each.seen for each in found.changed] == [1]
    assert len(found.pairs) == len(PLANNED) and not found.missing


def test_one_more_is_extra() -> None:
    own = [(kind, None) for kind, _ in PLANNED]
    found = matched([*own[:3], (ATTENTION, None), *own[3:]])
    assert found.extra == [3] and len(found.matched) == len(PLANNED)
