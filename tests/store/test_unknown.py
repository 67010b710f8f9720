"""Words of a query that no store has are reported; words that a query makes itself are not."""

import pytest

from stagedb.store import load, names
from stagedb.store.unknown_names import unknown_names


def test_the_statements_use_what_there_is() -> None:
    found = {name: unknown_names(load(name).text) for name in names()}
    assert {name: each for name, each in found.items() if each} == {}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("MATCH (o:Opp {instance: $instance}) RETURN o", ["label Opp: did you mean Op?"]),
        ("MATCH (o:op) RETURN o", ["label op: did you mean Op?"]),
        ("MATCH (:Task|Tsk) RETURN 1", ["label Tsk: did you mean Task"]),
        ("MATCH (o) WHERE o:Colective RETURN o", ["label Colective: did you mean Collective"]),
        ("MATCH ()-[:NEXT|FEED*1..3]->() RETURN 1", ["relationship is a FEED: did you mean FEEDS?"]),
        ("MATCH (o:Op) WHERE exists { (o)-[:DEPS]->() } RETURN o", ["relationship is a DEPS: did you mean DEP?"]),
        (
            "MATCH (o:Op) RETURN sum(o.flop), o.`nam`",
            ["property flop: did you mean flops", "property nam: did you mean"],
        ),
        ("MATCH (o:Op {axs: 'tp'}) RETURN o", ["property axs: did you mean axis"]),
        ("MATCH (o:Op) RETURN o.zzzz", ["no Op has the property zzzz; docs/data-model.md lists"]),
        ("MATCH (o) RETURN o.zzzz", ["no node or edge has the property zzzz; docs/data-model.md lists"]),
        ("MATCH (i:Instance) RETURN i.flops", ["no Instance has the property flops; "]),
        ("MATCH (i:Instance)-[:OF]->(g:Graph) RETURN i.model_flops", ["no Instance has the property model_flops; "]),
        ("MATCH (i:Instance {class: 0}) RETURN i", ["no Instance has the property class; "]),
        ("MATCH (:Op)-[d:DEP]->(:Op) RETURN d.flops", ["no DEP has the property flops; "]),
    ],
)
def test_unknown_words_come_with_similar_ones(text: str, expected: list[str]) -> None:
    found = unknown_names(text)
    assert len(found) == len(expected)
    assert all(part in each for part, each in zip(expected, found, strict=True))


@pytest.mark.parametrize(
    "text",
    [
        "WITH {made: 1, other: 'a:B'} AS m RETURN m.made, m.other, $p.anything",
        "UNWIND $rows AS row MATCH (o:Op {id: row.its}) RETURN o.id AS anything ORDER BY anything",
        "MATCH (o:Compute:Op) WHERE o.name = ':Opp {nam: 1}' RETURN o // (:Opp)",
        "MATCH (o:Op) WITH collect({made: o.flops}) AS all RETURN [x IN all WHERE x.made > 1 | x.made]",
        "CALL db.labels()",
        "MATCH (x:Op|Instance) RETURN x.flops, x.tp",
        "MATCH (x:!Op) RETURN x.tp",
        "MATCH (x:Op) RETURN x.flops UNION ALL MATCH (x:Instance) RETURN x.tp AS flops",
        "MATCH (o:Op) WITH {made: o.axis} AS o RETURN o.made",
        "MATCH (o:Op) WITH {made: o.axis} AS m RETURN keys(m), m.made",
        "MATCH (i:Instance) WITH datetime(i.created) AS day RETURN toString(day), day.year",
        "MATCH (o:Op) WITH properties(o) AS p RETURN (p), p.made",
        "UNWIND $rows AS row RETURN [x IN row.parts WHERE size(x) > 0 | x.made]",
        "CALL db.labels() YIELD label RETURN collect(label), label.made",
    ],
)
def test_names_of_the_query_itself_are_its_own(text: str) -> None:
    assert unknown_names(text) == []
