"""The order of a rank's work: run-length coded texts, and what makes two orders different."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagedb.validation.op_order import Event, Sent, compare_order, expand, work

A, B = Sent("forward", "all_reduce", "tp", "bf16", 8), Sent("forward", "all_gather", "dp", "bf16", 4)
M, N = work("matmul", (4, 8, 2)), work("matmul", (8, 8, 2))

texts = st.recursive(
    st.sampled_from(["c0", "m1"]).map(lambda word: (word, [word])),
    lambda inner: st.tuples(st.lists(inner, min_size=1, max_size=3), st.integers(1, 3)).map(
        lambda made: (
            f"({' '.join(text for text, _ in made[0])})x{made[1]}",
            [word for _, words in made[0] for word in words] * made[1],
        )
    ),
)


@given(texts)
def test_a_coded_text_is_expanded(made: tuple[str, list[str]]) -> None:
    assert expand(made[0]) == made[1]


@pytest.mark.parametrize("text", ["(a", "a)x2", "((a)x2"])
def test_brackets_that_do_not_match_are_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="bracket"):
        expand(text)


def test_the_sides_of_a_matmul_have_no_order() -> None:
    assert work("matmul", (3, 8, 4, 2)) == work("matmul", (3, 4, 8, 2)) != work("matmul", (3, 4, 2, 8))
    assert work("attention", (1, 8, 4)) != work("attention", (1, 4, 8))


@pytest.mark.parametrize(
    ("ours", "messages", "gaps", "exact"),
    [
        ([M, N, A, M, B], (2, 2), (3, 3), True),
        ([N, M, A, M, B], (2, 2), (3, 3), False),
        ([M, A, N, M, B], (2, 2), (3, 1), False),
        ([M, N, B, M, A], (2, 0), (3, 3), False),
        ([M, N, A, M, B, B], (3, 2), (4, 3), False),
        ([M, N, A, M, M, B], (2, 2), (3, 2), False),
        ([], (2, 0), (3, 0), False),
    ],
)
def test_orders_are_compared(ours: list[Event], messages: tuple[int, int], gaps: tuple[int, int], exact: bool) -> None:
    """Against: M, N, a message A, M, a message B."""
    found = compare_order([M, N, A, M, B], ours)
    assert [row[1:3] for row in found.differences] == [messages, gaps]
    assert found.exact is exact
