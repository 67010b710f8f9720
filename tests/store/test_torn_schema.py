"""A client that ends while it makes a constraint may leave the server with the constraint's index alone."""

import pytest

from stagedb.errors import StagedbError
from stagedb.store import Store
from stagedb.store.schema import definitions

TORN = [text for text in definitions() if text.startswith("CREATE CONSTRAINT")][:2]


def constraints(store: Store) -> set[str]:
    with store._session("READ") as session:
        return {str(row["name"]) for row in session.run("SHOW CONSTRAINTS YIELD name")}


@pytest.mark.parametrize("text", TORN)
def test_a_constraint_of_which_only_the_index_is_there_is_made_again(neo4j_store: Store, text: str) -> None:
    name, label, key = text.split()[2], text.partition("(n:")[2].partition(")")[0], text.partition(" n.")[2].split()[0]
    with neo4j_store._session("WRITE") as session:
        session.run(f"DROP CONSTRAINT {name} IF EXISTS").consume()
        session.run(f"DROP INDEX {name} IF EXISTS").consume()
        session.run(f"CREATE INDEX {name} FOR (n:{label}) ON (n.{key})").consume()
    assert name not in constraints(neo4j_store)
    neo4j_store._define(text)
    assert name in constraints(neo4j_store)


def test_a_schema_that_cannot_be_made_is_named(neo4j_store: Store) -> None:
    with pytest.raises(StagedbError, match=f"making the schema failed on the store at {neo4j_store.uri}"):
        neo4j_store._define("CREATE CONSTRAINT x FOR (n:X) REQUIRE n.y IS A MOON")
