"""Which free queries are refused: all that could write, in any spelling, and no others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagedb.errors import UsageError
from stagedb.store.free_queries import FIRST, WRITES, check

READ = (
    "MATCH (n:Op) RETURN n",
    "MATCH (n:Op {name: 'CREATE (x)'}) RETURN n.name AS name",
    'RETURN "a \\" SET n.x = 1" AS text',
    "RETURN 'it''s' AS text",
    "MATCH (n:`Create`) RETURN n.`set` AS `merge`",
    "MATCH (n:Op) WHERE n.set > 1 RETURN n.delete AS x",
    "MATCH (n:Set)-[:CREATE]->(m) RETURN m",
    "MATCH (n:Op {set: 1, create: 2}) RETURN n",
    "MATCH (n:Op) RETURN {merge: n.name} AS row",
    "// CREATE (n)\nMATCH (n:Op) /* DELETE n */ RETURN n;",
    "UNWIND $set AS x RETURN x",
    "UNWIND $`create` AS x RETURN x",
    "MATCH (n:Op) RETURN n.name AS settings, n.offset AS created",
    "CALL { MATCH (n:Op) RETURN n } RETURN n",
    "MATCH (n:Op) CALL (n) { RETURN 1 AS x } RETURN x",
    "CALL db.labels() YIELD label RETURN label",
    "EXPLAIN MATCH (n:Op) RETURN n",
    "OPTIONAL MATCH (n:Op) RETURN n",
    "RETURN datetime.realtime() AS now, point.distance(a, b) AS far",
    "MATCH (n:Op) RETURN [x IN n.dims WHERE x > 1 | x] AS dims",
    "RETURN 1.5 AS x, 0x1F AS y, 1e9 AS z",
    "RETURN 0o17 AS a, 1_000 AS b, 1.5e-9 AS c, 2e+3 AS d, 1.5f AS e, $0 AS f, $12 AS g, 1E9d AS h",
    "MATCH (a:Op)-[:FEEDS*1..2]->(b:Op) RETURN b.name",
)

WRITE = (
    "CREATE (n:Op)",
    "create (n)",
    "MATCH (n:Op) SET n.x = 1",
    "MATCH (n:Op)SET n.x = 1",
    "MATCH (n:Op) WITH n SeT n.x = 1",
    "MATCH (n:Op) DETACH DELETE n",
    "MATCH (n:Op) NODETACH DELETE n",
    "MATCH (n:Op)\u00a0SET\u2003n.x = 1",
    "MATCH (n:Op)/**/SET/**/n.x = 1",
    "MATCH (n:Op) // ' \nSET n.x = 1",
    "MATCH (n:Op {x: '//'}) SET n.x = 1",
    "MATCH (n:Op {x: '\\''}) SET n.x = '1'",
    "MATCH (n:`a``b`) SET n.x = 1",
    "MATCH (n:Op) WITH n, 1SET n.x = 1",
    "MATCH (n:Op) WITH 1.SET AS x RETURN x",
    "MATCH (n:Op) WITH n LIMIT 0CALL db.createLabel('x')",
    "RETURN 0CALL { MATCH (n) RETURN n }",
    "RETURN 1_0CALL db.createLabel('x')",
    "RETURN 0x1FCALL db.createLabel('x')",
    "RETURN 0o7CALL db.createLabel('x')",
    "RETURN 1e9CALL db.createLabel('x')",
    "RETURN 1.5CALL db.createLabel('x')",
    "RETURN 1eCALL db.createLabel('x')",
    "RETURN $0CALL db.createLabel('x')",
    "RETURN $ 0CALL db.createLabel('x')",
    "RETURN 1UNION MATCH (n) RETURN n",
    "RETURN \u0660CALL db.createLabel('x')",
    "MATCH (n:Op) WITH n, 0x1SET n.x = 1",
    "MATCH (n:Op) \u017fET n.x = 1",
    "MATCH (n:Op) \uff33\uff25\uff34 n.x = 1",
    "MATCH (n:Op) \u0131NSERT (:Op)",
    "MATCH (n:Op) S\u200bET n.x = 1",
    "MATCH (n:Op) S\u00adET n.x = 1",
    "MATCH (n:Op) \\u0053ET n.x = 1",
    "RETURN '\\u0027 CREATE (:Op) //' AS x",
    "MERGE (n:Op {id: 1})",
    "INSERT (:Op)",
    "MATCH (n:Op) REMOVE n.x",
    "FOREACH (x IN [1] | CREATE (:Op))",
    "LOAD CSV FROM 'file:///etc/passwd' AS line RETURN line",
    "CALL { CREATE (n:Op) RETURN n } RETURN n",
    "MATCH (n:Op) CALL { WITH n DELETE n } IN TRANSACTIONS",
    "MATCH (n:Op) CALL { WITH n RETURN 1 AS x } IN TRANSACTIONS RETURN x",
    "CALL db.createLabel('x')",
    "CALL dbms.killQuery('1')",
    "CALL `db`.`createLabel`('x')",
    "CALL apoc.cypher.doIt('CREATE (n)', {})",
    "CALL db.labels.more()",
    "CREATE INDEX FOR (n:Op) ON (n.x)",
    "DROP CONSTRAINT op_id",
    "RETURN 1 AS x; CREATE (n)",
    "MATCH (n:Op) RETURN n; MATCH (n:Op) RETURN n",
    "USE neo4j MATCH (n:Op) RETURN n",
    "CYPHER 5 CREATE (n)",
    "PROFILE CREATE (n)",
    "EXPLAIN CREATE (n)",
    "GRANT ROLE admin TO neo4j",
    "ALTER CURRENT USER SET PASSWORD FROM 'a' TO 'b'",
    "SELECT FROM Op",
    "sqlscript CREATE VERTEX TYPE x",
    "TERMINATE TRANSACTION 'neo4j-transaction-1'",
    "STOP DATABASE neo4j",
    "SHOW USERS",
    "RETURN apoc.util.sleep(10) AS x",
    "RETURN `apoc`.`x`(1) AS x",
    "MATCH (n:Op {x: 'a) RETURN n",
    "MATCH (n:`Op) RETURN n",
    "MATCH (n:Op) /* RETURN n",
    "",
    "  // nothing",
    ";",
)


@pytest.mark.parametrize("text", READ)
def test_what_reads_passes(text: str) -> None:
    check(text)


@pytest.mark.parametrize("text", WRITE)
def test_what_could_write_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        check(text)


def test_the_message_names_the_word_and_the_line() -> None:
    with pytest.raises(UsageError, match=r"contains SET \(line 3\)"):
        check("MATCH (n:Op)\n// a comment\nSET n.x = 1 RETURN n")


spaces = st.text(st.sampled_from(" \t\n\r\u00a0\u2003\u3000"), min_size=1, max_size=3)
comments = st.sampled_from(["", "/* x */", "// ' \"\n", "/* ' */", "/**/"])
plain_text = st.text(st.characters(codec="ascii", exclude_characters="\\'\"`\x7f", min_codepoint=32), max_size=12)


@st.composite
def disguised(draw: st.DrawFn, words: frozenset[str]) -> str:
    """A word in any capitals, with spaces or comments around it."""
    word = draw(st.sampled_from(sorted(words)))
    cased = "".join(draw(st.sampled_from([letter.lower(), letter.upper()])) for letter in word)
    return draw(spaces) + draw(comments) + cased + draw(comments) + draw(spaces)


@given(
    disguised(WRITES), st.sampled_from(["MATCH (n:Op)", "RETURN 'it', \"it\", `it`", "WITH 1 AS x", "UNWIND [1] AS x"])
)
def test_a_writing_word_outside_of_strings_is_refused(word: str, before: str) -> None:
    with pytest.raises(UsageError):
        check(f"{before}{word}(n)")


@given(st.sampled_from(sorted(WRITES)), plain_text, st.sampled_from("'\"`"), plain_text)
def test_any_word_inside_of_strings_and_names_is_fine(word: str, before: str, quote: str, after: str) -> None:
    check(f"MATCH (n:Op) RETURN n.x = {quote}{before}{word}{after}{quote} AS x")


@given(st.sampled_from(sorted(WRITES)), plain_text)
def test_any_word_inside_of_comments_is_fine(word: str, text: str) -> None:
    check(f"MATCH (n:Op) // {text} {word} \nRETURN n")
    check(f"MATCH (n:Op) /* {text.replace('*', '')} {word} */ RETURN n")


@given(st.text(max_size=60))
def test_any_text_is_judged(text: str) -> None:
    """Nothing but a refusal comes out of any text, and what passes begins as a query does."""
    try:
        check(text)
    except UsageError:
        return
    assert any(word in text.upper() for word in FIRST)
