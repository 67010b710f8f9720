"""Iterations that Neo4j would never end: which queries are refused there, and only there."""

import pytest

from stagedb.errors import UsageError
from stagedb.store import Store
from stagedb.store.free_queries import check_iterations
from stagedb.store.statements import load, names

REFUSED = (
    "RETURN reduce(a=0, i IN range(0,1000000) | a + reduce(b=0, j IN range(0,1000000) | b+1))",
    "WITH range(1, 1000000) AS l RETURN reduce(n = 0, x IN l | n + reduce(m = 0, y IN l | m + y)) AS n",
    "RETURN size([x IN range(1, 1000000) WHERE any(y IN range(1, 1000000) WHERE y = -x)]) AS n",
    "RETURN [x IN `range`(1, 9) | [y IN RANGE(1, x) | y]] AS rows",
    "RETURN all(x IN range(1, 9) WHERE none(y IN [1, 2] WHERE x = y)) AS n",
    "RETURN single(x IN range(1, 9) WHERE x + size([`in` IN range(1, 9) | 1]) = 3) AS n",
    "RETURN reduce(a = 0, i IN range(1, 9) | a + COUNT { UNWIND [x IN [1] | x] AS y RETURN y }) AS n",
    "RETURN REDUCE /* ( */ (a = 0, i IN range(1, 9) | a + head([[j IN range(1, 9) | j]])[0]) AS n",
    "RETURN reduce(a = 0, i IN range(0, 9000000000000000000) | a + 1) AS n",
    "WITH range(0, 10_000_001) AS l RETURN [x IN l | x] AS n",
    "RETURN [x IN range(0, 0x7FFFFFFFFFFF) WHERE x < 0] AS n",
)

ANSWERED = (
    "UNWIND range(1, 9) AS i UNWIND range(1, 9) AS j RETURN sum(i * j) AS n",
    "UNWIND range(1, 9) AS i RETURN sum(reduce(b = 0, j IN range(1, 9) | b + 1)) AS n",
    "UNWIND range(1, 2) AS i RETURN i, [x IN [[1, 2], [3]] | size(x)] AS n",
    "RETURN [x IN [[1, 2], [3]] | [y IN x WHERE y > 1 | y]] AS n",
    "RETURN reduce(a = reduce(b = 0, j IN range(1, 9) | b + j), i IN [x IN range(1, 9) | x] | a + i) AS n",
    "RETURN [x IN range(1, 9) | x] + [y IN range(1, 9) WHERE y > 2 | y] AS n",
    "RETURN [x IN [1, 2] | [[y] [0] IN [1], 'range(', x]] AS `range(`, {all: 1} AS any",
    "UNWIND range(1, 9) AS i WITH i WHERE i IN range(1, 3) RETURN [i IN [i] | i] AS n",
    "UNWIND range(10000000, 10000010) AS i RETURN count(i) AS n",
    "RETURN reduce(a = 0, i IN range(1, 9) | a + COUNT { UNWIND range(1, 9) AS y RETURN y }) AS n",
)


@pytest.mark.parametrize("text", REFUSED)
def test_what_neo4j_would_not_end_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"Neo4j does not end such an expression.*UNWIND"):
        check_iterations(text)


@pytest.mark.parametrize("text", ANSWERED)
def test_other_iterations_pass(text: str) -> None:
    check_iterations(text)


def test_the_error_names_both_iterations_and_their_lines() -> None:
    with pytest.raises(UsageError, match=r"\(a list comprehension, line 2\) .*another \(reduce, line 1\)"):
        check_iterations("RETURN reduce(a = 0, i IN range(1, 9) |\n a + size([j IN [1] | j])) AS n")


def test_named_queries_pass() -> None:
    for name in (each for each in names() if each.startswith("analyze/")):
        check_iterations(load(name).text)


def test_each_engine_answers_what_it_can_end(store: Store) -> None:
    """Only Neo4j refuses: the other engine ends the thread of a query that is out of time."""
    text = "RETURN reduce(a = 0, i IN range(1, 9) | a + reduce(b = 0, j IN range(1, 9) | b + 1)) AS n"
    if store.engine == "neo4j":
        with pytest.raises(UsageError, match="Neo4j does not end"):
            store.query(text)
    else:
        assert store.query(text).rows == ((81,),)
    for passing in ANSWERED[:4]:
        assert store.query(passing).rows
